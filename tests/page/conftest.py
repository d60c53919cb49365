"""One browser and one fake broker for all tests; each test begins with an empty page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.page.fake_broker import FakeBroker
from tests.page.webdriver import Browser


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    one_browser.resize(1024, 768)
    one_browser.colours("light")
    one_browser.go("about:blank")
    one_browser.messages()
    yield one_browser
    one_browser.go("about:blank")


@pytest.fixture(scope="session")
def one_fake() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


@pytest.fixture
def fake(one_fake: FakeBroker) -> FakeBroker:
    one_fake.answers.clear()
    one_fake.requests.clear()
    one_fake.login_needed = False
    return one_fake
