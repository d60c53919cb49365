"""`fleetmq stream list|describe|tail|verify`, on a directory and on a URL."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mqtt_broker.cli import stream_text
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests import forked
from tests.cli.streams import PROGRAM, TOKEN, Shell
from tests.http_api.brokers import PATIENCE_S, LogBroker, Serving
from tests.streams.logs import NAME, Sent, segments

PLACES = ["data directory", "streams", "url"]


@pytest.fixture(params=PLACES)
def log(request: pytest.FixtureRequest, http: Serving, data_dir: Path) -> str:
    """What --log takes."""
    return {
        "data directory": str(data_dir), "streams": str(data_dir / "streams"), "url": http.url,
    }[request.param]  # fmt: skip


DEVICES = ("truck", "van")  # in p0 and p1


def fill(broker: LogBroker, count: int) -> None:
    """A message a second, from both in turn."""
    for number in range(count):
        device = DEVICES[number % 2]
        broker.put(b'{"n": %d}' % number, client_id=device, topic=f"fleet/{device}/telemetry")
        broker.writing.now_us += 1_000_000


def test_list(broker: LogBroker, log: str, shell: Shell) -> None:
    broker.create(1, "bare")
    fill(broker, 4)
    found = shell("list", "--log", log)
    assert found.code == 0
    assert [line.split() for line in found.lines] == [
        ["STREAM", "PARTITIONS", "MESSAGES", "SIZE", "KEEPS", "FIRST", "LAST", "FILTER"],
        ["bare", "1", "0", "0", "B", "everything", "-", "-", "-"],
        [NAME, "2", "4", "608", "B", "36,500d", "2023-11-14", "22:13:20Z", "2023-11-14",
         "22:13:23Z", "fleet/+/telemetry"],
    ]  # fmt: skip
    at = found.lines[0].index("FILTER")  # the columns stand below each other
    assert found.lines[2][at:] == "fleet/+/telemetry"
    asked = json.loads(shell("list", "--log", log, "--json").out)
    assert [(one["name"], one["offsets"]) for one in asked] == [("bare", 0), (NAME, 4)]


def test_list_of_nothing(tmp_path: Path, shell: Shell) -> None:
    found = shell("list", "--log", str(tmp_path))
    assert (found.code, found.out, found.err) == (0, "", f"no streams in {tmp_path}\n")


def test_list_goes_on_past_a_stream_that_is_damaged(
    broker: LogBroker, log: str, shell: Shell
) -> None:
    broker.create(1, "broken")
    (broker.root / "broken" / "stream.json").write_text("{")
    found = shell("list", "--log", log)
    assert found.code == 1
    assert NAME in found.out and "broken" not in found.out
    assert "stream.json: not valid JSON" in found.err


def test_describe(broker: LogBroker, log: str, shell: Shell) -> None:
    fill(broker, 3)
    found = shell("describe", NAME, "--log", log)
    assert found.code == 0
    assert found.lines[0] == NAME
    about = dict(line.split(None, 1) for line in found.lines[1:] if line.startswith("  "))
    assert about["filter"] == "fleet/+/telemetry"
    assert about["partitions"] == "2, by level:2"
    assert about["keeps"] == "36,500d"
    assert about["messages"] == "3"
    assert {about["p0"].split()[1], about["p1"].split()[1]} == {"1", "2"}
    asked = json.loads(shell("describe", NAME, "--log", log, "--json").out)
    assert asked["settings"]["partition_by"] == "level:2"
    assert len(asked["partitions"]) == 2


def test_tail_shows_the_last_ones(broker: LogBroker, log: str, shell: Shell) -> None:
    fill(broker, 30)
    found = shell("tail", NAME, "--log", log, "-n", "3")
    assert found.code == 0
    for line, number in zip(found.lines, (27, 28, 29), strict=True):
        at, place, topic, client_id, payload = line.split("  ")
        assert at == f"2023-11-14T22:13:{20 + number}Z"
        assert place == f"p{number % 2}@{number // 2}"
        assert (topic, client_id) == (f"fleet/{DEVICES[number % 2]}/telemetry", DEVICES[number % 2])
        assert payload == f'{{"n": {number}}}'
    assert len(shell("tail", NAME, "--log", log).lines) == 10
    assert len(shell("tail", NAME, "--log", log, "-n", "99").lines) == 30
    assert shell("tail", NAME, "--log", log, "-n", "0").lines == []
    assert len(shell("tail", NAME, "--log", log, "--partition", "1", "-n", "99").lines) == 15


def numbers(lines: list[str]) -> list[int]:
    return [json.loads(json.loads(line)["payload"])["n"] for line in lines]


def test_tail_from_a_place(broker: LogBroker, log: str, shell: Shell) -> None:
    fill(broker, 12)
    json_ = ("tail", NAME, "--log", log, "--format", "json", "--from")
    assert numbers(shell(*json_, "earliest").lines) == list(range(12))  # by time of receipt
    assert numbers(shell(*json_, "earliest", "-n", "5").lines) == list(range(5))
    assert numbers(shell(*json_, "2023-11-14T22:13:28Z").lines) == [8, 9, 10, 11]
    assert numbers(shell(*json_, '{"p0": 5, "p1": 5}').lines) == [10, 11]
    assert shell(*json_, "latest").lines == []


def test_tail_of_what_is_compacted_looks_further_back(
    broker: LogBroker, log: str, shell: Shell
) -> None:
    """Five topics that spoke once, and one that does not stop: five of 300 offsets are left."""
    broker.create(1, "state", compact=True, segment_bytes=4_096)
    for number in range(300):
        topic = f"t{number}" if number < 5 else "busy"
        broker.put_all([Sent(topic, "c", b'{"n": %d}' % number)], "state")
        broker.writing.now_us += 1_000_000
    broker.do(lambda: broker.writing.log.compact(broker.writing.now_us))
    with Source.open(broker.root, "state") as source, Reader(source, 0, 0) as reader:
        left = []
        while batches := reader.read():
            left += [record.offset for batch in batches for record in records(batch)]
    assert left[:5] == [0, 1, 2, 3, 4] and 6 < len(left) < 100
    found = shell("tail", "state", "--log", log, "-n", str(len(left)), "--format", "json")
    assert numbers(found.lines) == left
    found = shell("tail", "state", "--log", log, "-n", str(len(left) - 2), "--format", "json")
    assert numbers(found.lines) == left[2:]


def test_what_a_terminal_would_obey_is_shown_instead(
    broker: LogBroker, log: str, shell: Shell
) -> None:
    broker.put("\x1b[31mred\x07\u202e\nnew line ü \x9b".encode(), b"\xff\x00", client_id="a\tb")
    lines = shell("tail", NAME, "--log", log).lines
    assert lines[0].endswith(r"a\tb  \x1b[31mred\x07\u202e\nnew line ü \x9b")
    assert lines[1].endswith("0xff00")
    first = json.loads(shell("tail", NAME, "--log", log, "--format", "json").lines[0])
    assert first["client_id"] == "a\tb"


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("tail", "other"), 1, "there is no stream 'other'"),
        (("describe", "other"), 1, "there is no stream 'other'"),
        (("tail", "a/b"), 2, "name: 'a/b' is invalid: expected up to 100"),
        (("tail", NAME, "--from", "soon"), 2, "--from: 'soon' is invalid"),
        (("tail", NAME, "--from", '{"p0": 1}'), 2, "--from: p1 of stream"),
        (("tail", NAME, "--from", '{"p0": 99, "p1": 0}'), 1, "offset 99 is beyond the end"),
        (("tail", NAME, "--partition", "2"), 2, "has no partition p2: p0 to p1 exist"),
        (("tail", NAME, "-n", "x"), 2, "-n: 'x' is not a whole number"),
        (("tail", NAME, "--format", "xml"), 2, "--format"),
    ],
)
def test_mistakes(
    broker: LogBroker, log: str, shell: Shell, argv: tuple[str, ...], code: int, says: str
) -> None:
    shell.fails(code, says, *argv, "--log", log)


def test_a_place_that_is_none(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.fails(2, f"--log: there is no directory {tmp_path}/x", "list", "--log", f"{tmp_path}/x")
    monkeypatch.chdir(tmp_path)
    shell.fails(2, "--log: there is no directory fleetmq-data", "tail", NAME)
    shell.fails(1, "http://127.0.0.1:1: Connection refused", "list", "--log", "http://127.0.0.1:1")


def test_the_data_directory_of_the_environment(
    broker: LogBroker, data_dir: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETMQ_DATA_DIR", str(data_dir))
    assert NAME in shell("list").out


def test_the_token(http: Serving, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ("list", "--log", http.url, "--token", "wrong")
    found = shell.fails(1, "the token is missing or wrong: give --token or FLEETMQ_HTTP", *wrong)
    assert TOKEN not in found.err
    monkeypatch.delenv("FLEETMQ_HTTP_TOKEN")
    assert shell("list", "--log", http.url).code == 1
    assert shell("list", "--log", http.url, "--token", TOKEN).code == 0


def damage(broker: LogBroker) -> None:
    """One byte in the middle of the longest file."""
    path = max(segments(broker.root, 0) + segments(broker.root, 1), key=os.path.getsize)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_damage_ends_it_unless_told_otherwise(broker: LogBroker, log: str, shell: Shell) -> None:
    fill(broker, 20)
    damage(broker)
    found = shell("tail", NAME, "--log", log, "--from", "earliest")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert "does not match its checksum" in found.err
    found = shell("tail", NAME, "--log", log, "--from", "earliest", "--skip-damage")
    assert (found.code, len(found.lines)) == (0, 19)
    assert found.err.count("does not match its checksum") == 1


@pytest.mark.parametrize("name", ["stream.json", "committed"])
def test_a_file_that_says_nothing_is_no_mistake_of_the_caller(
    broker: LogBroker, log: str, shell: Shell, name: str
) -> None:
    fill(broker, 2)
    path = broker.root / NAME / name
    path.write_bytes(b"?" + path.read_bytes()[1:])
    for argv in (["tail", NAME], ["export", NAME], ["tail", NAME, "--from", "earliest"]):
        shell.fails(1, f"{name}: ", *argv, "--log", log)


def test_verify(broker: LogBroker, data_dir: Path, http: Serving, shell: Shell) -> None:
    fill(broker, 20)
    found = shell("verify", "--log", str(data_dir))
    assert (found.code, found.err) == (0, "")
    assert found.lines == [f"{NAME}: whole: 20 messages in 20 batches, 2 segments, 3.12 kB"]
    damage(broker)
    found = shell("verify", NAME, "--log", str(data_dir))
    assert (found.code, len(found.lines)) == (1, 2)
    assert "does not match its checksum" in found.lines[0]
    assert found.lines[1].startswith(f"{NAME}: 1 finding: ")
    shell.fails(1, "there is no stream 'other'", "verify", "other", "--log", str(data_dir))
    shell.fails(2, "--log: verify reads files", "verify", "--log", http.url)


def test_following_until_it_is_interrupted(broker: LogBroker, log: str, data_dir: Path) -> None:
    fill(broker, 12)
    with forked.Popen(
        [*PROGRAM, "tail", NAME, "-f", "--log", log, "--format", "json", "-n", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=forked.ROOT,
        env={**os.environ, "FLEETMQ_HTTP_TOKEN": TOKEN},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            fill(broker, 5)
            lines += [process.stdout.readline() for _ in range(5)]
            assert numbers(lines) == [10, 11, 0, 1, 2, 3, 4]
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
            assert process.stderr.read() == "fleetmq stream: SIGINT, stopping\n"
        finally:
            process.kill()


def test_following_a_stream_that_is_deleted(broker: LogBroker, log: str) -> None:
    fill(broker, 1)
    with forked.Popen(
        [*PROGRAM, "tail", NAME, "-f", "--log", log],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=forked.ROOT,
        env={**os.environ, "FLEETMQ_HTTP_TOKEN": TOKEN},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            process.stdout.readline()
            broker.stream_delete(NAME).result(PATIENCE_S)
            assert process.wait(PATIENCE_S) == 1
            assert process.stderr.read() == f"fleetmq stream: stream '{NAME}' was deleted\n"
        finally:
            process.kill()


def test_whoever_reads_may_have_seen_enough(broker: LogBroker, data_dir: Path) -> None:
    fill(broker, 200)
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" tail {NAME} --from earliest --log {data_dir} | head -n 1',
         "sh", *PROGRAM],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (1_234, "1.23 kB"), (99_940, "99.9 kB"),
        (123_456, "123 kB"), (999_600, "1 MB"), (10_000_000_000, "10 GB"), (10**18, "1000 PB"),
    ],
)  # fmt: skip
def test_sizes(size: int, text: str) -> None:
    assert stream_text.size_text(size) == text


def test_periods() -> None:
    seconds = (86_400, 7 * 86_400, 3_600, 90, 120, 36 * 3_600)
    assert [stream_text.period_text(one) for one in seconds] == "1d 7d 1h 90s 2m 36h".split()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("mqtt_broker.cli.stream_text.time.monotonic", lambda: now)
    screen, file = Terminal(), io.StringIO()
    for where in (screen, file):
        with stream_text.Progress(1_000, "messages", where) as progress:
            for _ in range(4):
                now += 0.2
                progress.add(200)
    assert screen.getvalue().split("\r") == [
        "", "400 messages  40 %  1,000/s", "800 messages  80 %  1,000/s", " " * 27, "",
    ]  # fmt: skip
    assert file.getvalue() == ""


def test_what_is_older_than_the_retention_is_not_shown(
    broker: LogBroker, log: str, shell: Shell
) -> None:
    """No broker need run that would remove it."""
    broker.writing.now_us = time.time_ns() // 1_000 - 3_570_000_000
    for number in range(60):
        broker.put(b"%d" % number, topic="fleet/truck/telemetry")
        broker.writing.now_us += 60_000_000
    broker.stream_change(NAME, {"retain_s": 1_800}).result(PATIENCE_S)
    for more in (("--from", "earliest"), ("-n", "100"), ("--from", "2001-01-01")):
        found = shell("tail", NAME, "--log", log, *more, "--format", "json")
        shown = [json.loads(line)["payload"] for line in found.out.splitlines()]
        assert shown == [str(number) for number in range(30, 60)], more
    found = shell("export", NAME, "--log", log, "--from", "earliest")
    assert len(found.out.splitlines()) == 30
    shell.fails(1, "offset 3 is no longer kept", "export", NAME, "--log", log,
                "--from", '{"p0": 3, "p1": 0}')  # fmt: skip
