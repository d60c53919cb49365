"""Users and roles in a browser: what is changed there counts at the next login by MQTT."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Connect
from mqtt_broker.codec.properties import Properties
from tests.page.webdriver import Browser
from tests.security.gate import HASHES
from tests.server.broker_process import Process, http_address

pytestmark = pytest.mark.slow

BAD_USER_NAME_OR_PASSWORD = 0x86


class Guarded:
    """A broker whose users are in a password file: `ann` with the role ops, and `bob`."""

    def __init__(self, process: Process, users: Path) -> None:
        self.process = process
        self.users = users
        self.url = http_address(process)

    def login(self, name: str, password: str) -> int:
        """Log in by MQTT; return the reason code."""
        packet = Connect(V5, f"of-{name}", True, 0, Properties(), None, name, password.encode())
        raw = self.process.raw()
        raw.send(encode_from_client(V5, packet))
        answer = raw.packet()
        raw.sock.close()
        assert answer[0] == 0x20
        return answer[3]

    def roles(self) -> dict[str, list[str]]:
        """The users of each role, as the API has them."""
        with urllib.request.urlopen(f"{self.url}/api/v1/roles") as answer:
            found: list[dict[str, Any]] = json.load(answer)["items"]
        return {one["role"]: one["users"] for one in found}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    users = tmp_path / "users"
    users.write_text(f"ann:{HASHES['ann']}:ops\nbob:{HASHES['bob']}\n")
    users.chmod(0o600)
    config = tmp_path / "fleet.toml"
    config.write_text(
        f'[[listeners]]\nport = 0\n[[auth]]\ntype = "password_file"\nfile = "{users}"\n'
    )
    options = ("--config", str(config), "--http", "127.0.0.1:0")
    with Process(*options) as process:
        yield Guarded(process, users)
        process.end()


def act(browser: Browser, label: str) -> None:
    """Press the button of a row."""
    script = (
        "[...document.querySelectorAll('main button')]"
        ".find((one) => one.getAttribute('aria-label') === arguments[0])"
    )
    browser.wait(f"{script} !== undefined", label)
    browser.run(f"{script}.click()", label)


def fill(browser: Browser, action: str, **values: str) -> None:
    """Fill in the fields of the dialog, by their labels, and send it."""
    for label, text in values.items():
        script = (
            "[...document.querySelectorAll('dialog label')]"
            ".find((one) => one.innerText.trim().startsWith(arguments[0]))"
        )
        browser.wait(f"{script} !== undefined", label.replace("_", " "))
        browser.run(
            f"const label = {script};"
            "const found = label.control ?? label.querySelector('input, textarea');"
            "found.value = arguments[1];",
            label.replace("_", " "), text,
        )  # fmt: skip
    browser.click_text(action, "dialog button")


def wait_closed(browser: Browser) -> None:
    browser.wait("document.querySelector('dialog') === null")


def test_a_user_is_created_changed_and_deleted(browser: Browser, guarded: Guarded) -> None:
    browser.go(f"{guarded.url}/#/access?tab=users")
    browser.wait_text("ann", "tbody")
    assert guarded.login("meter", "first") == BAD_USER_NAME_OR_PASSWORD
    browser.click_text("New user", "main button")
    fill(browser, "Create", User="meter", Password="first", Roles="reader, ops")
    wait_closed(browser)
    browser.wait_text("meter", "tbody")
    browser.wait_text("reader", "tbody")
    assert guarded.login("meter", "first") == 0

    act(browser, "Change meter")
    fill(browser, "Change", New_password="second")
    wait_closed(browser)
    assert guarded.login("meter", "first") == BAD_USER_NAME_OR_PASSWORD
    assert guarded.login("meter", "second") == 0
    assert guarded.roles() == {"ops": ["ann", "meter"], "reader": ["meter"]}

    act(browser, "Change meter")
    fill(browser, "Change", Roles="writer")
    wait_closed(browser)
    browser.wait_text("writer", "tbody")
    assert guarded.roles() == {"ops": ["ann"], "writer": ["meter"]}
    assert guarded.login("meter", "second") == 0  # the password stays

    act(browser, "Delete meter")
    browser.click_text("Delete", "dialog button")
    wait_closed(browser)
    browser.wait("!document.querySelector('tbody').innerText.includes('meter')")
    assert guarded.login("meter", "second") == BAD_USER_NAME_OR_PASSWORD
    assert "meter" not in guarded.users.read_text() and "ann" in guarded.users.read_text()
    assert [one for one in browser.messages() if not one.startswith("DEBUG")] == []


def test_refusals_are_shown_where_they_are_made(browser: Browser, guarded: Guarded) -> None:
    browser.go(f"{guarded.url}/#/access?tab=users")
    browser.wait_text("ann", "tbody")
    before = guarded.users.read_text()
    for name, said in (("ann", "ann"), ("a:b", "a:b"), ("<img src=x onerror=alert(1)>:", "<img")):
        browser.click_text("New user", "main button")
        fill(browser, "Create", User=name, Password="x")
        browser.wait_text(said, "dialog [role=alert]")
        assert browser.js("document.querySelectorAll('dialog img').length") == 0
        browser.click_text("Cancel", "dialog button")
        wait_closed(browser)
    browser.click_text("New user", "main button")
    fill(browser, "Create", User="nobody")  # the browser itself wants the password
    assert browser.js("document.querySelector('dialog form').checkValidity()") is False
    browser.click_text("Cancel", "dialog button")
    assert guarded.users.read_text() == before

    # Somebody else deletes what is shown here: the change says so.
    act(browser, "Change bob")
    browser.wait("document.querySelector('dialog') !== null")
    request = urllib.request.Request(f"{guarded.url}/api/v1/users/bob", method="DELETE")
    urllib.request.urlopen(request).close()
    fill(browser, "Change", Roles="late")
    browser.wait_text("bob", "dialog [role=alert]")
    browser.wait_text("It has gone meanwhile", "dialog")


def test_roles_are_given_and_taken_away(browser: Browser, guarded: Guarded) -> None:
    browser.go(f"{guarded.url}/#/access?tab=roles")
    browser.wait_text("ops", "tbody")
    browser.click_text("New role", "main button")
    fill(browser, "Create", Role="reader", Users="bob, ann")
    wait_closed(browser)
    browser.wait_text("reader", "tbody")
    assert guarded.roles() == {"ops": ["ann"], "reader": ["ann", "bob"]}

    act(browser, "Change reader")
    fill(browser, "Change", Users="bob")
    wait_closed(browser)
    assert guarded.roles() == {"ops": ["ann"], "reader": ["bob"]}

    browser.click_text("New role", "main button")
    fill(browser, "Create", Role="boss", Users="nobody")
    browser.wait_text("nobody", "dialog [role=alert]")
    browser.click_text("Cancel", "dialog button")

    act(browser, "Delete reader")
    browser.click_text("Delete", "dialog button")
    wait_closed(browser)
    browser.wait("!document.querySelector('tbody').innerText.includes('reader')")
    assert guarded.roles() == {"ops": ["ann"]}
    assert guarded.login("nobody", "x") == BAD_USER_NAME_OR_PASSWORD
