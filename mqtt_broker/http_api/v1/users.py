"""`/api/v1/users`, `/roles` and `/rules`: access control, changed where it is kept.

Users are changed in the password file or the SQL tables, rules in the configuration file or the
table. The file is replaced as a whole, and its other lines and comments stay. A change is in force
before the answer is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal, TypedDict

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.access_admin import (
    ACCESS_ADMIN,
    AccessAdmin,
    RoleFigures,
    RuleFigures,
    UserFigures,
)
from mqtt_broker.http_api.request.broker_interface import NotSupported
from mqtt_broker.http_api.request.changes import changing
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Call, Operation, Reply, delete, get, patch, post
from mqtt_broker.http_api.request.paging import Page, Paging, take_page
from mqtt_broker.http_api.request.problems import not_found

ROOT: Final = "/api/v1"
_CHARS_MAX: Final = 1_024
_MEMBERS_MAX: Final = 1_000
Name = Annotated[str, Limits(chars_min=1, chars_max=_CHARS_MAX)]
Names = Annotated[list[str], Limits(items_max=_MEMBERS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhichUsers(Paging):
    """Filters of users."""

    q: Annotated[str, Limits(chars_max=256, text="part of the name")] = ""
    role: Annotated[str, Limits(chars_max=256)] = ""


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user to create."""

    name: Name
    password: Name
    roles: Names = field(default_factory=list)
    scram: Annotated[bool, Limits(text="keys for SCRAM-SHA-256 instead of a hash")] = False
    source: Annotated[str, Limits(chars_max=256, text="name of the [[auth]] table")] = ""


@dataclass(frozen=True, slots=True)
class UserChange:
    """Members of a user to change."""

    password: Annotated[str | None, Limits(chars_max=_CHARS_MAX)] = None
    roles: Annotated[list[str] | None, Limits(items_max=_MEMBERS_MAX)] = None
    scram: bool = False
    is_enabled: Annotated[bool | None, Limits(text="of users in SQL")] = None


