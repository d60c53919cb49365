"""The page in a browser, in front of a broker: what it shows is there, and what it does is done."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.webdriver import Browser
from tests.server.broker_process import Process, http_address

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>/#%"


class Real:
    """A broker with a plain and a WebSocket listener, and the URL of its page."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.url = http_address(process)

    def post(self, path: str, body: object) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status < 300


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    root: Path = tmp_path_factory.mktemp("page")
    config = root / "fleet.toml"
    config.write_text(
        f'data_dir = "{root / "data"}"\n'
        '[[listeners]]\nname = "mqtt"\nport = 0\n'
        '[[listeners]]\nname = "browsers"\nport = 0\nwebsocket = true\n'
        f'[security]\nbans_file = "{root / "bans.toml"}"\n'
    )
    options = ("--config", str(config), "--http", "127.0.0.1:0")
    with Process(*options, env={"FLEETMQ_DURABILITY": "commit"}) as process:
        yield Real(process)
        process.end()


def test_a_client_is_seen_and_kicked(browser: Browser, real: Real) -> None:
    raw = real.process.client(HOSTILE)
    browser.go(f"{real.url}/#/clients")
    browser.wait_text(HOSTILE)
    browser.click("tbody a")
    browser.wait("document.querySelector('h1').innerText === arguments[0]", HOSTILE)
    browser.wait_text("MQTT 5")
    browser.click_text("Kick", "main button")
    browser.click_text("Kick", "dialog button")
    assert raw.packet()[0] == 0xE0  # DISCONNECT
    raw.sock.close()
    assert browser.js("document.querySelectorAll('main img').length") == 0


def test_a_ban_keeps_a_client_out_until_it_is_lifted(browser: Browser, real: Real) -> None:
    raw = real.process.client("pump-9")
    browser.go(f"{real.url}/#/clients/pump-9")
    browser.click_text("Ban", "main button")
    browser.click_text("Ban", "dialog button")
    browser.wait("document.querySelector('dialog') === null")
    assert raw.packet()[0] == 0xE0
    raw.sock.close()
    browser.go(f"{real.url}/#/bans")
    browser.wait_text("pump-9")
    browser.click_text("Lift", "main button")
    browser.click_text("Lift", "dialog button")
    browser.wait_text("Nobody is banned")
    real.process.client("pump-9").sock.close()


def test_the_test_client_connects_publishes_and_sees(browser: Browser, real: Real) -> None:
    browser.go(f"{real.url}/#/try")
    browser.wait("document.querySelector('input[type=url]')?.value.startsWith('ws://127.0.0.1:')")
    browser.click_text("Connect", "main button")
    browser.wait_text("connected")
    browser.wait_text("Subscribe")
    browser.click_text("Subscribe", "main button")
    browser.wait_text("# · QoS 1")
    for qos in "012":
        browser.run(
            "const found = document.querySelectorAll('main form')[2].querySelector('select');"
            "found.value = arguments[0]",
            qos,
        )
        browser.click_text("Publish", "main button")
        browser.wait_text("not acknowledged" if qos == "0" else "Acknowledged within")
    browser.wait("document.querySelectorAll('.feed li').length === 3")
    assert "test/page" in browser.text(".feed")
    browser.click_text("Disconnect", "main button")
    browser.wait_text("not connected")
    assert [one for one in browser.messages() if "404" not in one] == []


def test_retained_messages_are_read_and_deleted(browser: Browser, real: Real) -> None:
    message = {"topic": "hall/1/lamp", "payload": "<b>on</b>", "retain": True, "qos": 1}
    real.post("publish", message)
    browser.go(f"{real.url}/#/retained?topic=hall/1/lamp")
    browser.wait_text("<b>on</b>")
    browser.click_text("Delete", "main button")
    browser.click_text("Delete", "dialog button")
    browser.wait_text("The message is deleted.")
    browser.wait("!document.querySelector('.tree').innerText.includes('hall')")


def test_records_of_a_stream_are_followed(browser: Browser, real: Real) -> None:
    real.post("streams", {"name": "readings", "filter": "readings/#", "partitions": 2})
    for number in range(3):
        message = {"topic": f"readings/{number}", "payload": f"reading {number}", "qos": 1}
        real.post("publish", message)
    browser.go(f"{real.url}/#/streams/readings?tab=records")
    browser.wait_text("reading 2")
    real.post("publish", {"topic": "readings/9", "payload": "reading 9", "qos": 1})
    browser.wait_text("reading 9")
    browser.type(".row-form input", "earliest")
    browser.press("Enter")
    browser.wait_text("4 records read")


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("overview", "Store and log"),
        ("subscriptions?topic=a/b", "Nobody would get it"),
        ("streams", "Streams"),
        ("why?client=pump-9", "The recorder sees back to"),
        ("events", "connected"),
        ("slow", "No subscriber is slow"),
        ("logs", "connected"),
        ("traces", "No trace runs"),
        ("topics", "busiest"),
        ("access", "Which rule decides"),
        ("health", "All parts work"),
        ("listeners", "WebSocket"),
        ("configuration", "max_keepalive"),
        ("backups", "There is no backup yet"),
    ],
)
def test_every_view_finds_its_data(browser: Browser, real: Real, view: str, text: str) -> None:
    browser.go(f"{real.url}/#/{view}")
    browser.wait_text(text)
    assert "does not offer" not in browser.text()


def test_a_listener_is_added_and_closed(browser: Browser, real: Real) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    browser.go(f"{real.url}/#/listeners")
    browser.click_text("Add a listener")
    browser.type("dialog input", "second")
    browser.type("dialog input[type=number]", str(port))
    browser.click_text("Listen", "dialog button")
    browser.wait_text("until the next start")
    real.process.client("by-second", address=("127.0.0.1", port)).sock.close()
    browser.run(
        "[...document.querySelectorAll('button')].find((one) => "
        "one.getAttribute('aria-label') === 'Close listener second').click()"
    )
    browser.click_text("Close it", "dialog button")
    browser.wait("!document.querySelector('main').innerText.includes('second')")


def test_a_broker_that_is_started_again_is_found_by_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    options = ("--port", "0", "--data-dir", str(tmp_path), "--http")
    with Process(*options, "127.0.0.1:0") as process:
        url = http_address(process)
        browser.go(f"{url}/#/clients")
        browser.wait_text("No client is connected")
        process.end()
    browser.wait("!document.querySelector('.banner').hidden")
    with Process(*options, url.removeprefix("http://")) as process:
        browser.wait("document.querySelector('.banner').hidden", patience_s=60)
        process.client("back").sock.close()
        process.end()
