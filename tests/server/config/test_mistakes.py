"""Mistakes of an operator: each ends in one line with the file, its line, the key and a remedy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mqtt_broker.cli.main import main
from mqtt_broker.server.config.config import load
from mqtt_broker.server.config.located import locate, place_of
from mqtt_broker.server.config.tables import ConfigError, read_toml
from tests.server.broker_process import environment


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = {key: text for key, text in environment().items() if not key.startswith("FLEETMQ_")}
    monkeypatch.setattr("os.environ", kept)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    return tmp_path


# The mistake, the line at which it stands, and what the message has to say.
MISTAKES = {
    "unknown key": ("\nport = 1\nrecieve_maximum = 2", 3, "did you mean receive_maximum?"),
    "wrong type": ("\n\nreceive_maximum = '5'", 3, "receive_maximum is a whole number, not '5'"),
    "key of a table": ("[[listeners]]\nport = 1\n[[listeners]]\nprot = 2", 4, "listeners 2: "),
    "key of a table in a table": (
        "[[listeners]]\nport = 1\n[listeners.tls]\ncrt = 'x'", 4, "did you mean cert?"
    ),
    "key of an inline table": ("[[listeners]]\n\ntls = { crt = 'x' }", 3, "did you mean cert?"),
    "key of limits": ("[[client_limits]]\nuser = 'a'\nmessages_per_sec = 1", 3, "messages_per_s?"),
    "key of security": ("\n[security]\nban_file = 'x'", 3, "did you mean bans_file?"),
    "key of a method": ("[[auth]]\ntype = 'password_file'\nfil = 'x'", 3, "did you mean file?"),
    "key of a rule": ("[[acl]]\npermit = 'allow'\ntopic = '#'", 3, "did you mean topics?"),
    "key of a role": ("[[roles]]\nrole = 'a'\nuser = ['b']", 3, "did you mean users?"),
    "key of a stream": ("[[streams]]\nname = 's'\nfilters = '#'", 3, "did you mean filter?"),
    "key of topics": ("[[topics]]\nfiltre = 'a'", 2, "did you mean filter?"),
    "two listeners": (
        "[[listeners]]\nport = 5\n[[listeners]]\nport = 5", 4,
        "127.0.0.1:5 is another listener's (fleet.toml:2: listeners 1); give one of them another",
    ),
    "a listener and all addresses": (
        "allow_anonymous = true\nhost = '0.0.0.0'\nport = 5\n[[listeners]]\nport = 5", 5,
        "127.0.0.1:5, with 0.0.0.0:5,",
    ),
    "two sockets": (
        "[[listeners]]\npath = 'a'\n[[listeners]]\npath = './a'", 4, "another path"
    ),
    "a listener and HTTP": ("port = 5\nhttp = 'localhost:5'", 2, "two listeners on one address"),
    "not local": ("\n[[listeners]]\nhost = '0.0.0.0'", 3, "can be reached from other machines"),
    "a data directory that is a file": ("\ndata_dir = 'file'", 2, "data_dir: file is a file"),
    "a data directory in a file": ("\ndata_dir = 'file/x/y'", 2, "data_dir: file is a file"),
    "an unknown database": (
        "\ndatabase_url = 'mysql://u:secret@h/d'", 2, "database_url: unsupported database 'mysql'"
    ),
    "no URL": ("\ndatabase_url = 'nonsense'", 2, "database_url: not a database URL"),
    "a missing password file": (
        "[[auth]]\ntype = 'password_file'\nfile = 'users'", 3,
        "auth 1: file: users: No such file or directory",
    ),
    "a missing key": (
        "[[auth]]\ntype = 'jwt'\nkey_file = 'key.pem'", 3,
        "auth 1: key_file: key.pem: No such file or directory",
    ),
    "an unknown database of users": (
        "[[auth]]\ntype = 'sql'\ndatabase_url = 'x://h/d'", 3, "auth 1: database_url: invalid"
    ),
    "an unknown database of rules": (
        "[[acl]]\ndatabase_url = 'x://h/d'", 2, "database_url: invalid database URL"
    ),
    "a missing certificate": (
        "[[listeners]]\n\nport = 5\ntls = { cert = 'no.pem', key = 'no.key' }", 3,
        "listeners 1: tls.cert: no.pem: No such file or directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("is_check", [True, False], ids=["check", "start"])
def test_a_mistake_names_its_line(
    place: Path, capfd: pytest.CaptureFixture[str], name: str, is_check: bool
) -> None:
    text, line, words = MISTAKES[name]
    (place / "fleet.toml").write_text(text)
    options = ["--config", "fleet.toml", *(["--check"] if is_check else [])]
    assert main(["broker", *options]) == 2
    out, err = capfd.readouterr()
    errors = [found for found in err.splitlines() if found.startswith("fleetmq broker: ")]
    assert out == "" and errors == err.splitlines()[-1:]
    assert errors[0].startswith(f"fleetmq broker: fleet.toml:{line}: ")
    assert words in errors[0]
    assert "secret" not in err


def test_variables_of_other_commands_are_none_of_the_broker() -> None:
    """Whoever has set the address for `fleetmq ctl` can start a broker in the same shell."""
    load(None, {"FLEETMQ_API": "http://127.0.0.1:8080", "FLEETMQ_SIM_SCENARIO": "factory"}, {})
    with pytest.raises(ConfigError, match="FLEETMQ_APIS"):
        load(None, {"FLEETMQ_APIS": "t"}, {})


def test_other_sources_are_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^FLEETMQ_RECIEVE_MAXIMUM: .* receive_maximum\?"):
        load(None, {"FLEETMQ_RECIEVE_MAXIMUM": "5"}, {})
    with pytest.raises(ConfigError, match=r"^FLEETMQ_HTTP: http is HOST:PORT"):
        load(None, {"FLEETMQ_HTTP": "nowhere"}, {})
    with pytest.raises(ConfigError, match=r"^--host: 192.0.2.1:1883 can be reached"):
        load(None, {}, {"host": "192.0.2.1"})
    (place / "f.toml").write_text("[[listeners]]\npath = 'a'")
    with pytest.raises(ConfigError, match=r"^--unix-socket: two listeners on one address"):
        load("f.toml", {}, {"unix_socket": "a"})


@pytest.mark.parametrize(
    "text",
    [
        "[[listeners]]\nport = 0\n[[listeners]]\nport = 0",
        "[[listeners]]\nport = 5\n[[listeners]]\nport = 6",
        "[[listeners]]\nport = 5\n[[listeners]]\nport = 5\nhost = '::1'",
        "[[listeners]]\nport = 5\n[[listeners]]\nport = 5\nhost = '127.0.0.2'",
        "[[listeners]]\npath = 'a'\n[[listeners]]\npath = 'b'",
        "port = 8080",  # the HTTP server's default, which takes another port then
    ],
)
def test_different_addresses_are_allowed(place: Path, text: str) -> None:
    (place / "f.toml").write_text(text)
    load("f.toml", {}, {})


@pytest.mark.parametrize("key", ["data", "acl"])
def test_a_database_that_does_not_answer_has_its_own_exit_code(
    place: Path, capfd: pytest.CaptureFixture[str], key: str
) -> None:
    with socket.socket() as unused:  # bound and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://u:secret@127.0.0.1:{unused.getsockname()[1]}/d"
        text = {
            "data": f"database_url = '{url}'",
            "acl": f"durability = 'memory'\n[[acl]]\ndatabase_url = '{url}'",
        }[key]
        (place / "fleet.toml").write_text(f"port = 0\n{text}")
        assert main(["broker", "--config", "fleet.toml"]) == 3
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("fleetmq broker: ") and "database" in error
    assert "secret" not in error


TOML = """\
# A comment with [brackets] = 1
a = 1
"b.c" = \"\"\"
[[not]]
a = 2 \"\"\"
c = [ # ] "
  '#',
]
d = { x = { y = "}" } }
[s]
t.u = 3
[[l]]
p = 1
  [l.sub]
  q = '\\'
[[l]]

[[l.more]]
r = "\\""
[[l.more]]
r = 2
[x.'y z']
last = 1"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_found(tmp_path: Path, end: str) -> None:
    path = tmp_path / "f.toml"
    path.write_bytes(TOML.replace("\n", end).encode())
    found = read_toml(str(path))
    second = found["l"][1]
    places = [
        (found, "a", 2), (found, "b.c", 3), (found, "c", 6), (found["d"]["x"], "y", 9),
        (found["s"], "t", 11), (found["s"]["t"], "u", 11), (found["l"][0], "p", 13),
        (found["l"][0]["sub"], "q", 15), (second, "none", 16), (second["more"][0], "r", 19),
        (second["more"][1], "r", 21), (found["x"]["y z"], "last", 23),
    ]  # fmt: skip
    for table, key, line in places:
        assert place_of(table, key, "") == f"{path}:{line}", key
    assert place_of({}, "a", "here") == "here"


def test_lines_of_nothing() -> None:
    assert locate({}, "", "f") == {}
    assert place_of(locate({}, "# nothing", "f"), "a", "") == "f"
