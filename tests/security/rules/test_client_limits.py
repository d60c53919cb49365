"""Whose limits hold: the user's own, else those of its first role, else everybody's."""

from __future__ import annotations

import pytest

from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.security.rules.client_limits import ClientLimitRule, ClientLimitRules

EVERYBODY, OPS, DEV, ANN = (
    ClientLimitRule(ClientLimits(subscriptions_max=number), connections_per_user=number)
    for number in range(1, 5)
)
RULES = ClientLimitRules(EVERYBODY, {"ops": OPS, "dev": DEV}, {"ann": ANN})


@pytest.mark.parametrize(
    ("username", "roles", "wanted"),
    [
        ("ann", "", ANN),
        ("ann", "ops dev", ANN),
        ("bob", "ops", OPS),
        ("bob", "ops dev", DEV),  # the first by name, whatever the order of the set
        ("bob", "aaa ops", OPS),  # a role without limits says nothing
        ("bob", "aaa", EVERYBODY),
        ("bob", "", EVERYBODY),
        (None, "ops", OPS),
        (None, "", EVERYBODY),
        ("", "", EVERYBODY),
    ],
)
def test_whose_limits_hold(username: str | None, roles: str, wanted: ClientLimitRule) -> None:
    assert RULES.of(username, frozenset(roles.split())) is wanted


def test_without_rules_nobody_is_limited() -> None:
    rule = ClientLimitRules().of("ann", frozenset({"ops"}))
    assert rule.limits is None and rule.connections_per_user == 0


def test_a_user_without_a_name_is_not_the_user_none() -> None:
    rules = ClientLimitRules(EVERYBODY, {}, {"None": ANN})
    assert rules.of(None, frozenset()) is EVERYBODY
