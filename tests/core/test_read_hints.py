"""What a read tells the link: whether its peer only acknowledges by now.

Each row is a list of reads, and each read a string: `a` is a run of acknowledgements, `p` a
PINGREQ, `s` a SUBSCRIBE, `P` a PUBLISH, `/` cuts the packet after it in two.
"""

from __future__ import annotations

import pytest

from mqtt_broker.core import dispatch
from mqtt_broker.core.interfaces.link import ONLY_ACKS
from tests.core.peers import V5, World, publish, subscribe

RUN = b"\x62\x02\x00\x07"  # PUBREL under an id that is not open
PACKETS = {"p": b"\xc0\x00", "s": subscribe(V5, "x"), "P": publish("x", b"1"), "a": RUN}

ROWS = [
    (["a"] * 15, False),
    (["a"] * 16, True),
    (["aa"] * 8, False),  # one run a read, however many acknowledgements it has
    (["aa"] * 16, True),
    (["a"] * 15 + ["p"], False),
    (["a"] * 16 + ["p"], False),
    (["a"] * 15 + ["pa"], False),
    (["a"] * 15 + ["ap"] + ["a"] * 15, False),
    (["a"] * 15 + ["ap"] + ["a"] * 16, True),
    (["a"] * 15 + ["pa"] + ["a"] * 14, False),
    (["a"] * 15 + ["pa"] + ["a"] * 15, True),
    (["s"] + ["a"] * 16, True),
    (["a" + "ba" * 15], True),  # PUBACK and PUBREL in turn: sixteen runs in one read
    (["a" + "ba" * 15 + "p"], False),
    (["P"] + ["a"] * 40, False),  # once it has published, it may do so again at any time
    (["a"] * 16 + ["P"] + ["a"] * 40, False),
    (["aP"] + ["a"] * 40, False),
    (["a"] * 15 + ["/a"], True),  # a packet in two halves, each of them a read
    (["a"] * 15 + ["/p"] + ["a"] * 15, False),
]


@pytest.mark.parametrize(("reads", "expected"), ROWS, ids=[" ".join(row[0]) for row in ROWS])
def test_who_only_acknowledges(reads: list[str], expected: bool) -> None:
    world = World()
    peer = world.client("s")
    done = _reads(reads)
    runs = 0
    for data in done:
        runs = dispatch.receive(peer.connection, data, world.now, runs)
    assert (runs >= ONLY_ACKS) is expected
    assert not peer.is_closed


def _reads(reads: list[str]) -> list[bytes]:
    other = b"\x50\x02\x00\x07"  # PUBREC: a kind of its own, so that it ends a run
    found: list[bytes] = []
    for text in reads:
        if text[0] == "/":
            data = PACKETS[text[1]]
            found += [data[:1], data[1:]]
        else:
            found.append(b"".join(other if kind == "b" else PACKETS[kind] for kind in text))
    return found
