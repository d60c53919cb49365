"""What `make` installs: only what a task needs, at the versions of deploy/constraints.txt."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def install() -> ModuleType:
    return loaded("install")


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9-]+", requirement)
    assert found is not None
    return found[0].lower()


def test_every_requirement_is_locked(install: ModuleType) -> None:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = {name_of(text) for text in install.requirements(EXTRAS)}
    assert wanted <= set(locked)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in locked)
    assert "fleetmq" not in locked


def test_the_broker_needs_no_more_than_its_own(install: ModuleType) -> None:
    assert install.requirements([]) == set(PROJECT["dependencies"])
    assert not {name_of(text) for text in install.requirements([])} & {
        name_of(text) for extra in ("sim", "spark", "postgres") for text in EXTRAS[extra]
    }


def test_an_extra_may_name_others(install: ModuleType) -> None:
    assert install.requirements(["dev"]) >= install.requirements(["postgres", "schemas", "spark"])
    assert not any(name_of(text) == "fleetmq" for text in install.requirements(["dev"]))


@pytest.mark.parametrize(("java", "extras"), [("/bin/java", ["sim", "spark"]), (None, ["sim"])])
def test_the_demo_takes_spark_where_there_is_java(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, java: str | None, extras: list[str]
) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda name: java)
    assert install.extras_of(["demo"]) == extras


def test_what_an_application_installs_beside_us_is_not_pinned() -> None:
    for text in PROJECT["dependencies"]:
        assert "==" not in text and ">=" in text, text


def test_a_range_is_installed_with_the_tools_of_its_tests(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With progress, as all the other installations."""
    asked: list[list[str]] = []
    monkeypatch.setattr(install, "pip_install", lambda arguments, what: asked.append(arguments))
    install.main(["--range", "build/lowest.txt"])
    [(option, versions, *rest)] = asked
    assert (option, versions) == ("-c", "build/lowest.txt")
    assert {"--editable", ".[postgres,schemas]", "pgserver", "pytest"} <= set(rest)


def test_nothing_that_pip_left_of_a_copy_hides_the_working_tree(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caches of pytest are left, and their folder would be imported as the package."""
    for name in [*install.PACKAGES, "aiohttp"]:
        (tmp_path / name / "__pycache__").mkdir(parents=True)
        (tmp_path / name / "__pycache__" / "a.cpython-311-pytest-9.2.0.pyc").write_bytes(b"")
    asked: list[list[str]] = []
    monkeypatch.setattr(install, "pip_install", lambda arguments, what: asked.append(arguments))
    monkeypatch.setattr(install.sysconfig, "get_path", {"purelib": str(tmp_path)}.get)
    install.main(["--tree"])
    assert asked == [["--no-deps", "--editable", "."]]
    assert [path.name for path in tmp_path.iterdir()] == ["aiohttp"]
    assert install.PACKAGES == loaded("compile").PACKAGES


def test_a_failing_pip_is_said(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('Collecting x'); print('ERROR: no such package'); raise SystemExit(1)"
    run = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[str]:
        return run([sys.executable, "-c", script], **options)

    monkeypatch.setattr(install.subprocess, "Popen", popen)
    monkeypatch.setattr(install, "LOG", ROOT / "build" / "test-install.log")
    with pytest.raises(SystemExit, match=r"pip failed; all that it said is in build"):
        install.pip_install(["x"], "installing x")


@pytest.mark.parametrize("option", ["--require", "--wheel"])
def test_what_has_to_be_compiled_and_cannot_be_fails(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiling = loaded("compile")
    monkeypatch.setenv("FLEETMQ_COMPILE", "0")
    assert compiling.main([option]) == 1
    assert capsys.readouterr().out == "compile: FleetMQ is not compiled: FLEETMQ_COMPILE=0\n"


def test_without_mypy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = loaded("compile")
    monkeypatch.delenv("FLEETMQ_COMPILE", raising=False)
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    assert compiling.why_not() == "mypy is not installed: pip install '.[build]'"


@pytest.mark.parametrize("option", ["--require", "--wheel"])
def test_a_compiler_that_fails_fails_the_build(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is installed in place of what was asked for."""
    compiling = loaded("compile")
    monkeypatch.setattr(compiling, "KEPT", tmp_path)  # nothing was compiled before
    monkeypatch.delenv("FLEETMQ_COMPILE", raising=False)
    monkeypatch.setattr(compiling, "why_not", str)
    laid_out: list[bool] = []
    monkeypatch.setattr(compiling, "lay_out", lambda *, compiled: laid_out.append(compiled))
    monkeypatch.setattr(compiling, "pip", lambda *arguments: False)
    assert compiling.main([option]) == 1
    assert laid_out == [True], "no second attempt, interpreted"
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == ("compile: FleetMQ is not compiled: compiling failed, see build/product.log")


def test_the_same_sources_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = loaded("compile")
    product = tmp_path / "product"
    product.mkdir()
    source = product / "module.py"
    source.write_text("a = 1")
    monkeypatch.setattr(compiling, "PRODUCT", product)
    monkeypatch.setattr(compiling, "KEPT", tmp_path / "compiled")
    built: list[str] = []

    def pip(*arguments: str) -> bool:
        folder = Path(arguments[arguments.index("--wheel-dir") + 1])
        folder.mkdir(parents=True)
        built.append(source.read_text())
        (folder / "product.whl").write_text(built[-1])
        return source.read_text() != "broken"

    monkeypatch.setattr(compiling, "pip", pip)
    for _ in range(2):
        assert compiling.compiled_wheel().read_text() == "a = 1"
    assert built == ["a = 1"]
    source.write_text("broken")
    for _ in range(2):
        assert compiling.compiled_wheel() is None
    assert built == ["a = 1", "broken", "broken"]
    source.write_text("a = 2")
    assert compiling.compiled_wheel().read_text() == "a = 2"
    monkeypatch.setenv("CFLAGS", "-g")
    assert compiling.compiled_wheel().read_text() == "a = 2"
    assert built == ["a = 1", "broken", "broken", "a = 2", "a = 2"]
    assert len(list((tmp_path / "compiled").iterdir())) == 1
