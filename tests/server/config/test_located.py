"""Lines of keys, in random documents that `tomllib` takes."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from typing import Any

from mqtt_broker.server.config.located import LocatedTable, locate

DOCUMENTS = 3_000
KEYS = ["a", "b", '"c d"', "'e.f'", "a.b", "b . c", '"x\\"y"', '"\\u00e9"', "1", "-"]
VALUES = [
    "1", '"s"', "'l'", '"""m\n#[x]\n"q" ""x"""', "'''n\n[[y]]\n'q' '''", '[1, # ]\n "]", [2]]',
    '{ x = 1, y = { z = "}" } }', "[{p=1},\n{q=[1,{r=2}]}]", "1979-05-27T07:32:00Z", '"\\\\"',
    '"a#b"', '""""four""""', '"\\""', "[]", "{}", "'#'", '"""\\\n  x"""', '"""a\\""""',
]  # fmt: skip
HEADERS = [
    "[a]", "[b.c]", "[[a]]", "[[ t . u ]]", "[[t]]", "[t.u]", '["c d"]', "[ 'e.f' . g ]",
    "[[a.b]]", '[x."]"]',
]  # fmt: skip


def documents() -> Iterator[str]:
    rng = random.Random(17)
    for _ in range(DOCUMENTS):
        lines = []
        for _ in range(rng.randrange(1, 8)):
            kind = rng.random()
            if kind < 0.45:
                end = rng.choice(["", " # c = [", "\t"])
                lines.append(
                    f"{rng.choice(['', '  '])}{rng.choice(KEYS)} = {rng.choice(VALUES)}{end}"
                )
            elif kind < 0.85:
                lines.append(rng.choice(HEADERS) + rng.choice(["", " # ]]"]))
            else:
                lines.append(rng.choice(["", "# x = 1", "#[[a]]"]))
        yield "\n".join(lines)


def check(found: Any, lines: list[str]) -> None:
    if isinstance(found, list):
        for one in found:
            check(one, lines)
    elif isinstance(found, LocatedTable):
        for key, value in found.items():
            assert found.lines.get(key, found.line), key
            check(value, lines)
        for key, line in found.lines.items():
            text = lines[line - 1]
            assert key in text or key.replace('"', '\\"') in text or "u00e9" in text, (key, text)


def test_every_key_has_its_line() -> None:
    valid = 0
    for text in documents():
        try:
            values = tomllib.loads(text)
        except ValueError:
            continue
        valid += 1
        found = locate(values, text, "f")
        assert found == values, text
        check(found, text.split("\n"))
    assert valid > DOCUMENTS // 2
