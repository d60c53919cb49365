"""Authenticate and authorize clients: this package's implementation of the core's `Access`.

`connect` asks the chain of methods and makes a verdict of its outcome: bans, roles, limits, and
the guard that decides what the client may do. `apply` replaces the policy while the broker runs;
the caller then has the broker check its clients again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.strings import decode_utf8
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse, Verdict
from mqtt_broker.security.authentication.accounts import Accounts
from mqtt_broker.security.authentication.chain import Chain, Denied, Proof
from mqtt_broker.security.protection.audit_log import Audit
from mqtt_broker.security.protection.bans import FLAPPING, Ban, Bans, Flapping
from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle
from mqtt_broker.security.rules.client_limits import ClientLimitRules
from mqtt_broker.security.rules.identity import Identity, address_of, network_of
from mqtt_broker.security.rules.ruleset import Decision, RuleSet

Roles = Mapping[str, frozenset[str]]  # by user name
_NO_ROLES: Final[frozenset[str]] = frozenset()
_NAME_BYTES_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class SecurityPolicy:
    """The security configuration that a reload replaces, as one value."""

    chain: Chain | None  # None: clients need not authenticate
    rules: RuleSet
    roles: Roles = field(default_factory=dict)
    client_limits: ClientLimitRules = field(default_factory=ClientLimitRules)
    flapping: Flapping = field(default_factory=Flapping)
    connect_limits: ConnectLimits = field(default_factory=ConnectLimits)


class Authenticator:
    """Decides who may connect and what each client may do, by one policy at a time."""

    def __init__(
        self,
        policy: SecurityPolicy,
        *,
        audit: Audit,
        clock: Callable[[], float],
        bans: Bans | None = None,
    ) -> None:
        self.policy = policy
        self.audit = audit
        self.bans = bans or Bans()
        self._throttle = Throttle()
        self._clock = clock

    def apply(self, policy: SecurityPolicy) -> None:
        """Put another policy in force. Guards of connected clients go by it from now on."""
        self.policy = policy

    # For the core.

    @property
    def guards_topics(self) -> bool:
        """Tell whether sessions restored from the store need authorization; others have a guard."""
        return self.policy.rules.is_on

    def connect(self, request: ConnectRequest) -> Verdict:
        """Decide on a CONNECT or a re-authentication, at once or later."""
        now = self._clock()
        if not request.is_again:
            ban = self.bans.of_address(address_of(request.peer), now) or self.bans.of_client(
                request.client_id, now
            )
            if ban is not None:
                return self._refuse_banned(request, ban)
        chain = self.policy.chain
        if chain is None:
            if request.auth_method is not None:
                denied = Denied(reasons.BAD_AUTHENTICATION_METHOD, "unknown method")
                return self._judge(request, denied)
            # The user name of this client is not proven: no rule may go by it.
            return self._judge(request, Proof(None, method="open"))
        return chain.connect(request, self._judge)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        """Tell whether a client that has no guard may publish to the topic."""
        rules = self.policy.rules
        return rules.may_publish(self._restored_identity(client_id, username), topic).is_allowed

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        """Tell whether a client that has no guard may subscribe to the filter."""
        rules = self.policy.rules
        return rules.may_subscribe(self._restored_identity(client_id, username), text).is_allowed

    # For links.

    def admit(self, peer: str) -> str:
        """Count a connection that was just accepted, or return the reason why it is refused."""
        now = self._clock()
        address = address_of(peer)
        ban = self.bans.of_address(address, now)
        if ban is not None:
            self.audit.note("refused", "banned", by=ban.kind, value=ban.value, peer=peer)
            return "banned"
        limit = self._throttle.admit(self.policy.connect_limits, address, now)
        if limit:
            self.audit.note("refused", limit, peer=peer)
        return limit

    def release(self, peer: str) -> None:
        """Stop counting a connection that was admitted."""
        self._throttle.release(address_of(peer))

    # Verdicts.

    def _judge(self, request: ConnectRequest, outcome: Proof | Denied) -> Verdict:
        """Make a verdict of the chain's outcome. From any thread."""
        policy = self.policy
        if isinstance(outcome, Proof) and not _is_valid_username(outcome.username):
            outcome = Denied(reasons.NOT_AUTHORIZED, "the proven user name is not valid in MQTT")
        if isinstance(outcome, Denied):
            self.audit.note(
                "refused",
                reasons.name(outcome.reason),
                why=outcome.why,
                client_id=request.client_id,
                username=request.username,
                peer=request.peer,
                listener=request.listener,
            )
            return Refuse(outcome.reason, why=outcome.why)
        now = self._clock()
        ban = self.bans.of_user(outcome.username, now)
        if ban is None and not request.is_again:
            network = network_of(address_of(request.peer))
            ban = self.bans.on_connect(
                policy.flapping, outcome.username, request.client_id, now, network
            )
        if ban is not None:
            return self._refuse_banned(request, ban)
        self.audit.note(
            "connected",
            way=outcome.method,
            client_id=request.client_id,
            username=outcome.username,
            peer=request.peer,
        )
        identity = Identity(
            request.client_id,
            outcome.username,
            outcome.roles,
            address_of(request.peer),
            request.listener,
            outcome.token_rules,
        )
        guard = ClientGuard(self, identity, outcome.accounts)
        roles = self._roles_of(policy, identity, outcome.accounts)
        limits = policy.client_limits.of(outcome.username, roles)
        return Allow(
            outcome.username,
            outcome.auth_data,
            guard,
            outcome.expires_at,
            policy.chain is not None,
            limits.limits,
            limits.connections_per_user if outcome.username is not None else 0,
        )

    def _refuse_banned(self, request: ConnectRequest, ban: Ban) -> Verdict:
        self.audit.note(
            "refused",
            "banned",
            by=ban.kind,
            why=ban.why,
            client_id=request.client_id,
            peer=request.peer,
        )
        if request.is_again:
            return Refuse(reasons.NOT_AUTHORIZED)
        return Refuse(reasons.BANNED, "flapping" if ban.why == FLAPPING else "", why=ban.why)

    # For guards.

    def may_stay(self, identity: Identity, accounts: Accounts | None) -> bool:
        """Tell whether the client would still be allowed: its user exists and is not banned."""
        now = self._clock()
        if (
            self.bans.of_address(identity.address, now)
            or self.bans.of_client(identity.client_id, now)
            or self.bans.of_user(identity.username, now)
        ):
            return False
        if accounts is None or identity.username is None:
            return True
        return accounts.has(identity.username)

    def _restored_identity(self, client_id: str, username: str | None) -> Identity:
        """Return what is known of a session from the store: its client id and user name."""
        roles = self.policy.roles.get(username, _NO_ROLES) if username is not None else _NO_ROLES
        return Identity(client_id, username, roles)

    @staticmethod
    def _roles_of(
        policy: SecurityPolicy, identity: Identity, accounts: Accounts | None
    ) -> frozenset[str]:
        """Join the roles of the client's account or proof with those of the configuration."""
        if identity.username is None:
            return identity.roles
        own = accounts.roles(identity.username) if accounts is not None else None
        return (identity.roles if own is None else own) | policy.roles.get(
            identity.username, _NO_ROLES
        )

    def decide(
        self, identity: Identity, accounts: Accounts | None, text: str, *, is_publish: bool
    ) -> Decision:
        """Decide by the rules and roles in force now; both may change while a client is here."""
        policy = self.policy
        roles = self._roles_of(policy, identity, accounts)
        if roles != identity.roles:
            identity = replace(identity, roles=roles)
        if is_publish:
            return policy.rules.may_publish(identity, text)
        return policy.rules.may_subscribe(identity, text)

    def deny(self, identity: Identity, action: str, text: str, decision: Decision) -> None:
        """Write a denial to the audit log."""
        self.audit.note(
            "denied",
            action,
            topic=text,
            client_id=identity.client_id,
            username=identity.username,
            rule=decision.rule.where if decision.rule is not None else decision.why,
        )


