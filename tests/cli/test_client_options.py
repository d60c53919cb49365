"""The options of `pub` and `sub`: what they become, and what is said when they are wrong."""

from __future__ import annotations

import re

import pytest

from mqtt_broker.cli import client_options as options
from mqtt_broker.cli import pub, sub
from mqtt_broker.cli.commands import COMMANDS, Parser, parser_of, run_command
from mqtt_broker.cli.errors import UsageError
from mqtt_broker.client.blocking import Address
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import CONNECT, NEVER_EXPIRES, PUBLISH, SUBSCRIBE, V5, V31, WILL
from mqtt_broker.codec.packets import Connect, Will
from mqtt_broker.codec.properties import Properties

PACKETS = (CONNECT, PUBLISH, SUBSCRIBE, WILL)


def connect(*argv: str) -> Connect:
    parser = Parser(add_help=False)
    options.add_connection_arguments(parser)
    args = parser.parse_args(argv)
    version = options.VERSIONS[args.protocol_version]
    return options.connect_packet(args, options.parse_properties(args.properties, version, PACKETS))


def address(*argv: str) -> Address:
    parser = Parser(add_help=False)
    options.add_connection_arguments(parser)
    return options.address(parser.parse_args(argv))


def properties(*words: str) -> dict[int, Properties]:
    return options.parse_properties([list(words)], V5, PACKETS)


def test_the_defaults() -> None:
    assert address() == Address("localhost", 1883)
    assert connect() == Connect(V5, "", True, 60, Properties())


def test_where_the_broker_is() -> None:
    assert address("-h", "b", "-p", "99") == Address("b", 99)
    assert address("-L", "mqtt://u:p@host:77/a/b") == Address("host", 77)
    assert address("-L", "mqtt://[::1]/t") == Address("::1", 1883)
    assert address("-L", "mqtt://host/a", "-p", "5") == Address("host", 5)
    assert address("--unix", "/run/mqtt").unix_path == "/run/mqtt"


def test_a_url_carries_user_password_and_a_topic_with_any_sign() -> None:
    packet = connect("-L", "mqtt://us%40er:p%3Aw@host/a/b?c#d")
    assert (packet.username, packet.password) == ("us@er", b"p:w")
    parser = Parser(add_help=False)
    options.add_connection_arguments(parser)
    args = parser.parse_args(["-L", "mqtt://host/a/+/?c/#"])
    assert options.url_topic(args) == "a/+/?c/#"


