"""The modules of the page that need no browser, run by node: formats, scales, MQTT packets."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from typing import Any
from urllib.parse import unquote

import pytest

from iot_sim.report.charts import (
    POINTS_MAX,
    TICKS_MAX,
    Line,
    downsample,
    line_chart,
    step_of_time,
    value_step,
)
from mqtt_broker.cli.api_client import escaped
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Connect, Publish, Subscribe
from mqtt_broker.http_api.pages.site_files import ROOT

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js: there is no node")


def node(module: str, expression: str, *args: Any) -> Any:
    """What an expression of a module's exports `m` and of `args` is."""
    assert NODE is not None
    script = (
        f"import * as m from {json.dumps((ROOT / 'js' / module).as_uri())};"
        "const args = JSON.parse(process.argv[1]);"
        f"process.stdout.write(JSON.stringify({expression}) ?? 'null');"
    )
    command = [NODE, "--no-warnings", "--experimental-default-type=module"]
    ran = subprocess.run(
        [*command, "--input-type=module", "--eval", script, json.dumps(args)],
        capture_output=True,
        text=True,
        check=False,
        env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_scales_are_those_of_the_simulators_report() -> None:
    values = [0, 0.001, 0.5, 1, 2.4999, 2.5, 7, 10, 12, 99, 100, 1234, 5e6, 1e9]
    times = [1, 5, 6, 7, 59, 300, 900, 3600, 4000, 86_400, 600_000]
    assert node("chart_scale.js", "args[0].map(m.valueStep)", values) == pytest.approx(
        [value_step(value) for value in values]
    )
    assert node("chart_scale.js", "args[0].map(m.timeStep)", times) == [
        step_of_time(value) for value in times
    ]


def test_scales_agree_on_thousands_of_values() -> None:
    rng = random.Random(7)
    values = [rng.choice((1, 2, 2.5, 5, rng.uniform(1, 10))) * 10.0**power for power in
              range(-6, 12) for _ in range(100)]  # fmt: skip
    assert node("chart_scale.js", "args[0].map(m.valueStep)", values) == pytest.approx(
        [value_step(value) for value in values]
    )
    times = [rng.randrange(1, 3_000_000) for _ in range(2_000)]
    assert node("chart_scale.js", "args[0].map(m.timeStep)", times) == [
        step_of_time(value) for value in times
    ]
    assert node("chart_scale.js", "m.TICKS_MAX") == TICKS_MAX


@pytest.mark.parametrize("length", [0, 1, 359, 360, 361, 720, 1_000, 3_601])
def test_long_series_are_reduced_in_the_same_way(length: int) -> None:
    rng = random.Random(length)
    values = [None if rng.random() < 0.2 else rng.randrange(1_000) for _ in range(length)]
    reduced = downsample(values)
    assert node("chart_scale.js", f"m.downsample(args[0], {POINTS_MAX})", values) == reduced
    pieces = node("chart_scale.js", "m.runs(args[0], (x) => x, (y) => y)", reduced)
    chart = line_chart("c", list(range(len(values))), [Line("a", "s", values)], str)
    drawn = re.findall(r'points="([^"]*)"', chart)
    assert [len(points) for points in pieces] == [len(points.split()) for points in drawn]


def test_byte_ticks_are_round_in_powers_of_1024() -> None:
    found = node("chart_scale.js", "args[0].map(m.byteStep)", [0, 100, 3000, 3_500_000])
    assert found == [1, 20, 1024, 1_048_576]


def test_newer_samples_continue_those_that_are_kept() -> None:
    kept = {"start_at": 100, "step_s": 5, "series": {"a": [1, 2, 3, 4]}}
    newer = {"start_at": 110, "step_s": 5, "series": {"a": [30, 40, 50]}}
    later = {"start_at": 130, "step_s": 5, "series": {"a": [7]}}
    other = {"start_at": 50, "step_s": 5, "series": {"a": [9]}}
    found = node(
        "chart_scale.js", "args.slice(1).map((one) => m.joined(args[0], one, 6))",
        kept, newer, later, other,
    )  # fmt: skip
    assert found[0] == {"start_at": 100, "step_s": 5, "series": {"a": [1, 2, 30, 40, 50]}}
    assert found[1] == {"start_at": 105, "step_s": 5, "series": {"a": [2, 3, 4, None, None, 7]}}
    assert found[2] == other


def test_downsampling_keeps_peaks_and_gaps() -> None:
    assert node("chart_scale.js", "m.downsample(args[0], 2)", [1, 9, None, None]) == [9, None]
    assert node("chart_scale.js", "m.downsample([], 5)") == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("m.count(15000)", "15,000"),
        ("m.count(null)", "\u2013"),
        ("m.short(1234)", "1.23k"),
        ("m.short(0.05)", "0.05"),
        ("m.bytes(1536)", "1.5 KB"),
        ("m.bytes(0)", "0 B"),
        ("m.duration(0)", "0 s"),
        ("m.duration(0.0004)", "0.4 ms"),
        ("m.duration(3725)", "1 h 2 min"),
        ("m.duration(60)", "1 min"),
        ("m.duration(90061)", "1 d 1 h"),
        ("m.duration(-5)", "-5 s"),
        ("m.percent(0.123)", "12.3 %"),
        ("m.clock(0.25, { millis: true })", "00:00:00.250"),
        ("m.moment(0, 1e9)", "1970-01-01 00:00:00"),
        ("m.moment(10, 20)", "00:00:10"),
        ("m.ago(10, 15)", "5 s ago"),
        ("m.label('queued_bytes')", "Queued"),
        ("m.label('qos')", "QoS"),
        ("m.label('messages_per_s')", "Messages per s"),
        ("m.seconds('10m')", 600),
        ("m.seconds('1.5h')", 5400),
        ("m.seconds('x')", None),
        ("m.visible('a\\u202eb\\u0000')", "a\\u202eb\\u0000"),
        ("m.payloadText(new Uint8Array([0, 255]))", "00 ff"),
        ("m.payloadText(new TextEncoder().encode('é'.repeat(9)), 5)", "éé … 18 B in all"),
        ("[...m.fromBase64(m.toBase64(new Uint8Array([0, 200, 7])))]", [0, 200, 7]),
    ],
)
def test_formats(call: str, text: object) -> None:
    assert node("format.js", call) == text


