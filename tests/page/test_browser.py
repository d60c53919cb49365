"""The page in a browser, in front of an API whose answers are chosen: large, hostile, failing."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import pytest

from tests.page import axe
from tests.page.fake_broker import HOSTILE, FakeBroker
from tests.page.webdriver import Browser

pytestmark = pytest.mark.slow

# Each view with a text that it shows when its data is there.
VIEWS: Final = {
    "overview": "Messages per second",
    "clients": "gateway-00007",
    "clients/pump-00012": "plant/7/state",
    "clients/pump-00012?tab=events": "queue full",
    "subscriptions?topic=plant/7/cmd": "denied",
    "retained?topic=plant/7/sensor1": "temperature",
    "topics": "plant/0/temperature",
    "streams": "telemetry",
    "streams/telemetry": "812,344",
    "streams/telemetry?tab=groups": "billing",
    "streams/telemetry?tab=records": "50 records read",
    "try": "ws://",
    "why?client=pump-7&topic=a": "Published by app-3",
    "slow": "pump-00012",
    "events": "queue full",
    "traces": "pump-7",
    "logs": "slow reader",
    "access?topic=a": "Explain",
    "access?tab=users": "plant1",
    "access?tab=rules": "deny",
    "bans": "203.0.113.0/24",
    "health": "That of fleet ends in 6 days",
    "listeners": "8883",
    "configuration": "queue_messages_max",
    "backups": "running: streams, 42 %",
}
SIZES: Final = ((390, 844), (1024, 768), (1600, 1000))


def show(browser: Browser, fake: FakeBroker, view: str) -> None:
    """Open a view and wait until its data is there."""
    browser.go(f"{fake.url}/#/{view}")
    text = VIEWS[view]
    seen = "(document.querySelector('main')?.innerText ?? '')"
    values = "[...document.querySelectorAll('main input')].map((one) => one.value).join()"
    browser.wait(f"({seen} + {values}).includes(arguments[0])", text)
    browser.wait("document.querySelector('[aria-busy]') === null")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_every_size_without_an_error(
    browser: Browser, fake: FakeBroker, view: str
) -> None:
    for width, height in SIZES:
        browser.resize(width, height)
        show(browser, fake, view)
        too_wide = browser.js("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, f"{width} wide: the page scrolls sideways by {too_wide}"
    assert browser.messages() == []


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(browser: Browser, fake: FakeBroker, view: str) -> None:
    for (width, height), theme in zip(SIZES, ("dark", "light", "dark"), strict=True):
        browser.resize(width, height)
        browser.colours(theme)
        show(browser, fake, view)
        assert axe.findings(browser) == [], f"{width} wide, {theme}"


def test_axe_finds_nothing_in_dialogs_and_the_login(browser: Browser, fake: FakeBroker) -> None:
    show(browser, fake, "clients/pump-00012")
    for name in ("Kick", "Ban"):
        browser.click_text(name)
        browser.wait("document.querySelector('dialog[open]') !== null")
        assert axe.findings(browser) == []
        browser.press("Escape")
        browser.wait("document.querySelector('dialog') === null")
    fake.login_needed = True
    browser.go("about:blank")
    browser.go(fake.url)
    browser.wait_text("Password")
    assert axe.findings(browser) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_of_a_client_is_text(browser: Browser, fake: FakeBroker, name: str) -> None:
    browser.go(f"{fake.url}/#/clients?q={quote(name, safe='')}")
    browser.wait_text("1\u20131 of 1")
    browser.click("tbody a")
    seen = name.replace("\u202e", "\\u202e")
    browser.wait("document.querySelector('h1').innerText === arguments[0]", seen)
    browser.wait_text("plant/7/state")
    assert browser.js("document.querySelectorAll('main img, main script, main b').length") == 0
    browser.click_text("Kick")
    browser.wait_text(seen, "dialog")
    browser.click_text("Kick", "dialog button")
    browser.wait("document.querySelector('dialog') === null")
    posted = [path for method, path, _ in fake.requests if method == "POST"]
    assert posted == [f"clients/{name}/kick"]
    assert browser.messages() == []


def test_fifteen_thousand_clients_are_paged_sorted_and_searched(
    browser: Browser, fake: FakeBroker
) -> None:
    browser.go(f"{fake.url}/#/clients")
    browser.wait_text("1\u201350 of 15,000")
    browser.click_text("Next")
    browser.wait_text("51\u2013100 of 15,000")
    assert browser.js("document.querySelectorAll('tbody tr').length") == 50
    browser.click_text("Previous")
    browser.wait_text("1\u201350 of 15,000")
    browser.click_text("Queued", "th button")
    browser.wait_text("899", "tbody")
    assert browser.js("document.querySelector('[aria-sort]').innerText.trim()") == "Queued"
    browser.type("[data-main]", "pump-00012")
    browser.wait_text("1\u20131 of 1")
    assert "q=pump-00012" in browser.js("location.hash")
    browser.type("[data-main]", "nobody")
    browser.wait_text("Nothing matches these filters")


def test_a_hundred_thousand_retained_topics_open_branch_by_branch(
    browser: Browser, fake: FakeBroker
) -> None:
    browser.go(f"{fake.url}/#/retained")
    browser.wait_text("100,000")
    browser.run("document.querySelector('[role=treeitem]').focus()")
    browser.press("ArrowDown", "ArrowRight")
    browser.wait("document.querySelectorAll('[role=treeitem]').length === 202")
    browser.press("ArrowDown", "ArrowDown", "ArrowRight")
    browser.wait_text("sensor0")
    browser.press("ArrowDown", "Enter")
    browser.wait_text("<b>not bold</b>")
    assert browser.js("document.querySelectorAll('main b').length") == 0
    browser.press("ArrowLeft", "ArrowLeft")
    browser.wait("document.querySelectorAll('[role=treeitem]:not([hidden] *)').length === 202")


def test_the_keyboard_is_enough(browser: Browser, fake: FakeBroker) -> None:
    browser.go(fake.url)
    browser.wait_text("Messages per second")
    browser.press("g", "c")
    browser.wait_text("gateway-00007")
    browser.press("f", "p", "u", "m", "p")
    browser.wait_text("of 3,7")
    browser.press("Escape")
    browser.run("document.querySelector('tbody a').focus()")
    browser.press("ArrowDown", "ArrowDown", "ArrowUp")
    at = "[...document.querySelectorAll('tbody tr')].indexOf(document.activeElement.closest('tr'))"
    assert browser.js(at) == 1
    assert browser.js("document.querySelectorAll('tbody a[tabindex=\"0\"]').length") == 1
    browser.press("Enter")
    browser.wait_text("plant/7/state")
    browser.click_text("Kick")
    browser.wait("document.querySelector('dialog').contains(document.activeElement)")
    browser.press("Escape")
    browser.wait("document.querySelector('dialog') === null")
    assert browser.js("document.activeElement.innerText") == "Kick"
    browser.press("/")
    assert browser.js("document.activeElement.className") == "jump"
    browser.press("Escape", "?")
    browser.wait_text("Slow subscribers", "dialog")
    assert [one for one in fake.requests if one[0] != "GET"] == []


def test_nothing_is_done_without_a_yes(browser: Browser, fake: FakeBroker) -> None:
    browser.go(f"{fake.url}/#/clients/pump-00012")
    for action in ("Kick", "Ban", "Clear queue", "Expire session"):
        browser.click_text(action, "main button")
        browser.wait("document.querySelector('dialog[open]') !== null")
        browser.click_text("Cancel", "dialog button")
        browser.wait("document.querySelector('dialog') === null")
    assert [one for one in fake.requests if one[0] != "GET"] == []
    browser.click_text("Ban", "main button")
    browser.type("dialog input", "2h")
    browser.click_text("Ban", "dialog button")
    browser.wait("document.querySelector('dialog') === null")
    [posted] = [one for one in fake.requests if one[0] != "GET"]
    wanted = {"kind": "client", "value": "pump-00012", "for_s": 7200, "why": ""}
    assert posted == ("POST", "bans", wanted)


def test_a_refused_action_says_why_in_its_dialog(browser: Browser, fake: FakeBroker) -> None:
    text = "the client has gone"
    fake.answers["clients/pump-00012/kick"] = (409, {"error": "Refused", "text": text})
    browser.go(f"{fake.url}/#/clients/pump-00012")
    browser.click_text("Kick", "main button")
    browser.click_text("Kick", "dialog button")
    browser.wait_text("The client has gone.", "dialog")
    browser.wait_text("The state of the broker does not allow it", "dialog")


@pytest.mark.parametrize("view", [one for one in VIEWS if "?" not in one])
def test_what_a_broker_does_not_offer_is_said(
    browser: Browser, fake: FakeBroker, view: str
) -> None:
    browser.go(f"{fake.url}/#/{view}")
    browser.wait_text(VIEWS[view] if view != "try" else "Connect")
    used = {path for method, path, _ in fake.requests} - {"me"}
    for path in used:
        fake.answers[path] = None
    browser.go("about:blank")
    browser.go(f"{fake.url}/#/{view}")
    browser.wait_text("This broker does not offer this")


def test_an_error_is_a_sentence_with_advice(browser: Browser, fake: FakeBroker) -> None:
    problem = {"error": "BadRequest", "detail": "invalid sort 'x'", "status": 400, "title": "Bad"}
    fake.answers["clients"] = (400, problem)
    browser.go(f"{fake.url}/#/clients")
    browser.wait_text("Invalid sort 'x'.")
    browser.wait_text("Correct the value that is named")
    fake.answers.clear()
    browser.click_text("Try again")
    browser.wait_text("gateway-00007")
    assert "Invalid sort" not in browser.text()


def test_a_broker_that_is_away_is_said_and_asked_again(browser: Browser) -> None:
    with FakeBroker() as fake:
        port = int(fake.url.rpartition(":")[2])
        browser.go(f"{fake.url}/#/clients")
        browser.wait_text("gateway-00007")
    browser.wait("!document.querySelector('.banner').hidden")
    assert "gateway-00007" in browser.text()  # the last values stay
    with FakeBroker(port) as fake:
        browser.wait("document.querySelector('.banner').hidden", patience_s=60)
        browser.wait("document.querySelector('.stale') === null")
        assert "gateway-00007" in browser.text()


def test_a_page_that_is_hidden_asks_nothing(browser: Browser, fake: FakeBroker) -> None:
    browser.go(fake.url)
    browser.wait_text("Messages per second")
    browser.run(
        "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    settle = "setTimeout(arguments[0], arguments.length && 500)"
    browser.run_async(settle)
    fake.requests.clear()
    browser.run_async("setTimeout(arguments[0], 6000)")
    assert fake.requests == []
    browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'));")
    browser.wait_text("Messages per second")
    browser.run_async("setTimeout(arguments[0], 1000)")
    assert "overview" in {path for _, path, _ in fake.requests}


def test_a_day_of_views_leaves_nothing_behind(browser: Browser, fake: FakeBroker) -> None:
    views = [one for one in VIEWS if "?" not in one]

    def around(times: int) -> dict[str, int]:
        for _ in range(times):
            for view in views:
                browser.run("location.hash = arguments[0]", f"#/{view}")
                browser.run_async("setTimeout(arguments[0], 60)")
        browser.run("location.hash = '#/bans'")
        browser.wait_text("203.0.113.0/24")
        browser.command("HeapProfiler.collectGarbage")
        found = browser.command("Memory.getDOMCounters")
        assert isinstance(found, dict)
        return found

    browser.go(fake.url)
    first = around(2)
    last = around(6)
    assert last["nodes"] < first["nodes"] * 1.5 + 500, (first, last)
    assert last["jsEventListeners"] < first["jsEventListeners"] * 1.5 + 100, (first, last)


def test_a_login_is_asked_for_and_its_failure_said(browser: Browser, fake: FakeBroker) -> None:
    fake.login_needed = True
    browser.go(fake.url)
    browser.wait_text("Password")
    browser.type("input", "ann")
    browser.type("input[type=password]", "wrong")
    browser.press("Enter")
    browser.wait_text("The user or the password is wrong.")
    browser.type("input[type=password]", "right")
    browser.press("Enter")
    browser.wait_text("Messages per second")
    fake.login_needed = True  # the session has ended meanwhile
    browser.wait_text("Password")


def test_a_viewer_is_offered_no_change(browser: Browser, fake: FakeBroker) -> None:
    fake.answers["me"] = (200, {"name": "eve", "role": "viewer", "csrf": "x"})
    for view in ("clients/pump-00012", "bans", "backups", "listeners", "traces"):
        browser.go(f"{fake.url}/#/{view}")
        browser.wait_text(VIEWS[view])
        found = browser.js(
            "[...document.querySelectorAll('main button')].map((one) => one.innerText.trim())"
            ".filter((text) => /^(Kick|Ban|Clear|Expire|Lift|Take|Add|Close|Start|End)/.test(text))"
        )
        assert found == []


def test_colours_follow_the_system_or_the_switch(browser: Browser, fake: FakeBroker) -> None:
    page = "getComputedStyle(document.body).backgroundColor"
    browser.go(fake.url)
    browser.wait_text("Messages per second")
    light = browser.js(page)
    browser.colours("dark")
    dark = browser.js(page)
    assert light != dark
    browser.click("[aria-label='Colours: as the system']")
    assert browser.js(page) == light
    browser.go(f"{fake.url}/#/bans")
    browser.wait_text("203.0.113.0/24")
    assert browser.js(page) == light
    browser.click("[aria-label='Colours: light']")
    browser.click("[aria-label='Colours: dark']")
    assert browser.js(page) == dark


def test_a_chart_is_read_with_the_arrow_keys(browser: Browser, fake: FakeBroker) -> None:
    browser.go(fake.url)
    browser.wait("document.querySelectorAll('.chart polyline').length >= 9")
    assert "now" in browser.js("document.querySelector('.chart').getAttribute('aria-label')")
    browser.run("document.querySelector('.chart-box').focus()")
    browser.press("ArrowLeft", "ArrowLeft")
    browser.wait("document.querySelector('.when').innerText !== ''")
    assert browser.js("document.querySelectorAll('.chart .cursor').length") == 1
