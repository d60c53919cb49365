"""The configuration: where it comes from, and the one line that every mistake ends in."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqtt_broker.cli.main import main
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.config import Config, is_local, load
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from tests.server.broker_process import document, environment


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """`fleetmq broker --check` with a file, an environment and options."""

    def __init__(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.path = tmp_path / "fleet.toml"
        self._capfd = capfd
        monkeypatch.setattr("os.environ", environment())
        self._monkeypatch = monkeypatch

    def __call__(self, text: str | bytes | None, *argv: str, **env: str) -> Outcome:
        for name, value in env.items():
            self._monkeypatch.setenv(f"FLEETMQ_{name}", value)
        options = ["broker", "--check", *argv]
        if text is not None:
            self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
            options += ["--config", str(self.path)]
        try:
            code = main(options)
        except SystemExit as end:  # argparse's way
            code = end.code if isinstance(end.code, int) else 1
        return Outcome(code, *self._capfd.readouterr())


@pytest.fixture
def check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    return Command(tmp_path, capfd, monkeypatch)


def line_of(found: Outcome) -> str:
    """The mistake, in the one form a mistake has."""
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("fleetmq broker: ")
    assert found.err.endswith("\n") and found.err.count("\n") == 1
    return found.err


# What is wrong in the file, and what the line has to name.
IN_THE_FILE = {
    "max_keepalives = 10": ("max_keepalives", "did you mean max_keepalive?"),
    "hots = '::1'": ("hots", "did you mean host?"),
    "listener = []": ("listener", "did you mean listeners?"),
    "nothing_like_it = 1": ("unknown key nothing_like_it",),
    "[listener]\nport = 1": ("listener", "did you mean listeners?"),
    "max_keepalive = 'long'": ("max_keepalive", "a whole number", "'long'"),
    "max_keepalive = 1.5": ("max_keepalive", "a whole number"),
    "max_keepalive = true": ("max_keepalive", "a whole number"),
    "retain_available = 1": ("retain_available", "true or false"),
    "retain_available = 'true'": ("retain_available", "true or false"),
    "auto_id_prefix = 7": ("auto_id_prefix", "a string"),
    "connect_timeout_s = 'soon'": ("connect_timeout_s", "a number"),
    "max_keepalive = 0": ("max_keepalive", "1 to 65535", "not 0"),
    "max_keepalive = 65536": ("max_keepalive", "1 to 65535"),
    "receive_maximum = 0": ("receive_maximum", "1 to 65535"),
    "connect_timeout_s = 0": ("connect_timeout_s", "0.01 or more"),
    "connect_timeout_s = nan": ("connect_timeout_s",),
    "connections_max = 0": ("connections_max", "1 or more"),
    "packet_bytes_max = 268435461": ("packet_bytes_max", "20 to 268435460"),
    "queue_messages_max = -1": ("queue_messages_max", "0 or more"),
    "port = 65536": ("port", "0 to 65535"),
    "port = -1": ("port", "0 to 65535"),
    "port = '1883'": ("port", "a whole number"),
    "queue_full = 'explode'": ("queue_full", "drop_oldest, drop_new, disconnect", "'explode'"),
    "shared_strategy = 'fair'": ("shared_strategy", "round_robin", "package.module:Class"),
    "shared_strategy = 'no_such_module:Class'": ("shared_strategy", "no_such_module"),
    "log_level = 'loud'": ("log_level", "debug, info, warning, error"),
    "durability = 'hope'": ("durability", "memory"),
    "[[topics]]\nfilter = 'a/#/b'\ndurability = 'memory'": ("topics 1", "filter"),
    "[[topics]]\nfilter = 'a/#'\ndurability = 'none'": ("topics 1", "durability"),
    "[[topics]]\nfilter = 'a/#'\nqos = 1": ("topics 1", "qos"),
    "topics = 1": ("[[topics]]",),
    "max_keepalive = \n": ("not TOML", "line 1"),
    "= 1": ("not TOML",),
    "max_keepalive = 1\nmax_keepalive = 2\n": ("not TOML", "line 2"),
    "host = '0.0.0.0'": ("0.0.0.0:1883", "--allow-anonymous"),
    "host = ''": ("--allow-anonymous",),
    "host = '::'": ("[::]:1883", "--allow-anonymous"),
    "host = 'broker.example'": ("broker.example:1883", "--allow-anonymous"),
    "listeners = 1": ("listeners", "[[listeners]]"),
    "[listeners]\nport = 1": ("listeners", "[[listeners]]"),
    "listeners = [1]": ("listeners", "[[listeners]]"),
    "[[listeners]]\nprot = 1": ("listeners 1", "prot", "did you mean port?"),
    "[[listeners]]\n[[listeners]]\nport = 'x'": ("listeners 2", "port", "a whole number"),
    "[[listeners]]\nport = 65536": ("listeners 1", "port", "0 to 65535"),
    "[[listeners]]\nhost = 1": ("listeners 1", "host", "a string"),
    "[[listeners]]\npath = ''": ("listeners 1", "path"),
    "[[listeners]]\nhost = '0.0.0.0'": ("0.0.0.0:1883", "--allow-anonymous"),
}  # fmt: skip


@pytest.mark.parametrize("text", IN_THE_FILE)
def test_a_mistake_in_the_file_is_one_line(check: Command, text: str) -> None:
    line = line_of(check(text))
    for word in IN_THE_FILE[text]:
        assert word in line
    if "--allow-anonymous" not in IN_THE_FILE[text] and "no_such_module" not in text:
        assert str(check.path) in line


def test_a_file_that_is_not_there(check: Command, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    assert line_of(check(None, "--config", missing)) == (
        f"fleetmq broker: {missing}: No such file or directory\n"
    )
    assert "Is a directory" in line_of(check(None, "--config", str(tmp_path)))


def test_a_file_that_is_not_text(check: Command) -> None:
    assert "not TOML" in line_of(check(b"host = '\xff\xfe'"))


def test_a_key_of_two_lines_is_one_line(check: Command) -> None:
    assert "unknown key" in line_of(check(r'"two\nlines" = 1'))


IN_THE_ENVIRONMENT = {
    "MAX_KEEPALIVE": ("long", " is a whole number, not 'long'"),
    "CONNECT_TIMEOUT_S": ("", "a number"),
    "RETAIN_AVAILABLE": ("maybe", "true or false, not 'maybe'"),
    "PORT": ("70000", "0 to 65535"),
    "RECEIVE_MAXIMUM": ("0", "1 to 65535"),
    "QUEUE_FULL": ("explode", "drop_oldest"),
    "MAX_KEEPALIVES": ("1", "did you mean max_keepalive?"),
    "LISTENERS": ("[]", "[[listeners]]"),
}


@pytest.mark.parametrize("name", IN_THE_ENVIRONMENT)
def test_a_mistake_in_the_environment_is_one_line(check: Command, name: str) -> None:
    value, hint = IN_THE_ENVIRONMENT[name]
    line = line_of(check(None, **{name: value}))
    assert f"FLEETMQ_{name}" in line
    assert hint in line


ON_THE_COMMAND_LINE = {
    ("--port", "many"): "--port",
    ("--port", "65536"): "--port",
    ("--max-keepalive", "0"): "--max-keepalive",
    ("--log-level", "loud"): "--log-level",
    ("--durability", "hope"): "--durability",
    ("--host", "192.0.2.1"): "--allow-anonymous",
    ("--prot", "1"): "--prot",
    ("surplus",): "surplus",
}


@pytest.mark.parametrize("argv", ON_THE_COMMAND_LINE)
def test_a_mistake_on_the_command_line_is_one_line(check: Command, argv: tuple[str, ...]) -> None:
    assert ON_THE_COMMAND_LINE[argv] in line_of(check(None, *argv))


# What is right.


def test_without_anything_it_is_loopback(check: Command) -> None:
    assert check(None) == (0, "configuration ok: 127.0.0.1:1883\n", "")


def test_check_names_every_listener(check: Command) -> None:
    text = """
        allow_anonymous = true
        [[listeners]]
        host = "0.0.0.0"
        port = 1884
        [[listeners]]
        host = "::1"
        [[listeners]]
        path = "/run/fleetmq.sock"
    """
    assert check(text).out == (
        "configuration ok: 0.0.0.0:1884, [::1]:1883, unix:/run/fleetmq.sock\n"
    )
    assert check(text, "--port", "1").out.startswith("configuration ok: 127.0.0.1:1, 0.0.0.0:1884")


def test_the_later_source_wins(check: Command) -> None:
    assert check("port = 1").out == "configuration ok: 127.0.0.1:1\n"
    assert check("port = 1", PORT="2").out == "configuration ok: 127.0.0.1:2\n"
    assert check("port = 1", "--port", "3", PORT="2").out == "configuration ok: 127.0.0.1:3\n"


def test_each_key_on_its_own_comes_from_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text("max_keepalive = 1\nreceive_maximum = 1\ninflight_max = 1\nport = 1\n")
    config = load(
        str(path),
        {"FLEETMQ_MAX_KEEPALIVE": "2", "FLEETMQ_RECEIVE_MAXIMUM": "2", "HOME": "/"},
        {"max_keepalive": 3, "log_level": None},
    )
    settings = config.settings
    assert settings.max_keepalive == 3
    assert settings.receive_maximum == 2
    assert settings.inflight_max == 1
    assert config.endpoints == (Endpoint(port=1),)
    assert config.log_level == "info"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("TRUE", True), ("Yes", True), ("on", True), ("0", False), ("No", False)],
)
def test_words_for_true_and_false(text: str, value: bool) -> None:
    assert load(None, {"FLEETMQ_QUEUE_QOS0": text}, {}).settings.queue_qos0 is value


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_every_setting_can_be_written_everywhere(
    field: dataclasses.Field[Any], tmp_path: Path
) -> None:
    """Its default, written out in the file and in the environment, is what it was."""
    default = field.default
    if isinstance(default, bool):
        text = str(default).lower()
    else:
        text = repr(default)
    path = tmp_path / "f.toml"
    path.write_text(f"{field.name} = {text}\n")
    plain = str(default).lower() if isinstance(default, bool) else str(default)
    for config in (
        load(str(path), {}, {}),
        load(None, {f"FLEETMQ_{field.name.upper()}": plain}, {}),
    ):
        assert config == Config()


def test_a_whole_number_is_a_number_too(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text("connect_timeout_s = 3\n")
    assert load(str(path), {}, {}).settings.connect_timeout_s == 3.0


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        (Endpoint("127.0.0.1"), True),
        (Endpoint("127.9.9.9"), True),
        (Endpoint("::1"), True),
        (Endpoint("localhost"), True),
        (Endpoint(path="/run/s"), True),
        (Endpoint("0.0.0.0"), False),
        (Endpoint("::"), False),
        (Endpoint("192.0.2.1"), False),
        (Endpoint("localhost.example"), False),
        (Endpoint(""), False),
    ],
    ids=str,
)
def test_what_only_this_machine_can_reach(endpoint: Endpoint, local: bool) -> None:
    assert is_local(endpoint) is local
    overrides = {"host": endpoint.host, "unix_socket": endpoint.path or None}
    if endpoint.path:
        overrides.pop("host")
    if local:
        load(None, {}, overrides)
    else:
        with pytest.raises(ConfigError, match="--allow-anonymous"):
            load(None, {}, overrides)
    load(None, {}, {**overrides, "allow_anonymous": True})


# The document.


def test_the_document_has_every_setting_with_its_default() -> None:
    text = document("docs/CONFIGURATION.md")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, re.MULTILINE))
    for field in dataclasses.fields(Settings):
        default = field.default
        written = f'"{default}"' if isinstance(default, str) else str(default)
        expected = written.lower() if isinstance(default, bool) else written
        assert rows.get(field.name) == expected, field.name
        assert f"`FLEETMQ_{field.name.upper()}`" in text, field.name
