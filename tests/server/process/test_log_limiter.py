"""What is logged of what strangers do: not without end, and nothing that is secret."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mqtt_broker.server.config.config import load
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.log_limiter import (
    CHARS_MAX,
    ERRORS_PER_S,
    LINES_PER_S,
    REPEAT_S,
    ErrorLog,
    LogLimiter,
    shown,
)
from tests.security.gate import connect
from tests.server.running import Running


def test_lines_of_a_second_are_bounded_and_what_is_left_out_is_counted() -> None:
    said: list[str] = []
    now = [100.0]
    lines = LogLimiter(said.append, lambda: now[0])
    for n in range(10_000):
        lines.write(f"line {n}")
    assert len(said) == LINES_PER_S
    now[0] += 1
    lines.write("after")
    assert said[LINES_PER_S:] == [
        f"{10_000 - LINES_PER_S} lines before this one were too many, and left out", "after"
    ]  # fmt: skip


def test_a_line_is_one_line_that_a_terminal_shows_as_it_is() -> None:
    assert shown("pump-7 (192.0.2.1:5): grüße") == "pump-7 (192.0.2.1:5): grüße"
    assert shown("a\u2028b\u202ec\x1b[2J") == "a\\u2028b\\u202ec\\x1b[2J"
    assert len(shown("x" * 70_000)) < CHARS_MAX + 50


def test_strangers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fleetmq")
    with Running() as broker:
        for _ in range(LINES_PER_S * 3):
            with broker.raw() as raw:
                raw.send(b"\xff\x00")
                raw.rest()
        assert broker.server.broker.counters.sockets == LINES_PER_S * 3
    seconds = {int(record.created) for record in caplog.records}
    assert len(caplog.records) <= (LINES_PER_S + 1) * (len(seconds) + 1)


def test_a_password_is_not_among_the_bytes_of_a_mistake_of_ours(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*args: object) -> None:
        raise ZeroDivisionError

    with Running() as broker:
        monkeypatch.setattr(
            broker.server.broker.state.authorizer.access, "connect", wrong, raising=False
        )
        with broker.raw() as raw:
            raw.send(connect("c", "ann", password=b"hunter2"))
            raw.rest()
        assert "of its CONNECT" in caplog.text and b"hunter2".hex() not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:hunter2@h/d",
        "postgresql+psycopg://h/d?user=u&password=hunter2",
        "postgresql+psycopg://:hunter2@h/d?sslpassword=hunter2",
    ],
)
def test_where_state_is_kept_is_said_without_a_password(url: str) -> None:
    config = load(None, {"FLEETMQ_DATABASE_URL": url}, {})
    assert "hunter2" not in config.store_name and "hunter2" not in repr(config)
    assert config.database_url == url


@pytest.mark.parametrize("key", ["http_token", "database_url"])
def test_an_error_repeats_no_secret(tmp_path: Path, key: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(f"{key} = 4242424242\n")
    with pytest.raises(ConfigError, match=f"{key} is a string$") as caught:
        load(str(path), {}, {})
    assert "4242" not in str(caught.value)


def test_a_balancer_that_anybody_may_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        '[[listeners]]\nname = "b"\nhost = "0.0.0.0"\nport = 0\nproxy_protocol = PROXY\n'
        "allow_anonymous = true\n"
    )
    text = path.read_text()
    for proxy, is_said in (("true", True), ('{ trusted = ["192.0.2.1"] }', False)):
        path.write_text(text.replace("PROXY", proxy))
        caplog.clear()
        config = load(str(path), {}, {"durability": "memory"})
        with Running(*config.endpoints, config=config):
            pass
        assert ("every peer may claim any client address" in caplog.text) is is_said


def test_internal_errors_of_a_second_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    errors = ErrorLog(logging.getLogger("fleetmq"), lambda: now[0])

    def raised(text: str, kind: type[Exception] = ValueError) -> Exception:
        try:
            raise kind(text)
        except Exception as error:
            return error

    for number in range(1_000):  # one mistake, whatever a client put into its text
        errors.write(raised(f"topic {number}"))
    assert [record.getMessage() for record in caplog.records] == ["internal error"]
    now[0] += REPEAT_S + 1
    errors.write(raised("again"), "c (192.0.2.1:5): internal error")
    assert caplog.records[-1].getMessage() == (
        "c (192.0.2.1:5): internal error (999 before this one were left out)"
    )
    now[0] += 1
    for number in range(100):  # many mistakes
        errors.write(type(f"Error{number}", (Exception,), {})())
    assert len(caplog.records) == 2 + ERRORS_PER_S
    assert all(record.exc_info for record in caplog.records)


def test_a_client_that_finds_a_mistake_fills_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*args: object) -> None:
        raise ZeroDivisionError

    with Running() as broker:
        state = broker.server.broker.state
        monkeypatch.setattr(state.authorizer.access, "connect", wrong, raising=False)
        for _ in range(50):
            with broker.raw() as raw:
                raw.send(connect("c", "ann", password=b"x"))
                raw.rest()
    assert len([one for one in caplog.records if one.exc_info]) == 1
