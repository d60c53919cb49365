"""`fleetmq ctl acl|ban|unban|bans --config F.toml`: access rules and bans of a stopped broker."""

from __future__ import annotations

import argparse
import ipaddress
import time
from typing import Any

from mqtt_broker.cli.api_client import duration
from mqtt_broker.cli.errors import DONE, FAILED, NO_DATABASE, Failure, UsageError
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.security.protection.bans import Ban, add_ban, lift_ban, make_ban, read_bans
from mqtt_broker.security.rules.identity import Identity
from mqtt_broker.security.rules.ruleset import RuleSet
from mqtt_broker.server.config.config import read_security_of
from mqtt_broker.server.config.security import SQL_RULES_FROM, SecurityConfig
from mqtt_broker.server.config.tables import ConfigError


def run(args: argparse.Namespace) -> int:
    """Explain a decision of the configured rules, or read or change the list of bans."""
    try:
        security = read_security_of(args.config)
        if args.action == "acl":
            return _explain(security, args)
        return _bans(security, args)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    except FileError as error:
        raise Failure(str(error)) from None
    except Unavailable as error:
        raise Failure(str(error), NO_DATABASE) from None


def _explain(security: SecurityConfig, args: argparse.Namespace) -> int:
    """Print the decision and its rule; return 0 if allowed, 1 if denied."""
    roles = frozenset(args.role) | security.roles.get(args.user or "", frozenset())
    try:
        address = ipaddress.ip_address(args.address) if args.address else None
    except ValueError:
        raise UsageError(f"--address {args.address!r} is not an IP address") from None
    identity = Identity(args.client, args.user, roles, address)
    rules = RuleSet(_all_rules(security), is_on=security.has_rules)
    ask = rules.may_publish if args.what == "publish" else rules.may_subscribe
    decision = ask(identity, args.topic)
    print("allowed" if decision.is_allowed else "denied")
    if decision.rule is not None:
        print(f"by {decision.rule.where}: {decision.rule.describe()}")
    if decision.rule is None or not decision.is_allowed:
        print(decision.why)
    return DONE if decision.is_allowed else FAILED


def _all_rules(security: SecurityConfig) -> list[Any]:
    if not security.rules_url:
        return list(security.rules)
    from mqtt_broker.security.sql import SqlRules, open_engine

    engine = open_engine(security.rules_url)
    try:
        of_tables = SqlRules(engine)
        of_tables.load(SQL_RULES_FROM)
    finally:
        engine.dispose()
    return [*security.rules, *of_tables.rules]


def _bans(security: SecurityConfig, args: argparse.Namespace) -> int:
    path = security.bans_file
    if not path:
        raise UsageError(f"{args.config}: bans need a file: set bans_file in [security]")
    now = time.time()
    if args.action == "bans":
        for ban in read_bans(path):
            if ban.holds(now):
                print(_describe(ban, now))
        return DONE
    until = now + duration("--for", args.span) if getattr(args, "span", None) else 0.0
    wanted = make_ban(args.kind, args.value, until, getattr(args, "why", ""))
    try:
        if args.action == "ban":
            add_ban(path, wanted, now)
        elif not lift_ban(path, wanted.kind, wanted.value, now):
            raise Failure(f"there is no ban of {wanted.kind} {wanted.value}")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    return DONE


def _describe(ban: Ban, now: float) -> str:
    until = f"for {int(ban.until - now)} s more" if ban.until else "until it is lifted"
    return f"{ban.kind} {ban.value!r} {until}{f': {ban.why}' if ban.why else ''}"
