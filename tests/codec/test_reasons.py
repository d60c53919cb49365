"""Reason codes against the tables of the specification, which stand here once more as numbers."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)

# Sections 3.2.2.2, 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1 and 3.15.2.1.
CODES: Final = {
    CONNACK: "00 80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F",
    PUBACK: "00 10 80 83 87 90 91 97 99",
    PUBREC: "00 10 80 83 87 90 91 97 99",
    PUBREL: "00 92",
    PUBCOMP: "00 92",
    SUBACK: "00 01 02 80 83 87 8F 91 97 9E A1 A2",
    UNSUBACK: "00 11 80 83 87 8F 91",
    DISCONNECT: "00 04 80 81 82 83 87 89 8B 8C 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F "
    "A0 A1 A2",
    AUTH: "00 18 19",
}


def codes_of(text: str) -> set[int]:
    return {int(code, 16) for code in text.split()}


def test_each_packet_carries_the_codes_of_its_table_alone() -> None:
    for kind, text in CODES.items():
        assert {code for code in range(256) if reasons.may_carry(kind, code)} == codes_of(text)
    for kind in range(16):
        if kind not in CODES:
            assert not any(reasons.may_carry(kind, code) for code in range(256)), kind


def test_every_name_of_the_module_is_a_code_that_some_packet_carries() -> None:
    named = {
        name: value
        for name, value in vars(reasons).items()
        if name.isupper() and isinstance(value, int) and name not in constants()
    }
    assert set(named.values()) == set(reasons.TABLE)
    for name, code in named.items():
        said = reasons.name(code).upper().replace("-", "").replace(" ", "_")
        if code not in (0x00, 0x04):  # these have several names
            assert said == name, (name, said)


def constants() -> set[str]:
    return {
        "AUTH", "CONNACK", "DISCONNECT", "PUBACK", "PUBCOMP", "PUBREC", "PUBREL", "SUBACK",
        "UNSUBACK",
    }  # fmt: skip


def test_a_code_without_a_name_is_shown_as_a_number() -> None:
    assert reasons.name(0x8D) == "Keep Alive timeout"
    assert reasons.name(0x7F) == "0x7F" and reasons.name(0x03) == "0x03"


def test_what_clients_may_say_when_they_leave() -> None:
    """The column "Client" of table 3-13."""
    wanted = codes_of("00 04 80 81 82 83 90 93 94 95 96 97 98 99")
    assert wanted == reasons.CLIENT_DISCONNECT
    assert codes_of(CODES[DISCONNECT]) >= reasons.CLIENT_DISCONNECT


def test_refusals_of_3_1_1_are_the_five_it_has() -> None:
    """[MQTT-3.2.2-3] of 3.1.1: each other refusal closes the connection alone."""
    told = {code: reasons.connack_v3(code) for code in range(256)}
    assert {code: value for code, value in told.items() if value is not None} == {
        0x84: 1, 0x85: 2, 0x88: 3, 0x89: 3, 0x97: 3, 0x9F: 3, 0x86: 4, 0x87: 5, 0x8A: 5,
    }  # fmt: skip
    for code, value in told.items():
        if value is not None:
            assert reasons.may_carry(CONNACK, code)
