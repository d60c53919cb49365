"""`AccessAdmin` of a running server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from mqtt_broker.http_api.operating import Ask
from mqtt_broker.http_api.request.access_admin import RoleFigures, RuleFigures, UserFigures
from mqtt_broker.http_api.request.broker_interface import NotSupported
from mqtt_broker.http_api.request.operating import InvalidChange, UnknownName
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.server.process.reload import ReloadReport
from mqtt_broker.server.server import Server
from mqtt_broker.server.services.access_changes import AccessChanges, KeptRule, NotThere, User
from mqtt_broker.server.services.security import SecurityService

T = TypeVar("T")


class ServerAccessAdmin:
    """Changes users and rules of a server."""

    def __init__(self, server: Server, security: SecurityService, ask: Ask) -> None:
        self._server = server
        self._security = security
        self._ask = ask

    def users(self) -> list[UserFigures]:
        return [_user(user) for user in self._call(lambda changes: changes.users())]

    def put_user(
        self,
        name: str,
        *,
        password: str | None,
        scram: bool,
        roles: Sequence[str] | None,
        is_enabled: bool | None,
        source: str,
        is_new: bool,
    ) -> UserFigures:
        return _user(
            self._call(
                lambda changes: changes.put_user(
                    name,
                    password=password,
                    scram=scram,
                    roles=roles,
                    is_enabled=is_enabled,
                    source=source,
                    is_new=is_new,
                )
            )
        )

    def remove_user(self, name: str) -> None:
        self._call(lambda changes: changes.remove_user(name))

    def configured_roles(self) -> list[RoleFigures]:
        found = self._call(lambda changes: changes.configured_roles())
        return [RoleFigures(one.role, list(one.users), one.place) for one in found]

    def rules(self) -> list[RuleFigures]:
        return [_rule(rule) for rule in self._call(lambda changes: changes.rules())]

    def rule(self, where: str) -> RuleFigures:
        return _rule(self._call(lambda changes: changes.rule(where)))

    def put_rule(self, where: str, rule: Mapping[str, Any]) -> str:
        return self._call(lambda changes: changes.put_rule(where, rule))

    def remove_rule(self, where: str) -> None:
        self._call(lambda changes: changes.remove_rule(where))

    def apply(self) -> Future[dict[str, str]]:
        done: Future[dict[str, str]] = Future()

        def tell(report: ReloadReport) -> None:
            refreshed = self._security.refresh()
            refreshed.add_done_callback(lambda found: finish(report, found))

        def finish(report: ReloadReport, found: Future[None]) -> None:
            error = found.exception()
            failed = dict(report.failed)
            if error is not None:
                failed["tables"] = str(error)
            done.set_result(failed)

        started = self._ask(lambda: self._server.reload.report(tell))

        def check(found: Future[Any]) -> None:
            error = found.exception()
            if error is not None:
                done.set_exception(error)

        started.add_done_callback(check)
        return done

    def _call(self, act: Callable[[AccessChanges], T]) -> T:
        """Call a method of the changes; raise its errors as those of the interface."""
        try:
            return act(self._security.changes())
        except FileError as error:
            raise InvalidChange(str(error)) from None
        except NotThere as error:
            raise UnknownName(str(error)) from None
        except Unavailable as error:
            raise NotSupported(str(error)) from None


def _user(user: User) -> UserFigures:
    found = dataclasses.asdict(user)
    return UserFigures(**{**found, "roles": list(user.roles)})


def _rule(rule: KeptRule) -> RuleFigures:
    return RuleFigures(
        rule.id,
        rule.place,
        rule.permit,
        rule.action,
        list(rule.topics),
        list(rule.users),
        list(rule.roles),
        list(rule.clients),
        list(rule.addresses),
        rule.anonymous,
    )