def _is_valid_username(username: str | None) -> bool:
    """Check a name from a token or certificate like one from CONNECT: it goes to logs, to `$SYS`
    and into the store, too.
    """
    if username is None:
        return True
    try:
        raw = username.encode()
        decode_utf8(raw)
    except (UnicodeEncodeError, Violation):
        return False
    return 0 < len(raw) <= _NAME_BYTES_MAX


class ClientGuard:
    """Decides what one client may do, as long as its session lasts."""

    __slots__ = ("_accounts", "_authenticator", "_denied", "_identity")

    def __init__(
        self, authenticator: Authenticator, identity: Identity, accounts: Accounts | None
    ) -> None:
        self._authenticator = authenticator
        self._identity = identity
        self._denied = ("", "", "")  # the last denial: action, topic or filter, and the rule
        self._accounts = accounts  # of its user; None: it was authenticated without an account

    @property
    def is_welcome(self) -> bool:
        """Tell whether the client may stay connected: its user exists and is not banned."""
        return self._authenticator.may_stay(self._identity, self._accounts)

    def may_publish(self, topic: str) -> bool:
        return self._decide("publish", topic)

    def may_subscribe(self, text: str, qos: int) -> bool:
        return self._decide("subscribe", text)

    def why_not(self, text: str, *, is_publish: bool) -> str:
        """Name the rule that refused a topic or a filter just now."""
        action = "publish" if is_publish else "subscribe"
        return self._denied[2] if self._denied[:2] == (action, text) else ""

    def _decide(self, action: str, text: str) -> bool:
        decision = self._authenticator.decide(
            self._identity, self._accounts, text, is_publish=action == "publish"
        )
        if not decision.is_allowed:
            why = decision.why if decision.rule is None else decision.rule.where
            self._denied = (action, text, why)
            self._authenticator.deny(self._identity, action, text, decision)
        return decision.is_allowed
