"""`/api/v1/logs` and `/log-level`: the last lines of the log, and the lowest level logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypedDict

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operating import OPERATING, LogLineFigures
from mqtt_broker.http_api.request.operations import Operation, get, put

ROOT: Final = "/api/v1"
_LINES_MAX: Final = 2_000
Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class WhichLines:
    """The lines to return."""

    level: Annotated[Level, Limits(text="lines of this level and above")] = "debug"
    q: Annotated[str, Limits(chars_max=256, text="text of the line, in any case")] = ""
    after: Annotated[int, Limits(0, text="lines after the one with this number")] = 0
    limit: Annotated[int, Limits(1, _LINES_MAX, text="the newest so many")] = 200


class Lines(TypedDict):
    """Lines of the log, oldest first."""

    items: list[LogLineFigures]
    total: Annotated[int, Limits(text="lines that match, also beyond `limit`")]
    last: Annotated[int, Limits(text="number of the last line, for `after`")]


@dataclass(frozen=True, slots=True)
class LogLevel:
    """The lowest level that is logged."""

    level: Level


def operations(site: Site) -> list[Operation]:
    """Return the operations of the log."""
    page = _Logs(site)
    return [
        get(f"{ROOT}/logs", page.lines, role=access.OPERATOR, errors=(409,)),
        get(f"{ROOT}/log-level", page.level),
        put(f"{ROOT}/log-level", page.set_level),
    ]


class _Logs:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def lines(self, query: WhichLines) -> Lines:
        """List the last lines of the log, of which the broker keeps 2,000."""
        operating = self._site.broker.part(OPERATING)
        found = list(operating.log_lines(query.level, query.q, query.after))
        last = found[-1].number if found else query.after
        return {"items": found[-query.limit :], "total": len(found), "last": last}

    async def level(self) -> LogLevel:
        """Show the lowest level that is logged."""
        return _shown(self._site.broker.part(OPERATING).log_level())

    async def set_level(self, body: LogLevel) -> LogLevel:
        """Change the lowest level that is logged, until the broker stops."""
        operating = self._site.broker.part(OPERATING)
        operating.set_log_level(body.level)
        return _shown(operating.log_level())


def _shown(level: str) -> LogLevel:
    known: dict[str, Level] = {
        "debug": "debug", "info": "info", "warning": "warning", "error": "error",
    }  # fmt: skip
    return LogLevel(known[level])
