"""Every rule that binds a server stands in the source and is named by a test.

A tag is `MQTT-3.3.1-2` (or `MQTT3-3.1.3-8`) in a comment or in a Violation. A test names a
rule by `@pytest.mark.rule("MQTT-...")` or in the `rules:` line of a vector. A section of the
specification that has no numbered statement is written without the last part, `MQTT-2.2.2.2`,
and is nobody's business here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spec.rules import MOOT, RULES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("mqtt_broker", "sessions", "qos")
TAG = re.compile(r"\bMQTT3?-\d+(?:\.\d+)+-\d+\b")
MARK_CALL = re.compile(r"pytest\.mark\.rule\(([^)]*)\)")
RULES_LINE = re.compile(r"^rules:(.*)$", re.MULTILINE)

SERVER = sorted(
    number
    for number, rule in RULES.items()
    if rule.binds in ("server", "both") and number not in MOOT
)


def _source_tags() -> dict[str, list[str]]:
    tags: dict[str, list[str]] = {}
    for room in SOURCES:
        for path in sorted((ROOT / room).rglob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for tag in TAG.findall(line):
                    tags.setdefault(tag, []).append(f"{path.relative_to(ROOT)}:{number}")
    return tags


def _test_tags() -> dict[str, list[str]]:
    tags: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix == ".py":
            found = [
                tag for call in MARK_CALL.findall(path.read_text()) for tag in TAG.findall(call)
            ]
        elif path.suffix == ".vec":
            found = [
                tag for line in RULES_LINE.findall(path.read_text()) for tag in TAG.findall(line)
            ]
        else:
            continue
        for tag in found:
            tags.setdefault(tag, []).append(str(path.relative_to(ROOT)))
    return tags


def _listing(numbers: list[str]) -> str:
    return "\n".join(f"  {number:15} {RULES[number].text}" for number in numbers)


def test_every_tag_in_the_source_is_a_rule() -> None:
    unknown = {tag: where for tag, where in _source_tags().items() if tag not in RULES}
    assert not unknown, "tags that are no rule: " + ", ".join(
        f"{tag} ({', '.join(where)})" for tag, where in sorted(unknown.items())
    )


def test_every_rule_a_test_names_is_a_rule() -> None:
    unknown = {tag: where for tag, where in _test_tags().items() if tag not in RULES}
    assert not unknown, f"tests name what is no rule: {unknown}"


def test_every_server_rule_has_a_test() -> None:
    named = _test_tags()
    missing = [number for number in SERVER if number not in named]
    assert not missing, f"{len(missing)} rules without a test:\n{_listing(missing)}"


def test_every_server_rule_stands_in_the_source() -> None:
    tagged = _source_tags()
    missing = [number for number in SERVER if number not in tagged]
    assert not missing, f"{len(missing)} rules without a line:\n{_listing(missing)}"


def test_moot_rules_are_rules() -> None:
    assert set(MOOT) <= set(RULES)


@pytest.mark.parametrize("prefix", ["MQTT-", "MQTT3-"])
def test_numbers_are_well_formed(prefix: str) -> None:
    numbers = [number for number in RULES if number.startswith(prefix)]
    assert numbers
    assert all(TAG.fullmatch(number) for number in numbers)
