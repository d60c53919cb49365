"""Drops, refusals and connections, with a share for each client."""

from __future__ import annotations

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.evidence import CELLS_EACH, Evidence
from mqtt_broker.recorder.runs import ClientRuns
from mqtt_broker.recorder.search import Fact, Search


def write(evidence: Evidence, client: ClientRuns, now_ms: int, topic: str = "t") -> None:
    evidence.write(client, kinds.DROPPED, 1, topic, "p", now_ms, are_texts=False)


def found(evidence: Evidence, client_id: str) -> list[Fact]:
    search = Search(0)
    for _ in search.evidence_of(evidence.rings_of(client_id), client_id):
        pass
    return search.found


def test_one_who_floods_overwrites_nothing_of_others() -> None:
    evidence = Evidence(1 << 20)
    quiet, loud = ClientRuns("quiet"), ClientRuns("loud")
    write(evidence, quiet, 1)
    for at in range(100_000):
        write(evidence, loud, 2 + at, f"t{at % 50}")
    assert len(found(evidence, "quiet")) == 1
    assert evidence.sees_back_to_ms("quiet") == 0
    kept = found(evidence, "loud")
    assert CELLS_EACH < len(kept) < 1_000
    assert max(fact.at_ms for fact in kept) == 100_001
    assert evidence.sees_back_to_ms("loud") > 90_000


def test_the_next_session_of_a_client_goes_on_with_its_share() -> None:
    evidence = Evidence(1 << 20)
    for at in range(1_000):
        client = ClientRuns("flaps")
        write(evidence, client, at)
        evidence.end_session(client)
    assert evidence.common.current.spent == [CELLS_EACH]
    assert list(evidence.shares) == ["flaps"]


def test_shares_are_bounded_and_what_they_lose_is_told() -> None:
    evidence = Evidence(200_000)
    clients = [ClientRuns(f"c{number}") for number in range(100)]
    at = 0
    for client in clients:
        for _ in range(CELLS_EACH + 5):
            at += 1
            write(evidence, client, at)
    assert len(evidence.shares) < 20
    assert evidence.sees_back_to_ms("c0") > 0
    assert evidence.bytes < 200_000
    write(evidence, clients[0], at + 1)  # its ring went to somebody else
    assert max(fact.at_ms for fact in found(evidence, "c0")) == at + 1


def test_long_names_do_not_make_shares_larger() -> None:
    evidence = Evidence(2 << 20)
    at = 0
    for number in range(60):
        client = ClientRuns(f"c{number}")
        for _ in range(CELLS_EACH + 5):
            at += 1
            evidence.write(
                client, kinds.REFUSED, 135, f"{at}/" + "t" * 60_000, "why", at, are_texts=False
            )
    assert evidence.bytes < 2 << 20
    assert evidence.sees_back_to_ms("c0") > 0
    assert found(evidence, "c59")


def test_strangers_write_to_a_ring_of_their_own() -> None:
    evidence = Evidence(1 << 20)
    known = ClientRuns("known")
    write(evidence, known, 1)
    for number in range(50_000):
        stranger = ClientRuns(f"made up {number}")
        evidence.write(
            stranger, kinds.NOT_CONNECTED, 135, "192.0.2.1", "why", number + 2,
            are_texts=True, is_stranger=True,
        )  # fmt: skip
    assert len(found(evidence, "known")) == 1
    assert [fact.other for fact in found(evidence, "made up 49999")] == ["why"]
    assert evidence.bytes < 1 << 20
