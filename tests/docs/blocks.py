"""The fenced blocks of README and docs, each with what the comment in front of it says.

A comment `<!-- not run: REASON -->` on the line before a block excuses it from running; it is still
parsed. `<!-- ends: SIGTERM -->` says that a program runs until it gets that signal, which it does
after its first line of output. `<!-- with: broker -->` says that it needs a broker with a stream,
`<!-- with: recorder -->` one that the clients of docs/WHY.md are connected to.
`<!-- terminal: 2 -->` says in which terminal a reader pastes it; without it, in one of his own.
`<!-- file: NAME -->` says which file of the reader the block is, `<!-- logged: broker -->` that
lines of the broker's log hold these, `<!-- needs: PROGRAMS -->` that it runs where these are.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
# Documents whose steps follow each other: `test_first_steps` runs them in order.
IN_ORDER: Final = (
    "README.md",
    "docs/tutorial.md",
    "docs/BACKUP.md",
    "docs/TROUBLESHOOTING.md",
    "docs/SIZING.md",
    "docs/how-to/devices.md",
    "docs/how-to/operators.md",
    "docs/how-to/analysts.md",
    "docs/how-to/testers.md",
)
_FENCE: Final = re.compile(
    r"(?:^[ \t]*<!-- (?P<key>[a-z ]+): (?P<text>.+?) -->\n)?"
    r"^(?P<indent>[ \t]*)```(?P<language>[a-z]*)\n(?P<body>.*?)^[ \t]*```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    path: Path
    line: int
    language: str
    text: str
    key: str = ""  # of the comment in front of it
    value: str = ""

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@cache
def documents() -> tuple[Path, ...]:
    return (
        ROOT / "README.md",
        ROOT / "deploy" / "README.md",
        *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "reference"),
        *sorted((ROOT / ".github").rglob("*.md")),
    )


@cache
def blocks() -> tuple[Block, ...]:
    found = []
    for path in documents():
        text = path.read_text()
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start("indent")) + 1
            body = textwrap.dedent(match["body"])
            found.append(
                Block(path, line, match["language"], body, match["key"] or "", match["text"] or "")
            )
    return tuple(found)


def of(*languages: str) -> list[Block]:
    return [block for block in blocks() if block.language in languages]