@pytest.mark.parametrize(
    "name", ["pump-7", "a/b?c#d%2F&e", "<img src=x>", "ü💡", " ", "%", "..", "+&="]
)
def test_an_address_may_hold_any_text(name: str) -> None:
    call = "m.parse(m.address(['clients', args[0]], { q: args[0], none: '' }))"
    found = node("router.js", call, name)
    assert found["parts"] == ["clients", name]
    assert found["query"] == {"q": name}


def test_a_name_in_a_path_is_spelt_as_the_command_does() -> None:
    names = [".", "..", ".~", "..~~", "...", "~", "a/b", "é ü", "%2e", "a'b!"]
    parts = node("api.js", "args[0].map(m.pathPart)", names)
    assert [unquote(part) for part in parts] == [unquote(escaped(name)) for name in names]


def test_backoff_grows_and_ends() -> None:
    found = node("poll.js", "[1, 2, 3, 50].map((many) => m.backoff(many, 0.5))")
    assert found == [1000, 2000, 4000, 30_000]


def test_what_takes_long_is_asked_for_less_often() -> None:
    pairs = [[2000, 10], [2000, 400], [2000, 60_000], [0, 9]]
    waits = node("poll.js", "args[0].map(([every, took]) => m.pause(every, took))", pairs)
    assert waits == [2000, 8000, 30_000, 0]


def test_packets_are_those_that_the_broker_reads() -> None:
    call = (
        "[m.connect({ id: 'ü', user: 'u', password: 'p', properties: { session_expiry_s: 4e9 } }),"
        " m.publish({ topic: 't', payload: new Uint8Array(300), qos: 1, packetId: 65535 }),"
        " m.subscribe({ packetId: 7, filter: '#', qos: 2, properties: { user: [['a', 'b']] } }),"
        " m.unsubscribe({ packetId: 8, filter: '#' }), m.acknowledge(m.PUBREL, 9),"
        " m.pingreq(), m.disconnect()].map((one) => [...one])"
    )
    decoder = Decoder()
    packets = [one for data in node("mqtt/packets.js", call) for one in decoder.feed(bytes(data))]
    names = [type(one).__name__ for one in packets]
    assert names == "Connect Publish Subscribe Unsubscribe Ack Pingreq Disconnect".split()
    assert isinstance(packets[0], Connect) and packets[0].client_id == "ü"
    assert packets[0].properties == {17: 4_000_000_000}
    assert isinstance(packets[1], Publish) and len(packets[1].payload) == 300
    assert isinstance(packets[2], Subscribe) and packets[2].requests[0].qos == 2


def test_a_stream_of_packets_is_cut_wherever_it_arrives() -> None:
    call = (
        "(() => { const all = [...m.publish({ topic: 'a/b', payload: new Uint8Array(200).fill(65),"
        " qos: 1, packetId: 3, properties: { user: [['x', 'y']], message_expiry_s: 5 } }),"
        " ...m.acknowledge(m.PUBACK, 4)]; const cut = new m.Splitter(); const found = [];"
        " for (const one of all) found.push(...cut.add(new Uint8Array([one])));"
        " found.push(...new m.Splitter().add(new Uint8Array(all)));"
        " return found.map((one) => [one.type, one.packetId, one.payload?.length ?? 0,"
        " one.properties.message_expiry_s ?? 0]); })()"
    )
    assert node("mqtt/packets.js", call) == [[3, 3, 200, 5], [4, 4, 0, 0]] * 2


@pytest.mark.parametrize(
    "data", [[0x30, 2, 0, 9], [0x30, 255, 255, 255, 255], [0x20, 1, 0], [0x40, 4, 0, 1, 0, 9]]
)
def test_a_malformed_packet_is_an_error(data: list[int]) -> None:
    call = (
        "(() => { try { new m.Splitter().add(new Uint8Array(args[0])); return ''; }"
        " catch (error) { return error.message; } })()"
    )
    assert "malformed packet" in node("mqtt/packets.js", call, data)
