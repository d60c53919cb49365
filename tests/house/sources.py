"""The files of the project, each read and parsed once for all tests of a process."""

from __future__ import annotations

import ast
import gc
import subprocess
from functools import cache
from pathlib import Path
from typing import Final, TypeVar, cast

ROOT: Final = Path(__file__).parents[2]
Node = TypeVar("Node", bound=ast.AST)


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is, or may be, committed."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive: what is hidden or made by tools does not count
        found = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part.startswith(".") or part == "__pycache__" or part.endswith(".egg-info")
                for part in path.relative_to(ROOT).parts
            )
        ]
    return tuple(sorted(path for path in found if path.is_file()))


class Source:
    """A file of Python: its module's name, its text, its syntax tree, and the nodes of that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.text = path.read_text()
        was_enabled = gc.isenabled()
        gc.disable()  # all of it stays: looking for garbage takes four times as long as parsing
        try:
            self.tree = ast.parse(self.text, str(path))
            self.nodes = tuple(ast.walk(self.tree))
        finally:
            if was_enabled:
                gc.enable()
        self._by_class: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self.nodes:
            self._by_class.setdefault(type(node), []).append(node)

    def each(self, kind: type[Node]) -> list[Node]:
        """The nodes of this very class."""
        return cast("list[Node]", self._by_class.get(kind, []))

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [*self.each(ast.FunctionDef), *self.each(ast.AsyncFunctionDef)]

    def at(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


@cache
def source(path: Path) -> Source:
    return Source(path)


@cache
def modules(*tops: str) -> tuple[Source, ...]:
    """The modules below these top-level folders."""
    return tuple(
        source(path)
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in tops
    )


def forget() -> None:
    """Let all of them go."""
    modules.cache_clear()
    source.cache_clear()