@pytest.mark.parametrize("url", ["host/a", "http://host/a", "mqtt://", "mqtt://h:x/a", "mqtts://"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        address("-L", url)


def test_a_lasting_session() -> None:
    packet = connect("-c", "-i", "me")
    assert not packet.clean_start
    assert packet.properties[prop.SESSION_EXPIRY_INTERVAL] == NEVER_EXPIRES
    assert connect("-c", "-i", "me", "-x", "9").properties[prop.SESSION_EXPIRY_INTERVAL] == 9
    assert connect("-x", "-1").properties[prop.SESSION_EXPIRY_INTERVAL] == NEVER_EXPIRES
    assert not connect("-c", "-i", "me", "-V", "311").properties


def test_client_ids() -> None:
    assert connect("-i", "me").client_id == "me"
    assert connect("-I", "pre-").client_id.startswith("pre-")
    assert 1 <= len(connect("-V", "31").client_id) <= 23
    assert connect("-V", "mqttv31", "-i", "x").version == V31


def test_the_will() -> None:
    packet = connect(
        "--will-topic", "w", "--will-payload", "gone", "--will-qos", "1", "--will-retain",
        "-D", "will", "will-delay-interval", "5",
    )  # fmt: skip
    assert packet.will == Will("w", b"gone", 1, True, Properties({prop.WILL_DELAY_INTERVAL: 5}))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-c"], "-c needs -i"),
        (["-i", "a", "-I", "b"], "exclude"),
        (["-P", "x", "-V", "311"], "-P without -u"),
        (["-x", "5", "-V", "311"], "-x needs MQTT 5"),
        (["--will-qos", "1"], "needs --will-topic"),
        (["-D", "will", "will-delay-interval", "5"], "needs --will-topic"),
        (["--will-topic", "a/#"], "wildcard"),
        (["-x", "5", "-D", "connect", "session-expiry-interval", "6"], "exclude each other"),
        (["-V", "311", "-D", "connect", "receive-maximum", "6"], "-D needs MQTT 5"),
    ],
)
def test_contradictions_are_named(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        connect(*argv)


def test_properties_of_every_kind() -> None:
    rows = [
        "publish user-property k v1",
        "publish user-property k v2",
        "publish content-type json",
        "publish correlation-data id",
        "publish payload-format-indicator 1",
        "PUBLISH message-expiry-interval 60",
        "subscribe subscription-identifier 268435455",
        "connect receive-maximum 65535",
    ]
    found = options.parse_properties([row.split() for row in rows], V5, PACKETS)
    assert found[PUBLISH].user == [("k", "v1"), ("k", "v2")]
    assert found[PUBLISH].text(prop.CONTENT_TYPE) == "json"
    assert found[PUBLISH].binary(prop.CORRELATION_DATA) == b"id"
    assert found[PUBLISH].number(prop.PAYLOAD_FORMAT_INDICATOR) == 1
    assert found[PUBLISH].number(prop.MESSAGE_EXPIRY_INTERVAL) == 60
    assert found[SUBSCRIBE].subscription_ids == [268_435_455]
    assert found[CONNECT].number(prop.RECEIVE_MAXIMUM) == 65_535


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("publish content-type", "PACKET NAME VALUE"),
        ("puback reason-string x", "one of connect, publish, subscribe, will"),
        ("publish colour red", "no property 'colour'"),
        ("publish receive-maximum 5", "a client cannot send receive-maximum"),
        ("publish subscription-identifier 5", "a client cannot send subscription-identifier"),
        ("publish user-property k", "KEY VALUE"),
        ("publish content-type a b", "one VALUE"),
        ("publish payload-format-indicator 2", "a number from 0 to 1"),
        ("connect receive-maximum 0", "a number from 1 to 65535"),
        ("connect receive-maximum 65536", "a number from 1 to 65535"),
        ("subscribe subscription-identifier 0", "a number from 1 to 268435455"),
        ("connect authentication-method x", "enhanced authentication"),
    ],
)
def test_a_wrong_property_is_named(words: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        properties(*words.split())


def test_a_property_stands_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        options.parse_properties([["publish", "content-type", "a"]] * 2, V5, PACKETS)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["pub", "-t", "a"], "-m/--message"),
        (["pub", "-m", "x"], "no topic"),
        (["pub", "-t", "a/+", "-m", "x"], "wildcard"),
        (["pub", "-t", "", "-m", "x"], "-t '': a Topic Name cannot be empty"),
        (["pub", "-t", "a", "-m", "x", "-n"], "not allowed with"),
        (["pub", "-t", "a", "-f", "/nonexistent"], "No such file"),
        (["pub", "-t", "a", "-m", "x", "-q", "3"], "invalid choice"),
        (["pub", "-t", "a", "-m", "x", "-p", "0"], "not a port"),
        (["pub", "-t", "a", "-l", "--repeat", "2"], "--repeat"),
        (["sub"], "no Topic Filter"),
        (["sub", "-t", "a/#/b"], "# must be the last level"),
        (["sub", "-t", "a", "-T", "b+"], r"\+ must be alone"),
        (["sub", "-t", "a", "-C", "0"], "-C is 1 or more"),
        (["sub", "-t", "a", "-F", "%y"], "no parameter '%y'"),
        (["sub", "-t", "a", "-R", "--retained-only"], "exclude"),
        (["sub", "-t", "a", "-W", "soon"], "not a number of seconds"),
        (["sub", "-t", "a", "-V", "311", "--retain-as-published"], "needs MQTT 5"),
        (["nope"], "no command 'nope'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_command(argv)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(says, printed.err)


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == 0
    printed = capsys.readouterr()
    assert "subscribe and print messages" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_a_capital_and_keeps_names(name: str) -> None:
    description = parser_of(name).description
    assert description is not None
    assert description[0].isupper() and description.endswith(".")
    assert COMMANDS[name].summary[1:] == description[1:-1]


def test_the_plan_of_sub_spares_the_broker_retained_messages_nobody_wants() -> None:
    def handling(*argv: str) -> int:
        parser = Parser(add_help=False)
        sub.add_arguments(parser)
        args = parser.parse_args(["-t", "a", *argv])
        version = options.VERSIONS[args.protocol_version]
        return sub.plan(args, version, {}).requests[0].retain_handling

    assert handling() == 0
    assert handling("-R") == sub.RETAIN_HANDLING_NEVER
    assert handling("-R", "--remove-retained") == 0
    assert handling("-R", "-V", "311") == 0


def test_every_command_has_its_two_functions() -> None:
    for module in (pub, sub):
        assert callable(module.add_arguments)
        assert callable(module.run)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--version"], ["--help"], ["pub", "--help"], ["sub", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            run_command(argv)
        assert stopped.value.code == 0
    assert "fleetmq 0." in capsys.readouterr().out
