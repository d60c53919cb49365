"""Rules against brute force: every Topic Name of a small world, authorized_filter one by one."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.security.rules.identity import Identity, TokenRule, address_of
from mqtt_broker.security.rules.rule import Rule, RuleError, authorized_filter
from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.security.rules.ruleset import RuleSet
from mqtt_broker.topics.filter_sets import levels_of
from mqtt_broker.topics.names import filter_problem, matches
from tests.property_examples import examples

WORDS: Final = ("a", "b", "", "$x")
# A level more than filters have, so that what `#` reaches below every filter is in the world.
NAMES: Final = ["/".join(levels) for n in range(1, 5) for levels in product(WORDS, repeat=n)]
FILTERS: Final = [
    "/".join(levels)
    for n in range(1, 4)
    for levels in product((*WORDS, "+", "#"), repeat=n)
    if not filter_problem("/".join(levels)) and "/".join(levels)
]
filters = st.sampled_from(FILTERS)
ME: Final = Identity("me", "ann", frozenset({"ops"}), address_of("192.0.2.7:1"))


def names_of(text: str) -> set[str]:
    return {name for name in NAMES if name and matches(text, name)}


rules = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(["publish", "subscribe", "all"]),
        filters,
        st.sampled_from([None, "users", "roles", "clients", "others", "addresses"]),
    ),
    max_size=40,
)


def rule(number: int, row: tuple[bool, str, str, str | None]) -> Rule:
    is_allowed, action, topic, about = row
    who: dict[str, list[str]] = {
        "users": ["ann", "bob"], "roles": ["ops"], "clients": ["me"], "addresses": ["192.0.2.0/24"]
    }  # fmt: skip
    chosen = {about: who[about]} if about in who else {}
    if about == "others":
        chosen = {"users": ["bob"]}
    return rule_of(
        number,
        permit="allow" if is_allowed else "deny",
        action=action,
        topic=topic,
        **chosen,  # type: ignore[arg-type]
    )


def slowly(found: list[Rule], action: str, name: str) -> bool:
    for one in found:
        acts = one.publishes if action == "publish" else one.subscribes
        if acts and one.applies_to(ME) and matches(one.topic, name):
            return one.is_allowed
    return False


@given(rules, filters)
@examples(600)
def test_a_rule_set_decides_like_a_list(
    rows: list[tuple[bool, str, str, str | None]], wanted: str
) -> None:
    found = [rule(number, row) for number, row in enumerate(rows)]
    ruleset = RuleSet(found, is_on=True)
    for name in ("a", "a/b", "$x/a", "/", "a//b", "b/a/b/a"):
        assert ruleset.may_publish(ME, name).is_allowed is slowly(found, "publish", name)
        assert ruleset.may_subscribe(ME, name).is_allowed is slowly(found, "subscribe", name)
    names = names_of(wanted)
    verdicts = {name: slowly(found, "subscribe", name) for name in names}
    decision = ruleset.may_subscribe(ME, wanted)
    if decision.is_allowed:
        assert all(verdicts.values()), "a subscription brings what a rule denies"
    elif all(verdicts.values()) and decision.rule is None:
        # Only together do several rules allow it: refused, as documented.
        assert not any(
            r.is_allowed and r.subscribes and r.applies_to(ME) and names <= names_of(r.topic)
            for r in found
        )


@pytest.mark.parametrize("count", [5, 500])  # without and with an index
def test_the_first_rule_that_fits_decides(count: int) -> None:
    rows = [rule_of(n, permit="deny", action="all", topic=f"x/{n}") for n in range(count)]
    rows += [
        rule_of(count, permit="allow", action="publish", topic="x/1"),
        rule_of(count + 1, permit="allow", action="all", topic="x/#"),
    ]
    ruleset = RuleSet(rows)
    assert ruleset.may_publish(ME, "x/1").rule == rows[1]
    assert ruleset.may_publish(ME, "x/y").rule == rows[count + 1]
    assert not ruleset.may_subscribe(ME, "x/#").is_allowed
    assert ruleset.may_subscribe(ME, "x/y/#").is_allowed
    assert ruleset.may_publish(ME, "y").rule is None


def test_no_rules_and_no_rule() -> None:
    assert RuleSet().may_publish(ME, "a").is_allowed
    assert not RuleSet(is_on=True).may_publish(ME, "a").is_allowed


# What clients call themselves.

HOSTILE: Final = ["+", "#", "a/b", "/", "a/#", "+/+", "$SYS", "$x", "\0", "%u", "%c", "", "a+", "é"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("topic", ["%c", "%c/#", "d/%c", "d/%c/#", "d/x%cx/+", "%u/%c/t"])
def test_a_name_never_widens_a_rule(name: str, topic: str) -> None:
    """Whatever it is called, it gets at most what one level with its own name matches."""
    ruleset = RuleSet([rule_of(0, permit="allow", action="all", topic=topic)])
    for identity in (Identity(name, "ann"), Identity("me", name), Identity(name, name)):
        for text in (*FILTERS, f"d/{name}/t", f"{name}/t", f"d/x{name}x/q", "$SYS/a", "d/#", "d/+"):
            if not ruleset.may_subscribe(identity, text).is_allowed:
                continue
            levels = levels_of(text)
            assert len(levels) >= len(levels_of(topic)) - topic.endswith("#")
            for place, part in enumerate(levels_of(topic)):
                if "%" in part:
                    own = part.replace("%c", identity.client_id)
                    own = own if part != "%u" else identity.username or ""
                    assert levels[place] == own and not set(own) & set("+#/\0")
            assert levels[0][:1] != "$"


def test_a_mark_in_a_name_stays_a_mark() -> None:
    ruleset = RuleSet([rule_of(0, permit="allow", action="all", topic="d/%c/#")])
    assert not ruleset.may_publish(Identity("%u", "ann"), "d/ann/x").is_allowed
    assert ruleset.may_publish(Identity("%u", "ann"), "d/%u/x").is_allowed


@pytest.mark.parametrize("name", ["+", "#", "a/b", "$SYS"])
def test_a_hostile_name_does_not_escape_what_is_denied_to_it(name: str) -> None:
    rows = [
        rule_of(0, permit="deny", action="all", topic="secret/%c/#"),
        rule_of(1, permit="deny", action="all", topic="%u/x"),
        rule_of(2, permit="allow", action="all", topic="#"),
        rule_of(3, permit="allow", action="all", topic="$SYS/#"),
    ]
    ruleset = RuleSet(rows)
    assert not ruleset.may_publish(Identity(name, "ann"), f"secret/{name}/x").is_allowed
    if name == "$SYS":  # an ordinary level there
        assert ruleset.may_publish(Identity(name, "ann"), "secret/other").is_allowed
    for topic in ("any/thing", "$SYS/x", f"{name}/x"):
        assert not ruleset.may_publish(Identity("me", name), topic).is_allowed
    assert ruleset.may_publish(Identity("me"), "any/thing").is_allowed  # no name, no rule


def test_shares_and_streams_are_authorized_filter_by_what_is_inside() -> None:
    assert authorized_filter("$share/g/a/+") == ("a", "+")
    assert authorized_filter("$share/g/$stream/t/@earliest") == ("$stream", "t")
    assert authorized_filter("$stream/t/@2024-01-01T00:00:00Z") == ("$stream", "t")
    assert authorized_filter('$stream/t/@{"p0": 1}/x') == ("$stream", "t")
    ruleset = RuleSet([rule_of(0, permit="allow", action="subscribe", topic="$stream/t")])
    assert ruleset.may_subscribe(ME, "$share/g/$stream/t/@latest").is_allowed
    assert not ruleset.may_subscribe(ME, "$stream/other").is_allowed
    assert not ruleset.may_subscribe(ME, "$stream/other/@$stream/t").is_allowed
    assert not ruleset.may_subscribe(ME, "$share/$stream/t").is_allowed
    everything = RuleSet([rule_of(0, permit="allow", action="all", topic="#")])
    for text in ("$stream/t", "$dlq/#", "$SYS/#", "$share/g/$SYS/#", "$dlq/expired/x"):
        assert not everything.may_subscribe(ME, text).is_allowed


def test_what_a_token_brings_counts_first() -> None:
    ruleset = RuleSet([rule_of(0, permit="deny", action="all", topic="a")])
    grants = (TokenRule(False, True, True, "t/no"), TokenRule(True, True, False, "t/#"))
    bearer = Identity("me", "ann", token_rules=grants)
    assert ruleset.may_publish(bearer, "t/x").rule is not None
    assert not ruleset.may_publish(bearer, "t/no").is_allowed
    assert not ruleset.may_subscribe(bearer, "t/x").is_allowed
    # Without rules of the broker a token that names topics is still all its bearer may.
    assert not RuleSet().may_publish(bearer, "other").is_allowed
    assert not RuleSet().may_publish(Identity("me", "ann", token_rules=()), "t").is_allowed


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"permit": "yes"}, "invalid permit 'yes': expected allow or deny"),
        ({"action": "read"}, "invalid action 'read': expected one of publish, subscribe, all"),
        ({"topic": "a#"}, "#"),
        ({"topic": "a+/b"}, "+ must be alone"),
        ({"topic": ""}, "empty"),
        ({"topic": "$share/g/a"}, "write the filter alone"),
        ({"addresses": ["10.0.0.1/8"]}, "host bits"),
        ({"addresses": ["lan"]}, "lan"),
        ({"users": [""]}, "users has an empty name"),
        ({"users": ["a"], "is_anonymous": True}, "anonymous excludes users"),
    ],
)
def test_bad_rules(bad: dict[str, object], text: str) -> None:
    with pytest.raises(RuleError, match=".*" + text.replace("+", r"\+")):
        rule_of(0, **{"permit": "allow", "action": "all", "topic": "a", **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.1:5", "192.0.2.1"),
        ("[2001:db8::1]:5", "2001:db8::1"),
        ("[fe80::1%eth0]:5", "fe80::1"),
        ("[::ffff:192.0.2.1]:5", "192.0.2.1"),
        ("unix", None),
        ("", None),
    ],
)
def test_addresses(peer: str, address: str | None) -> None:
    found = address_of(peer)
    assert (str(found) if found else None) == address
