"""`fleetmq rr`: the response to this request, and no other message."""

from __future__ import annotations

import pytest

from mqtt_broker.cli import commands as entry
from mqtt_broker.cli import rr
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, V5, V311
from mqtt_broker.codec.encode import encode_ack, encode_connack, encode_publish, encode_suback
from mqtt_broker.codec.packets import Connect, Publish, Subscribe
from mqtt_broker.codec.properties import Properties
from tests.cli.scripted_broker import HOST, Link, ScriptedBroker


def run(broker: ScriptedBroker, *argv: str) -> int:
    return entry.run_command(["rr", "-h", HOST, "-p", str(broker.port), *argv])


def asked(link: Link, version: int = V5) -> Publish:
    """Subscribe the client, and return its request."""
    link.send(encode_connack(version, False, 0))
    request = link.read(Subscribe)
    link.send(encode_suback(version, request.packet_id, [request.requests[0].qos]))
    published = link.read(Publish)
    assert isinstance(published, Publish)
    return published


def test_only_the_response_with_its_correlation_data_counts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def answers(link: Link, connect: Connect) -> None:
        request = asked(link)
        assert (request.topic, request.payload) == ("pump/7/rpc", b"state")
        where = request.properties[prop.RESPONSE_TOPIC]
        data = request.properties[prop.CORRELATION_DATA]
        assert isinstance(where, str) and isinstance(data, bytes)
        mine = Properties({prop.CORRELATION_DATA: data})
        link.send(
            encode_publish(V5, where, b"for another"),
            encode_publish(V5, where, b"kept", retain=True, properties=mine),
            encode_publish(V5, where, b"running", properties=mine),
        )

    with ScriptedBroker(answers) as broker:
        assert run(broker, "-t", "pump/7/rpc", "-m", "state") == 0
    assert capfd.readouterr() == ("running\n", "")


def test_the_response_topic_can_be_given(capfd: pytest.CaptureFixture[str]) -> None:
    def answers(link: Link, connect: Connect) -> None:
        assert asked(link).properties[prop.RESPONSE_TOPIC] == "me/in"
        link.send(
            encode_publish(
                V5, "me/in", b"yes", properties=Properties({prop.CORRELATION_DATA: b"17"})
            )
        )

    with ScriptedBroker(answers) as broker:
        more = ["-D", "publish", "correlation-data", "17"]
        assert run(broker, "-t", "q", "-e", "me/in", "-n", "-v", *more) == 0
    assert capfd.readouterr().out == "me/in yes\n"


def test_in_3_1_1_the_topic_alone_decides(capfd: pytest.CaptureFixture[str]) -> None:
    def answers(link: Link, connect: Connect) -> None:
        request = asked(link, V311)
        assert not request.properties
        link.send(encode_publish(V311, "me/in", b"yes"))

    with ScriptedBroker(answers) as broker:
        assert run(broker, "-V", "311", "-t", "q", "-e", "me/in", "-m", "1") == 0
    assert capfd.readouterr().out == "yes\n"


def test_nobody_to_answer_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    def has_nobody(link: Link, connect: Connect) -> None:
        [packet_id] = asked(link).packet_ids()
        link.send(encode_ack(PUBACK, packet_id, reasons.NO_MATCHING_SUBSCRIBERS))

    with ScriptedBroker(has_nobody) as broker:
        assert run(broker, "-t", "q", "-m", "1", "-q", "1") == 1
    assert capfd.readouterr().err == "fleetmq rr: nobody has subscribed to q\n"


def test_refusals_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    def forbids_the_response(link: Link, connect: Connect) -> None:
        link.send(encode_connack(V5, False, 0))
        request = link.read(Subscribe)
        link.send(encode_suback(V5, request.packet_id, [reasons.NOT_AUTHORIZED]))

    with ScriptedBroker(forbids_the_response) as broker:
        assert run(broker, "-t", "q", "-e", "mine", "-m", "1") == 1
    assert "not subscribed to mine: Not authorized (0x87)" in capfd.readouterr().err

    def forbids_the_request(link: Link, connect: Connect) -> None:
        [packet_id] = asked(link).packet_ids()
        link.send(encode_ack(PUBACK, packet_id, reasons.NOT_AUTHORIZED))

    with ScriptedBroker(forbids_the_request) as broker:
        assert run(broker, "-t", "q", "-e", "mine", "-m", "1", "-q", "1") == 1
    assert "not published to q: Not authorized (0x87)" in capfd.readouterr().err


def test_a_response_that_never_comes(capfd: pytest.CaptureFixture[str]) -> None:
    def is_silent(link: Link, connect: Connect) -> None:
        asked(link)
        with pytest.raises(EOFError):
            link.read(Connect)

    with ScriptedBroker(is_silent) as broker:
        assert run(broker, "-t", "q", "-m", "1", "-W", "0.2") == 27
    assert capfd.readouterr().err == "fleetmq rr: timed out\n"
    args = entry.parser_of("rr").parse_args(["-t", "q", "-n"])
    assert args.timeout_s == rr.TIMEOUT_S


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-m", "1"], "no topic"),
        (["-t", "a/#", "-m", "1"], "-t 'a/#'"),
        (["-t", "a", "-e", "b/+", "-m", "1"], "-e 'b/+'"),
        (["-t", "a", "-m", "1", "-D", "publish", "response-topic", "b"], "give -e"),
        (["-t", "a"], "required"),
    ],
)
def test_a_wrong_command_line(
    argv: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.run_command(["rr", *argv])
    assert ended.value.code == 2
    assert words in capfd.readouterr().err