@dataclass(frozen=True, slots=True)
class NewRule:
    """A rule to add behind those of its source."""

    permit: Literal["allow", "deny"]
    topics: Annotated[list[str], Limits(items_max=_MEMBERS_MAX)]
    action: Literal["publish", "subscribe", "all"] = "all"
    users: Names = field(default_factory=list)
    roles: Names = field(default_factory=list)
    clients: Names = field(default_factory=list)
    addresses: Names = field(default_factory=list)
    anonymous: bool = False
    source: Literal["file", "sql"] = "file"
    position: Annotated[int | None, Limits(0, 999_999_999, text="in SQL; the end if missing")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class RuleChange:
    """Members of a rule to change; those that are missing stay."""

    permit: Literal["allow", "deny"] | None = None
    topics: Annotated[list[str] | None, Limits(items_max=_MEMBERS_MAX)] = None
    action: Literal["publish", "subscribe", "all"] | None = None
    users: Annotated[list[str] | None, Limits(items_max=_MEMBERS_MAX)] = None
    roles: Annotated[list[str] | None, Limits(items_max=_MEMBERS_MAX)] = None
    clients: Annotated[list[str] | None, Limits(items_max=_MEMBERS_MAX)] = None
    addresses: Annotated[list[str] | None, Limits(items_max=_MEMBERS_MAX)] = None
    anonymous: bool | None = None


class RuleList(TypedDict):
    """All rules, in the order in which they are asked."""

    items: list[RuleFigures]
    total: int


class RoleList(TypedDict):
    """The roles of users in password files and SQL, and those of `[[roles]]` with their place."""

    items: list[RoleFigures]
    total: int


@dataclass(frozen=True, slots=True)
class NewRole:
    """A role to give to users."""

    role: Name
    users: Annotated[list[str], Limits(items_max=_MEMBERS_MAX)]


@dataclass(frozen=True, slots=True)
class Members:
    """The users that have a role; all others lose it."""

    users: Annotated[list[str], Limits(items_max=_MEMBERS_MAX)]


class Removed(TypedDict):
    """The thing that was removed."""

    removed: str


def operations(site: Site) -> list[Operation]:
    """Return the operations of users, roles and rules."""
    users, roles, rules = _Users(site), _Roles(site), _Rules(site)
    admin: dict[str, Any] = {"role": access.ADMIN, "errors": (404, 409, 412)}
    user, role, rule = f"{ROOT}/users/{{name}}", f"{ROOT}/roles/{{role}}", f"{ROOT}/rules/{{id}}"
    return [
        get(f"{ROOT}/users", users.list, role=access.ADMIN, errors=(409,)),
        post(f"{ROOT}/users", users.add, status=201, role=access.ADMIN, errors=(409,)),
        get(user, users.show, etag=True, **admin),
        patch(user, users.change, etag=True, **admin),
        delete(user, users.remove, **admin),
        get(f"{ROOT}/roles", roles.list, role=access.ADMIN, errors=(409,)),
        post(f"{ROOT}/roles", roles.add, status=201, role=access.ADMIN, errors=(404, 409)),
        patch(role, roles.change, **admin),
        delete(role, roles.remove, **admin),
        get(f"{ROOT}/rules", rules.list, role=access.OPERATOR, errors=(409,)),
        post(f"{ROOT}/rules", rules.add, status=201, role=access.ADMIN, errors=(409,)),
        get(rule, rules.show, etag=True, **{**admin, "role": access.OPERATOR}),
        patch(rule, rules.change, etag=True, **admin),
        delete(rule, rules.remove, **admin),
    ]


class _Part:
    """Access to the part of the broker interface."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def _admin(self) -> AccessAdmin:
        return self._site.broker.part(ACCESS_ADMIN)

    async def _users(self) -> list[UserFigures]:
        with changing():
            return await self._site.in_thread(self._admin.users)

    async def _apply(self) -> None:
        failed = await self._site.ask(self._admin.apply)
        if failed:
            said = "; ".join(f"{name}: {why}" for name, why in failed.items())
            raise NotSupported(f"it is written, and not in force: {said}")


class _Users(_Part):
    async def list(self, query: WhichUsers) -> Page[UserFigures]:
        """List the users of password files and SQL tables."""

        def matches(user: UserFigures) -> bool:
            return query.q in user.name and (not query.role or query.role in user.roles)

        return await take_page(
            await self._users(),
            query,
            lambda user: (user.name, user.source),
            lambda user: user,
            matches=matches,
        )

    async def show(self, name: str) -> UserFigures:
        """Show a user, without a password or a hash."""
        for user in await self._users():
            if user.name == name:
                return user
        raise not_found(f"there is no user {name!r}")

    async def add(self, body: NewUser) -> Reply[UserFigures]:
        """Create a user, in the first password file or SQL tables unless `source` names others."""
        with changing():
            made = await self._site.in_thread(
                self._admin.put_user,
                body.name,
                password=body.password,
                scram=body.scram,
                roles=body.roles,
                is_enabled=None,
                source=body.source,
                is_new=True,
            )
        await self._apply()
        return Reply(made, 201)

    async def change(self, name: str, body: UserChange, call: Call) -> UserFigures:
        """Change the password or the roles of a user, or disable it."""
        call.check_match(await self.show(name))
        with changing():
            changed = await self._site.in_thread(
                self._admin.put_user,
                name,
                password=body.password,
                scram=body.scram,
                roles=body.roles,
                is_enabled=body.is_enabled,
                source="",
                is_new=False,
            )
        await self._apply()
        return changed

    async def remove(self, name: str, call: Call) -> Removed:
        """Delete a user; its clients are disconnected."""
        call.check_match(await self.show(name))
        with changing():
            await self._site.in_thread(self._admin.remove_user, name)
        await self._apply()
        return {"removed": name}


class _Roles(_Part):
    async def list(self) -> RoleList:
        """List the roles of users, and those that `[[roles]]` of the configuration file give."""
        found: dict[str, list[str]] = {}
        for user in await self._users():
            for role in user.roles:
                found.setdefault(role, []).append(user.name)
        items = [RoleFigures(role, sorted(names), "") for role, names in found.items()]
        items += await self._configured()
        items.sort(key=lambda item: (item.role, item.place))
        return {"items": items, "total": len(items)}

    async def _configured(self) -> Sequence[RoleFigures]:
        with changing():
            return await self._site.in_thread(self._admin.configured_roles)

    async def add(self, body: NewRole) -> Reply[RoleFigures]:
        """Give a role to users."""
        users = {user.name: user for user in await self._users()}
        for name in body.users:
            if name not in users:
                raise not_found(f"there is no user {name!r}")
        for name in dict.fromkeys(body.users):
            await self._set(users[name], [*users[name].roles, body.role])
        await self._apply()
        return Reply(await self._find(body.role), 201)

    async def change(self, role: str, body: Members, call: Call) -> RoleFigures:
        """Set the users that have a role."""
        call.check_match(await self._find_kept(role))
        users = {user.name: user for user in await self._users()}
        for name in body.users:
            if name not in users:
                raise not_found(f"there is no user {name!r}")
        for user in users.values():
            others = [one for one in user.roles if one != role]
            await self._set(user, [*others, role] if user.name in body.users else others)
        await self._apply()
        return RoleFigures(role, sorted(dict.fromkeys(body.users)), "")

    async def remove(self, role: str, call: Call) -> Removed:
        """Take a role from every user."""
        call.check_match(await self._find_kept(role))
        for user in await self._users():
            await self._set(user, [one for one in user.roles if one != role])
        await self._apply()
        return {"removed": role}

    async def _find(self, role: str) -> RoleFigures:
        for item in (await self.list())["items"]:
            if item.role == role and not item.place:
                return item
        raise not_found(f"no user has the role {role!r}")

    async def _find_kept(self, role: str) -> RoleFigures:
        """Return a role that is kept with its users alone."""
        for item in await self._configured():
            if item.role == role:
                raise NotSupported(
                    f"the configuration gives role {role!r} to users: edit [[roles]] at "
                    f"{item.place}, and reload"
                )
        return await self._find(role)

    async def _set(self, user: UserFigures, roles: Names) -> None:
        if sorted(set(roles)) == sorted(user.roles):
            return
        with changing():
            await self._site.in_thread(
                self._admin.put_user,
                user.name,
                password=None,
                scram=False,
                roles=list(dict.fromkeys(roles)),
                is_enabled=None,
                source="",
                is_new=False,
            )


class _Rules(_Part):
    async def list(self) -> RuleList:
        """List the access rules, in the order in which they are asked."""
        with changing():
            found = await self._site.in_thread(self._admin.rules)
        return {"items": found, "total": len(found)}

    async def show(self, id: str) -> RuleFigures:
        """Show a rule."""
        with changing():
            return await self._site.in_thread(self._admin.rule, id)

    async def add(self, body: NewRule) -> Reply[RuleFigures]:
        """Add a rule to the configuration file or to the table in SQL."""
        with changing():
            made = await self._site.in_thread(self._admin.put_rule, body.source, asdict(body))
        await self._apply()
        return Reply(await self.show(made), 201)

    async def change(self, id: str, body: RuleChange, call: Call) -> RuleFigures:
        """Change a rule where it stands."""
        before = await self.show(id)
        call.check_match(before)
        given = {key: value for key, value in asdict(body).items() if value is not None}
        with changing():
            changed = await self._site.in_thread(
                self._admin.put_rule, id, {**asdict(before), **given}
            )
        await self._apply()
        return await self.show(changed)

    async def remove(self, id: str, call: Call) -> Removed:
        """Delete a rule. The last rule of a file stays: without any, everything is allowed."""
        call.check_match(await self.show(id))
        with changing():
            await self._site.in_thread(self._admin.remove_rule, id)
        await self._apply()
        return {"removed": id}
