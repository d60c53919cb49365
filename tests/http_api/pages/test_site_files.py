"""The page's files: all are served, from this server alone, with nothing inline."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mqtt_broker.http_api.pages import site_files
from mqtt_broker.http_api.pages.site_files import PREFIX, ROOT, WebSocketAddress, policy
from tests.http_api.brokers import LogBroker, Serving

SCRIPTS = sorted(ROOT.rglob("*.js"))
# One process for all of them: `node --check` takes one file.
PARSE = """\
const vm = require("vm"), fs = require("fs");
for (const path of process.argv.slice(1)) {
  try { new vm.SourceTextModule(fs.readFileSync(path, "utf8"), {identifier: path}); }
  catch (error) { console.log(error.stack); }
}
"""
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


@pytest.mark.parametrize("token", ["", "secret"])
def test_the_page_needs_no_login_and_is_kept_by_its_tag(broker: LogBroker, token: str) -> None:
    with Serving(broker, broker.root, token=token) as serving:
        connection = serving.connect()
        for path in ("/", PREFIX + "js/main.js", PREFIX + "style.css", PREFIX + "icon.svg"):
            connection.request("GET", path, headers={"Sec-Fetch-Site": "same-origin"})
            reply = connection.getresponse()
            body = reply.read()
            assert reply.status == 200 and body
            assert reply.headers["Cache-Control"] == "no-cache"
            assert reply.headers["Server"] == "FleetMQ"
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
            connection.request("GET", path, headers={"If-None-Match": reply.headers["ETag"]})
            again = connection.getresponse()
            assert (again.status, again.read()) == (304, b"")
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            packed = connection.getresponse()
            assert gzip.decompress(packed.read()) == body
            assert packed.headers["Content-Encoding"] == "gzip"
        connection.close()
        assert serving.get("/site/none.js").status == 404
        assert serving.get("/site/../site_files.py").status == 404
        assert serving.get("/site/%2e%2e/site_files.py").status == 404
        assert serving.ask("POST", "/", {}).status == 405
        assert serving.lines == []


def test_a_link_of_another_site_opens_the_page_and_nothing_else(http: Serving) -> None:
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert http.get("/", headers=foreign).status == 200
    assert http.get("/site/js/main.js", headers=foreign).status == 403
    assert http.get("/api/v1/streams", headers=foreign).status == 403
    origin = {"Origin": "http://other.example"}
    assert http.get("/", headers=foreign | origin).status == 403


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
    command = [node, "--experimental-vm-modules", "--no-warnings", "-e", PARSE]
    for paths, findings in ((SCRIPTS, 0), ([*SCRIPTS, _broken(tmp_path)], 1)):
        ran = subprocess.run([*command, *paths], capture_output=True, text=True, check=True)
        assert ran.stdout.count("SyntaxError") == findings, ran.stdout


def _broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.js"
    path.write_text("export const a = ;")
    return path
