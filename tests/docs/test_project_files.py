"""The files that carry the project on: workflow, hooks, templates, the site's table of contents."""

from __future__ import annotations

import configparser
import re
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.blocks import ROOT

GITHUB: Final = ROOT / ".github"


def test_the_workflow_runs_the_one_script() -> None:
    flow = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())
    steps = [step.get("run") for job in flow["jobs"].values() for step in job["steps"]]
    assert [run for run in steps if run] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    assert flow["permissions"] == {"contents": "read"}


def test_hooks_call_what_is_there() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    checked = (ROOT / "Makefile").read_text()
    for hook in hooks:
        program, *arguments = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        tool = program.rpartition("/")[2]
        if tool == "python":
            assert (ROOT / arguments[0]).exists()
        else:
            assert f"$(BIN)/{tool}" in checked, "make check runs the same"


def test_templates_have_their_head() -> None:
    for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.md"):
        _, head, _ = path.read_text().split("---\n", 2)
        assert {"name", "about", "labels"} <= yaml.safe_load(head).keys()


def test_the_editors_settings_are_those_of_the_formatter() -> None:
    parser = configparser.ConfigParser()
    parser.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f"line-length = {parser['*.py']['max_line_length']}\n" in project
    assert parser["Makefile"]["indent_style"] == "tab"


def _pages(found: Any) -> list[str]:
    if isinstance(found, str):
        return [found]
    parts = found.values() if isinstance(found, dict) else found
    return [page for part in parts for page in _pages(part)]


@pytest.fixture
def site() -> str:
    return (ROOT / "deploy" / "mkdocs.yml").read_text()


def test_every_page_is_in_the_table_of_contents(site: str) -> None:
    nav = yaml.safe_load(re.sub(r"!!python/\S+", "", site))["nav"]
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    wanted = [page for page in pages if not re.match(r"decisions/\d", page)]
    assert sorted(_pages(nav)) == sorted(wanted)
