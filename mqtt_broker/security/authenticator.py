"""Everything of this room behind the core's access door.

`connect` asks the chain and makes a verdict of what it says: bans, roles, limits, and the guard
that goes with the client. The parts can be exchanged while the broker runs; whoever does it calls
`Broker.recheck` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.strings import decode_utf8
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse, Verdict
from mqtt_broker.security.authentication.accounts import Accounts
from mqtt_broker.security.authentication.chain import Chain, Denied, Proof
from mqtt_broker.security.protection.audit_log import Audit
from mqtt_broker.security.protection.bans import FLAPPING, Ban, Bans
from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle
from mqtt_broker.security.rules.client_limits import ClientLimitRules
from mqtt_broker.security.rules.identity import Identity, address_of, line_of
from mqtt_broker.security.rules.ruleset import Decision, RuleSet

Roles = Mapping[str, frozenset[str]]  # by user name
_NO_ROLES: Final[frozenset[str]] = frozenset()
_NAME_BYTES_MAX: Final = 65_535


class Authenticator:
    """The access door of a broker that asks who comes. `chain` None: nobody has to say."""

    def __init__(
        self,
        chain: Chain | None,
        rules: RuleSet,
        *,
        audit: Audit,
        clock: Callable[[], float],
        bans: Bans | None = None,
        roles: Roles | None = None,
        tiers: ClientLimitRules | None = None,
        limits: ConnectLimits | None = None,
    ) -> None:
        self.chain = chain
        self.rules = rules
        self.audit = audit
        self.bans = bans or Bans()
        self.roles: Roles = roles or {}
        self.tiers = tiers or ClientLimitRules()
        self.throttle = Throttle(limits or ConnectLimits())
        self._clock = clock

    # What the core asks.

    @property
    def guards_topics(self) -> bool:
        """Guards go with the verdicts; this is for sessions the store remembers."""
        return self.rules.is_on

    def connect(self, request: ConnectRequest) -> Verdict:
        now = self._clock()
        if not request.is_again:
            ban = self.bans.of_address(address_of(request.peer), now) or self.bans.of_client(
                request.client_id, now
            )
            if ban is not None:
                return self._refuse_banned(request, ban)
        if self.chain is None:
            if request.auth_method is not None:
                denied = Denied(reasons.BAD_AUTHENTICATION_METHOD, "unknown method")
                return self._judge(request, denied)
            # Nobody proved this name: no rule may believe it.
            return self._judge(request, Proof(None, way="open"))
        return self.chain.connect(request, self._judge)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return self.rules.may_publish(self._remembered(client_id, username), topic).is_allowed

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return self.rules.may_subscribe(self._remembered(client_id, username), text).is_allowed

    # What listeners ask.

    def turns_away(self, peer: str) -> str:
        """Why a connection that was just accepted may not go on, or nothing; then `left`."""
        now = self._clock()
        address = address_of(peer)
        ban = self.bans.of_address(address, now)
        if ban is not None:
            self.audit.note("refused", "banned", by=ban.kind, value=ban.value, peer=peer)
            return "banned"
        limit = self.throttle.open(address, now)
        if limit:
            self.audit.note("refused", limit, peer=peer)
        return limit

    def left(self, peer: str) -> None:
        self.throttle.closed(address_of(peer))

    # Verdicts.

    def _judge(self, request: ConnectRequest, outcome: Proof | Denied) -> Verdict:
        """From any thread."""
        if isinstance(outcome, Proof) and not _is_name(outcome.username):
            outcome = Denied(reasons.NOT_AUTHORIZED, "a user name MQTT could not have")
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
            return Refuse(outcome.reason)
        now = self._clock()
        ban = self.bans.of_user(outcome.username, now)
        if ban is None and not request.is_again:
            line = line_of(address_of(request.peer))
            ban = self.bans.on_connect(outcome.username, request.client_id, now, line)
        if ban is not None:
            return self._refuse_banned(request, ban)
        self.audit.note(
            "connected",
            way=outcome.way,
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
            outcome.grants,
        )
        guard = ClientGuard(self, identity, outcome.accounts)
        limits = self.tiers.of(outcome.username, self.all_roles(identity, outcome.accounts))
        return Allow(
            outcome.username,
            outcome.auth_data,
            guard,
            outcome.expires_at,
            self.chain is not None,
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
        return Refuse(reasons.BANNED, "flapping" if ban.why == FLAPPING else "")

    # What guards ask.

    def welcomes(self, identity: Identity, accounts: Accounts | None) -> bool:
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

    def _remembered(self, client_id: str, username: str | None) -> Identity:
        """All that is known of a session from the store: whose it is."""
        roles = self.roles.get(username, _NO_ROLES) if username is not None else _NO_ROLES
        return Identity(client_id, username, roles)

    def all_roles(self, identity: Identity, accounts: Accounts | None) -> frozenset[str]:
        """Those of its account or its proof, and those the broker gives. They may change."""
        if identity.username is None:
            return identity.roles
        own = accounts.roles(identity.username) if accounts is not None else None
        return (identity.roles if own is None else own) | self.roles.get(
            identity.username, _NO_ROLES
        )

    def decide(
        self, identity: Identity, accounts: Accounts | None, text: str, *, is_publish: bool
    ) -> Decision:
        roles = self.all_roles(identity, accounts)
        if roles != identity.roles:
            identity = replace(identity, roles=roles)
        if is_publish:
            return self.rules.may_publish(identity, text)
        return self.rules.may_subscribe(identity, text)

    def deny(self, identity: Identity, action: str, text: str, decision: Decision) -> None:
        self.audit.note(
            "denied",
            action,
            topic=text,
            client_id=identity.client_id,
            username=identity.username,
            rule=decision.rule.where if decision.rule is not None else decision.why,
        )


def _is_name(username: str | None) -> bool:
    """Names of tokens and certificates are held to what those of CONNECT are: they go to logs,
    to `$SYS` and into the store like them.
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
    """What one client may do, as long as its session lasts."""

    __slots__ = ("_accounts", "_door", "_identity")

    def __init__(self, door: Authenticator, identity: Identity, accounts: Accounts | None) -> None:
        self._door = door
        self._identity = identity
        self._accounts = accounts  # where its user is; None: somebody else vouched for it

    @property
    def is_welcome(self) -> bool:
        """Whether it would still be let in: its user was not taken away, nor banned."""
        return self._door.welcomes(self._identity, self._accounts)

    def may_publish(self, topic: str) -> bool:
        return self._ask("publish", topic)

    def may_subscribe(self, text: str, qos: int) -> bool:
        return self._ask("subscribe", text)

    def _ask(self, action: str, text: str) -> bool:
        decision = self._door.decide(
            self._identity, self._accounts, text, is_publish=action == "publish"
        )
        if not decision.is_allowed:
            self._door.deny(self._identity, action, text, decision)
        return decision.is_allowed
