"""Listeners of the file that are taken up at a reload: opened, changed, moved and closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.server.config.config import load
from mqtt_broker.server.listener_service import CLOSED
from mqtt_broker.server.process.reload import ReloadReport
from tests.core.peers import connect
from tests.server.running import PATIENCE_S, Raw, Running
from tests.server.transports import Files, over_tls

HEAD: Final = 'durability = "memory"\n'
ADMINISTRATIVE_ACTION: Final = b"\xe0\x01\x98"


def table(**keys: Any) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{key} = {shown(one)}" for key, one in value.items()) + " }"
        return str(value).lower() if isinstance(value, bool | int) else f"'{value}'"

    return "[[listeners]]\n" + "".join(f"{key} = {shown(one)}\n" for key, one in keys.items())


class Reloading:
    """A broker, and the configuration file that it reads again."""

    def __init__(self, path: Path, broker: Running) -> None:
        self.path = path
        self.broker = broker
        self.sockets = ExitStack()

    def reload(self, *tables: str, head: str = HEAD) -> ReloadReport:
        self.path.write_text(head + "".join(tables))
        return self.again()

    def again(self) -> ReloadReport:
        done = threading.Event()
        report = self.broker.ask(lambda: self.broker.server.reload.report(lambda _: done.set()))
        assert done.wait(PATIENCE_S)
        return report

    @property
    def urls(self) -> dict[str, str]:
        """Those that are open, by name."""
        found = self.broker.ask(lambda: self.broker.server.listener_service.endpoints)
        return {one.name: one.url for one in found}

    def address(self, name: str) -> Any:
        found = self.broker.ask(lambda: self.broker.server.listener_service.find(name).endpoint)
        return found.path or (found.host, found.port)

    def count(self, name: str) -> int:
        service = self.broker.server.listener_service
        return self.broker.ask(lambda: service.find(name).state.connections)

    def connect(self, name: str, client_id: str = "c") -> Raw:
        address = self.address(name)
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        sock = self.sockets.enter_context(socket.socket(family))
        sock.settimeout(PATIENCE_S)
        sock.connect(address)
        raw = Raw(sock)
        raw.send(connect(client_id))
        assert raw.packet()[0] == 0x20
        return raw


def changes(report: ReloadReport) -> dict[str, tuple[Any, Any]]:
    """What was done, by part: now, before."""
    assert all(change.holds == "at once" for change in report.changes)
    return {change.key: (change.value, change.before) for change in report.changes}


@contextmanager
def reloading(tmp_path: Path, tables: Sequence[str]) -> Iterator[Reloading]:
    path = tmp_path / "f.toml"
    path.write_text(HEAD + "".join(tables))
    config = load(str(path), {}, {})
    with Running(*config.endpoints, config=config) as broker:
        it = Reloading(path, broker)
        with it.sockets:
            yield it


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_one_is_added_and_one_removed(tmp_path: Path) -> None:
    first, second = table(name="a", port=0), table(name="b", path=tmp_path / "b")
    with reloading(tmp_path, [first]) as it:
        url = it.urls["a"]
        assert changes(it.again()) == {}
        report = it.reload(first, second)
        assert report.failed == {}
        assert changes(report) == {"listener b": (f"unix:{tmp_path}/b", CLOSED)}
        assert report.changes[0].origin.startswith(f"{it.path}:")
        assert it.urls == {"a": url, "b": f"unix:{tmp_path}/b"}
        stays, goes = it.connect("a", "stays"), it.connect("b", "goes")
        assert changes(it.reload(first)) == {"listener b": (CLOSED, f"unix:{tmp_path}/b")}
        assert goes.packet() == ADMINISTRATIVE_ACTION
        assert not (tmp_path / "b").exists()
        stays.send(b"\xc0\x00")
        assert stays.packet() == b"\xd0\x00"
        assert it.urls == {"a": url}


def test_a_change_keeps_connections_and_counts_them(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(name="a", port=0)]) as it:
        url = it.urls["a"]
        stays = it.connect("a", "stays")
        report = it.reload(table(name="a", port=0, max_connections=1))
        assert changes(report) == {"listener a": (f"{url} with other keys", "with those of before")}
        assert it.urls == {"a": url} and it.count("a") == 1
        with socket.create_connection(it.address("a")) as refused:
            refused.settimeout(PATIENCE_S)
            assert refused.recv(1) == b""  # the one from before counts
        stays.send(b"\xc0\x00")
        assert stays.packet() == b"\xd0\x00"
        stays.sock.close()
        it.broker.wait_until(lambda: not it.broker.server.net.links)
        assert it.count("a") == 0
        it.connect("a", "next").sock.close()


def test_a_renamed_listener_takes_its_connections_along(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(name="a", path=tmp_path / "s")]) as it:
        client = it.connect("a")
        report = it.reload(table(name="b", path=tmp_path / "s"))
        assert list(changes(report)) == ["listener b"] and list(it.urls) == ["b"]
        client.send(b"\xc0\x00")
        assert client.packet() == b"\xd0\x00"
        it.reload(table(name="c", port=0))
        assert client.packet() == ADMINISTRATIVE_ACTION


def test_two_change_places(tmp_path: Path) -> None:
    paths = [tmp_path / "1", tmp_path / "2"]
    names = ["a", "b"]
    with reloading(
        tmp_path, [table(name=n, path=p) for n, p in zip(names, paths, strict=True)]
    ) as it:
        report = it.reload(*(table(name=n, path=p) for n, p in zip("ba", paths, strict=True)))
        assert report.failed == {}
        assert it.urls == {"b": f"unix:{paths[0]}", "a": f"unix:{paths[1]}"}
        for name in names:
            it.connect(name, name)
            assert it.count(name) == 1
        assert changes(it.again()) == {}


def test_one_moves_into_the_place_of_one_that_moves(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    with reloading(tmp_path, [table(name="one", path=a), table(name="two", path=b)]) as it:
        report = it.reload(table(name="one", path=b), table(name="two", path=c))
        assert report.failed == {} and it.urls == {"one": f"unix:{b}", "two": f"unix:{c}"}
        assert not a.exists()
        it.connect("one", "1")
        it.connect("two", "2")


def test_a_port_in_use_is_told_and_the_others_are_taken_up(tmp_path: Path, taken: int) -> None:
    with reloading(tmp_path, [table(name="a", port=0)]) as it:
        url = it.urls["a"]
        report = it.reload(
            table(name="a", port=taken), table(name="b", port=0, host="127.0.0.2"),
            table(name="c", path=tmp_path / "c"),
        )  # fmt: skip
        assert list(report.failed) == ["listener a"]
        assert report.failed["listener a"] == (
            f"cannot listen on 127.0.0.1:{taken}: Address already in use; {url} stays as it was"
        )
        assert set(changes(report)) == {"listener b", "listener c"}
        assert it.urls["a"] == url and set(it.urls) == {"a", "b", "c"}
        assert it.broker.server.reload.failures == 1
        it.connect("a")
        assert list(it.again().failed) == ["listener a"]  # it is tried again


def test_a_new_one_that_cannot_open_is_tried_again(tmp_path: Path) -> None:
    first = table(name="a", port=0)
    with reloading(tmp_path, [first]) as it:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
            second = table(name="b", port=port)
            report = it.reload(first, second)
            assert report.failed["listener b"].endswith("Address already in use; it is not open")
            assert changes(report) == {} and list(it.urls) == ["a"]
        assert changes(it.again()) == {"listener b": (f"127.0.0.1:{port}", CLOSED)}


def test_a_wider_address_on_the_same_port(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(name="a", port=0)]) as it:
        _, port = it.address("a")
        wide = table(name="a", host="0.0.0.0", port=port, allow_anonymous=True)
        client = it.connect("a")
        assert it.reload(wide).failed == {}
        assert it.urls == {"a": f"0.0.0.0:{port}"} and it.count("a") == 1
        client.send(b"\xc0\x00")
        assert client.packet() == b"\xd0\x00"
        narrow = table(name="a", host="127.0.0.1", port=port)
        assert it.reload(narrow).failed == {} and it.urls == {"a": f"127.0.0.1:{port}"}


def test_an_overlapping_move_that_fails_is_undone(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(name="a", port=0, host="127.0.0.1")]) as it:
        _, port = it.address("a")
        with socket.create_server(("127.0.0.2", port)):
            report = it.reload(table(name="a", host="0.0.0.0", port=port, allow_anonymous=True))
            assert "Address already in use" in report.failed["listener a"]
            assert it.urls == {"a": f"127.0.0.1:{port}"}
            it.connect("a")
        assert it.again().failed == {} and it.urls == {"a": f"0.0.0.0:{port}"}


def test_certificates_that_are_missing(tmp_path: Path) -> None:
    rules = {"cert": tmp_path / "server.pem", "key": tmp_path / "server.key"}
    plain, tls = table(name="a", port=0), table(name="a", port=0, tls=rules)
    with reloading(tmp_path, [plain]) as it:
        url = it.urls["a"]
        report = it.reload(tls, table(name="b", path=tmp_path / "b"))
        assert "server.pem" in report.failed["listener a"]
        assert report.failed["listener a"].endswith(f"{url} stays as it was")
        assert set(it.urls) == {"a", "b"}
        it.connect("a")
        files = Files(tmp_path)
        assert it.again().failed == {}
        with over_tls(it.address("a")[1], files.ca):
            pass
        assert "TLS of a" in it.broker.server.reload.watched
        it.reload(table(name="a", path=tmp_path / "a", tls=rules))
        assert "TLS of a" in it.broker.server.reload.watched  # it moved, and is watched still
        report = it.reload(table(name="b", path=tmp_path / "b"))
        assert "TLS of a" not in it.broker.server.reload.watched
        assert report.pending == set() and list(it.urls) == ["b"]


def test_a_mistake_in_the_file_changes_nothing(tmp_path: Path) -> None:
    first = table(name="a", port=0)
    with reloading(tmp_path, [first]) as it:
        before = it.urls
        for text in (first + first, first + "speed = 1\n", first + table(name="b", port="x")):
            assert list(it.reload(text).failed) == [f"configuration {it.path}"]
            assert it.urls == before
        open_to_all = table(name="b", host="0.0.0.0", port=0)
        head = HEAD + "allow_anonymous = true\n"  # which needs a restart
        report = it.reload(first, open_to_all, head=head)
        assert "can be reached from other machines" in report.failed["listener b"]
        assert it.urls == before


def test_what_an_operator_did_stays(tmp_path: Path) -> None:
    first, second = table(name="a", port=0), table(name="b", path=tmp_path / "b")
    with reloading(tmp_path, [first, second]) as it:
        service = it.broker.server.listener_service
        ask = it.broker.ask
        ask(lambda: service.change("a", {"max_connections": 7}))
        ask(lambda: service.close("b", disconnect=False))
        ask(lambda: service.add({"name": "own", "path": str(tmp_path / "own")}))
        after = ask(lambda: {one.endpoint.name: service.after_restart(one) for one in service.open})
        assert after == {"a": "changed", "own": "gone"}
        report = it.reload(first, second)  # nothing has changed in the file
        assert changes(report) == {} and set(it.urls) == {"a", "own"}
        assert service.find("a").endpoint.rules.max_connections == 7
        report = it.reload(table(name="a", port=0, max_connections=8), second)
        assert list(changes(report)) == ["listener a"]
        assert service.find("a").endpoint.rules.max_connections == 8
        assert ask(lambda: service.after_restart(service.find("a"))) == "same"
        # The file has the other one, too, from now on.
        report = it.reload(second, table(name="mine", path=tmp_path / "own"))
        assert set(it.urls) == {"mine"}
        assert not service.is_added("mine") and not service.is_added("own")
        assert ask(lambda: service.after_restart(service.find("mine"))) == "same"


def test_two_reloads_at_once(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(name="a", port=0)]) as it:
        it.path.write_text(HEAD + table(name="b", path=tmp_path / "b"))
        done: list[ReloadReport] = []

        def twice() -> None:
            it.broker.server.reload.report(done.append)
            it.broker.server.reload.report(done.append)

        it.broker.ask(twice)
        assert [set(changes(report)) for report in done] == [{"listener a", "listener b"}, set()]
        assert list(it.urls) == ["b"]


def test_no_tables_is_the_default_address_or_that_of_the_keys(tmp_path: Path, taken: int) -> None:
    with reloading(tmp_path, [table(name="a", port=0)]) as it:
        report = it.reload(head=f"{HEAD}port = {taken}\n")
        assert {change.key: change.holds for change in report.changes} == {
            "port": "", "[[listeners]]": "",
        }  # fmt: skip
        assert list(it.urls) == ["a"]


def test_a_file_that_was_cut_off_disconnects_nobody(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(name="a", port=0)]) as it:
        client = it.connect("a")
        report = it.reload()
        assert [(change.key, change.holds) for change in report.changes] == [("[[listeners]]", "")]
        client.send(b"\xc0\x00")
        assert client.packet() == b"\xd0\x00"
        assert changes(it.reload(table(name="a", port=0))) == {}


def test_listeners_with_a_free_port_are_told_apart(tmp_path: Path) -> None:
    with reloading(tmp_path, [table(port=0), table(port=0)]) as it:
        first, second = it.urls
        assert changes(it.again()) == {}
        report = it.reload(table(port=0))
        assert list(changes(report)) == [f"listener {second}"] and list(it.urls) == [first]
