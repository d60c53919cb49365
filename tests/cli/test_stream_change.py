"""`fleetmq stream create|change|truncate|delete|groups|reset`: what reaches the broker."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from mqtt_broker.http_api import address_file
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings
from tests.cli.streams import TOKEN, Shell
from tests.cli.test_stream_read import fill
from tests.http_api.brokers import LogBroker, Serving
from tests.streams.logs import NAME


@pytest.fixture(autouse=True)
def at_home(shell: Shell, http: Serving, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is found by its data directory."""
    monkeypatch.setenv("FLEETMQ_DATA_DIR", str(data_dir))


def settings(broker: LogBroker, name: str) -> StreamSettings:
    return broker.do(lambda: broker.writing.log.stream(name).settings)


def test_create_with_all_there_is(broker: LogBroker, shell: Shell, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    found = shell(
        "create", "made", "--filter", "fleet/+/x", "--partitions", "4", "--retain", "7d",
        "--max-bytes", "10GB", "--partition-by", "level:2", "--event-time", "json:$.at",
        "--sent-time", "property:sent", "--schema", str(schema), "--compact", "--tombstone", "2h",
        "--segment-bytes", "64MiB", "--segment-age", "1h",
    )  # fmt: skip
    made = settings(broker, "made")
    assert (found.code, found.err) == (0, "")
    assert found.out == f"created made: 4 partitions, epoch {made.epoch}\n"
    assert made == StreamSettings(
        "made", filter="fleet/+/x", partitions=4, partition_by="level:2", retain_s=7 * 86_400,
        max_bytes=10**10, compact=True, tombstone_s=7_200, segment_bytes=64 << 20,
        segment_s=3_600, event_time="json:$.at", sent_time="property:sent",
        schema={"type": "object"}, epoch=made.epoch,
    )  # fmt: skip
    found = shell("change", "made", "--retain", "1d", "--no-compact", "--no-schema", "--filter", "")
    assert (found.code, found.out) == (0, "changed made: compact, filter, retain_s, schema\n")
    made = settings(broker, "made")
    assert (made.retain_s, made.compact, made.schema, made.filter) == (86_400, False, None, "")
    assert shell("create", "plain").out.startswith("created plain: 1 partition, epoch ")
    assert settings(broker, "plain") == StreamSettings(
        "plain", epoch=settings(broker, "plain").epoch
    )


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("create", NAME), 1, "name: a stream 'telemetry' exists already"),
        (("create", "a/b"), 2, "name: 'a/b' is invalid: expected up to 100"),
        (
            ("create", "x", "--partitions", "0"),
            2,
            "partitions: 0 is out of range: expected 1 to 256",
        ),
        (("create", "x", "--partitions", "many"), 2, "--partitions: 'many' is not a whole number"),
        (("create", "x", "--retain", "7 x"), 2, "--retain: '7 x' is not a duration"),
        (("create", "x", "--segment-age", "-1"), 2, "--segment-age"),
        (("create", "x", "--max-bytes", "10 gigs"), 2, "--max-bytes: '10 gigs' is not a size"),
        (("create", "x", "--filter", "a/#/b"), 2, "filter: "),
        (("create", "x", "--partition-by", "luck"), 2, "partition_by: 'luck' is invalid"),
        (("create", "x", "--event-time", "at"), 2, "event_time: 'at' is invalid"),
        (("create", "x", "--schema", "/none"), 2, "--schema: /none: No such file"),
        (("create", "x", "--schema", __file__), 2, "is not JSON"),
        (("change", NAME), 2, "give at least one setting"),
        (("change", NAME, "--schema", "x", "--no-schema"), 2, "--schema: x: No such file"),
        (("change", "x", "--retain", "1d"), 1, "there is no stream 'x'"),
        (("change", NAME, "--partitions", "5"), 2, "--partitions"),
        (("delete", "x", "--yes"), 1, "there is no stream 'x'"),
        (("truncate", NAME, "--before", "soon", "--yes"), 1, "'soon' is invalid"),
        (("groups", "x"), 1, "there is no stream 'x'"),
        (("groups", NAME, "--delete", "g"), 1, "there is no group 'g'"),
        (("reset", NAME, "g"), 2, "--to"),
        (("reset", NAME, "g", "--to", '{"p0": 9, "p1": 0}'), 1, "offset 9 is beyond the end"),
    ],
)
def test_mistakes(shell: Shell, argv: tuple[str, ...], code: int, says: str) -> None:
    shell.fails(code, says, *argv)


def test_truncate(broker: LogBroker, shell: Shell) -> None:
    fill(broker, 10)
    found = shell("truncate", NAME, "--before", '{"p0": 5, "p1": 0}', "--yes")
    assert (found.code, found.out) == (
        0, f"removed 1 segment of {NAME}; 5 messages left\n"
    )  # fmt: skip
    found = shell("truncate", NAME, "--yes")
    assert found.out == f"removed 1 segment of {NAME}; 0 messages left\n"


