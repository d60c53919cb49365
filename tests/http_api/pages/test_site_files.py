"""The page's files: all are served, from this server alone, with nothing inline."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mqtt_broker.http_api.pages import site_files
from mqtt_broker.http_api.pages.site_files import PREFIX, ROOT, WebSocketAddress, policy

SCRIPTS = sorted(ROOT.rglob("*.js"))
# Ways to turn text into HTML or code. Text of clients is put in as text nodes alone.
SINKS = re.compile(
    r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function|"
    r"srcdoc|DOMParser|createContextualFragment|setHTML|javascript:"
)
OTHER_HOSTS = re.compile(r"(?:https?|wss?):?//(?!www\.w3\.org/2000/svg)[a-z0-9.$]+", re.IGNORECASE)


def test_every_file_has_a_type_and_is_served() -> None:
    on_disk = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()}
    assert set(site_files.site_files()) == on_disk


def test_files_are_small() -> None:
    found = site_files.site_files()
    assert {name: len(one.body) for name, one in found.items() if len(one.body) > 40_000} == {}
    assert sum(len(one.gzipped) for one in found.values()) < 100_000


@pytest.mark.parametrize(
    ("host", "listeners", "connect"),
    [
        ("127.0.0.1:8080", [], "'self'"),
        ("broker:8080", [WebSocketAddress(8083, False)], "'self' ws://broker:8083"),
        (
            "fleet.example",
            [WebSocketAddress(8083, False), WebSocketAddress(8084, True)],
            "'self' ws://fleet.example:8083 wss://fleet.example:8084",
        ),
        ("[::1]:8080", [WebSocketAddress(8083, False)], "'self'"),
        ("[::1]", [WebSocketAddress(8083, False)], "'self'"),
        ("a; script-src *:1", [WebSocketAddress(8083, False)], "'self'"),
        ("", [WebSocketAddress(8083, False)], "'self'"),
    ],
)
def test_the_policy_names_this_server_and_its_listeners(
    host: str, listeners: list[WebSocketAddress], connect: str
) -> None:
    text = policy(host, listeners)
    directives = dict(part.strip().split(" ", 1) for part in text.split(";"))
    assert directives["connect-src"] == connect
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == "'self'"
    assert "unsafe" not in text and "*" not in text


def test_paths_of_the_page_and_no_others() -> None:
    assert site_files.is_site_path("/")
    assert site_files.is_site_path(PREFIX + "js/main.js")
    assert not site_files.is_site_path("/api/v1/clients")
    assert not site_files.is_site_path("/site")


def test_nothing_is_inline() -> None:
    text = (ROOT / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", text) == []
    assert "<style" not in text and not re.search(r"\s(?:style|on\w+)=", text)


def test_no_file_knows_another_host() -> None:
    for path in ROOT.rglob("*"):
        if path.is_file():
            example = path.read_text().replace("ws://127.0.0.1:8083/mqtt", "")
            assert OTHER_HOSTS.findall(example.replace("://${host}", "")) == [], path.name


def test_no_script_turns_text_into_html() -> None:
    for path in SCRIPTS:
        found = SINKS.findall(path.read_text())
        assert found == [], path.name


def test_every_import_and_link_exists() -> None:
    for path in SCRIPTS:
        for name in re.findall(r"""(?:from|import\()\s*"(\.[^"]+)\"""", path.read_text()):
            assert (path.parent / name).is_file(), f"{path.name}: {name}"
    for name in re.findall(r'(?:src|href)="(site/[^"]+)"', (ROOT / "index.html").read_text()):
        assert (ROOT / name.removeprefix("site/")).is_file()


def test_scripts_use_what_they_import() -> None:
    findings = []
    for path in SCRIPTS:
        text = path.read_text()
        for names in re.findall(r"^import \{([^}]*)\} from", text, re.MULTILINE):
            for name in names.split(","):
                used = name.split(" as ")[-1].strip()
                if used and len(re.findall(rf"(?<![\w$\".]){re.escape(used)}\b", text)) < 2:
                    findings.append(f"{path.relative_to(ROOT)}: {used}")
    assert findings == []


def test_scripts_are_valid(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js: there is no node")
    for path in SCRIPTS:
        module = tmp_path / f"{path.stem}.mjs"
        module.write_bytes(path.read_bytes())
        ran = subprocess.run([node, "--check", module], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{path.name}: {ran.stderr}"