def test_delete(broker: LogBroker, shell: Shell) -> None:
    assert shell("delete", NAME, "--yes").out == f"deleted {NAME}\n"
    assert broker.do(lambda: list(broker.writing.log.streams)) == []


def test_nothing_is_removed_where_nobody_can_be_asked(broker: LogBroker, shell: Shell) -> None:
    shell.fails(2, f"give --yes to remove {NAME} and all in it", "delete", NAME)
    shell.fails(2, "give --yes to remove what is in", "truncate", NAME)
    assert NAME in broker.do(lambda: list(broker.writing.log.streams))


def test_a_stream_without_a_filter_warns(broker: LogBroker, shell: Shell) -> None:
    found = shell("create", "empty")
    assert found.code == 0
    assert found.err == (
        "fleetmq stream: empty has no filter, so the broker stores no messages in it: "
        "fleetmq stream change empty --filter 'TOPIC/#'\n"
    )
    assert shell("create", "full", "--filter", "full/#").err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_done"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked(
    broker: LogBroker, shell: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, is_done: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    found = shell("delete", NAME)
    assert f"remove {NAME} and all in it? [y/N] " in found.err
    assert found.code == (0 if is_done else 1)
    assert (NAME in broker.do(lambda: list(broker.writing.log.streams))) != is_done
    if not is_done:
        assert shell("truncate", NAME, "--yes").code == 0


def test_groups(broker: LogBroker, shell: Shell) -> None:
    fill(broker, 10)
    found = shell("groups", NAME)
    assert (found.code, found.out, found.err) == (0, "", f"no groups on {NAME}\n")
    broker.committed["night/shift", NAME] = Offsets(settings(broker, NAME).epoch, (1, 5))
    broker.members["night/shift"] = {"worker\x1b": [0], "idle": []}
    found = shell("groups", NAME)
    assert [line.split() for line in found.lines] == [
        ["GROUP", "PARTITION", "COMMITTED", "LAG", "MEMBER"],
        ["night/shift", "p0", "1", "4", r"worker\x1b"],
        ["night/shift", "p1", "5", "0", "-"],
        ["night/shift", "-", "-", "-", "idle", "(idle)"],
    ]
    (asked,) = json.loads(shell("groups", NAME, "--json").out)
    assert asked["lag"] == {"p0": 4, "p1": 0}
    shell.fails(1, "has members", "reset", NAME, "night/shift", "--to", "earliest")
    broker.members.clear()
    found = shell("reset", NAME, "night/shift", "--to", "earliest")
    assert (found.code, found.out) == (0, "group night/shift continues at p0 0, p1 0\n")
    assert shell("groups", NAME, "--delete", "night/shift").out == "deleted group night/shift\n"
    assert broker.committed == {}


def test_where_the_broker_is(
    http: Serving, shell: Shell, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("groups", NAME)
    monkeypatch.delenv("FLEETMQ_DATA_DIR")
    monkeypatch.chdir(tmp_path)
    shell.fails(1, "no broker with an HTTP server runs on fleetmq-data: fleetmq-data/http.json does"
                " not exist; give --api URL or --data-dir DIR", *asked)  # fmt: skip
    assert shell(*asked, "--data-dir", str(data_dir)).code == 0
    assert shell(*asked, "--api", http.url).code == 0
    found = shell.fails(1, "the token is missing or wrong: give --token", *asked, "--api", http.url,
                        "--token", "no")  # fmt: skip
    assert TOKEN not in found.err
    shell.fails(
        2, "url: 'nonsense' is invalid: expected http://host:port", *asked, "--api", "nonsense"
    )
    shell.fails(1, "http://127.0.0.1:1: Connection refused", *asked, "--api", "http://127.0.0.1:1")
    address_file.write(data_dir, "http://127.0.0.1:1")
    shell.fails(1, "Connection refused", *asked, "--data-dir", str(data_dir))
    (data_dir / address_file.FILE).write_text("{}")
    shell.fails(1, "not a JSON object with url and pid", *asked, "--data-dir", str(data_dir))


def test_a_broker_without_a_log_says_so(
    broker: LogBroker, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(broker, None, TOKEN) as other:
        shell.fails(
            1, "this broker keeps no telemetry log", "reset", NAME, "g", "--to", "latest",
            "--api", other.url,
        )  # fmt: skip


@pytest.mark.parametrize("levels", [100, 900, 100_000])
def test_a_schema_that_is_too_deep(
    broker: LogBroker, shell: Shell, tmp_path: Path, levels: int
) -> None:
    before = sorted(broker.root.rglob("*"))
    path = tmp_path / "deep.json"
    path.write_text('{"a":' * levels + "1" + "}" * levels)
    shell.fails(2, "schema: ", "create", "deep", "--schema", str(path))
    shell.fails(2, "schema: ", "change", NAME, "--schema", str(path))
    assert sorted(broker.root.rglob("*")) == before
