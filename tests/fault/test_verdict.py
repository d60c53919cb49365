"""The judge of the torture, on ledgers written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault import plan
from tests.fault.ledger import Ledger, read
from tests.fault.verdict import WILL_SLACK_S, Judge, Verdict, explain, table


class Story:
    """A ledger, line by line, each a second after the other."""

    now = 0.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = plan.make(1, 4, 100.0)
        self.lines: list[str] = []
        self.starts: list[float] = []
        self.streams = {(s.topic, s.qos): s.index for s in self.plan.streams}
        for taker in self.plan.takers:
            for number in range(len(taker.filters)):
                self.add("Q", taker.name, number)
                self.add("K", taker.name, number)
        self.add("F", 0.5)

    def add(self, kind: str, *fields: object) -> None:
        self.now += 1
        self.lines.append(f"{self.now} {kind} {' '.join(map(str, fields))}\n")

    def message(self, topic: str, qos: int, seq: int, skip: str = "") -> None:
        """Sent, acknowledged, and delivered to everybody who is to have it, but `skip`."""
        stream = self.streams[topic, qos]
        self.add("S", stream, seq)
        self.add("A", stream, seq)
        told: set[str] = set()
        for taker in self.plan.takers:
            wants = any(plan.matches(text, topic) for text in taker.filters)
            party = taker.share or taker.name
            if wants and party not in told and taker.name != skip:
                self.add("G", taker.name, stream, seq, min(qos, taker.qos))
            told.add(party)

    def verdict(self) -> Verdict:
        self.path.write_text("".join(self.lines))
        return Judge(self.plan, starts=self.starts).read([self.path])


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    told = Story(tmp_path / "ledger")
    for seq in (1, 2, 3):
        told.message("load/p1/a", 1, seq)
        told.message("load/p1/a", 2, seq)
    yield told
    text = explain(told.verdict(), [(5.0, "SIGKILL")], 0.0)
    assert (text == "") == told.verdict().is_clean
    assert "lost" in table(told.verdict())


def test_nothing_wrong(story: Story) -> None:
    verdict = story.verdict()
    assert verdict.is_clean, verdict.findings
    assert (verdict.rows[1].sent, verdict.rows[1].lost) == (3, 0)
    assert verdict.rows[2].due == verdict.rows[2].delivered > 3


@pytest.mark.parametrize("qos", [1, 2])
def test_lost(story: Story, qos: int) -> None:
    story.message("load/p1/a", qos, 4, skip="narrow")
    verdict = story.verdict()
    assert verdict.counts == {f"lost at QoS {qos}": 1}
    assert verdict.rows[qos].lost == 1


def test_lost_by_a_whole_group(story: Story) -> None:
    story.message("load/p1/a", 2, 4, skip="member-0")
    assert story.verdict().counts == {"lost at QoS 2": 1}


def test_what_was_never_acknowledged_is_not_lost(story: Story) -> None:
    story.add("S", story.streams["load/p1/a", 1], 4)
    assert story.verdict().counts == {"never acknowledged": 1}


def test_what_was_sent_before_the_subscription_is_not_due(story: Story) -> None:
    stream = story.streams["load/p2/a", 2]
    for number in range(3):
        story.add("U", "churn-2", number)
        story.add("V", "churn-2", number)
    story.message("load/p2/a", 2, 1, skip="churn-2")
    story.add("Q", "churn-2", 0)
    assert story.verdict().is_clean
    story.add("G", "churn-2", stream, 1, 2)
    assert story.verdict().counts == {"made up": 1}


def test_a_message_under_way_at_the_unsubscription_may_come_or_not(story: Story) -> None:
    stream = story.streams["load/p2/a", 2]
    story.add("S", stream, 1)
    for number in range(3):
        story.add("U", "churn-2", number)
        story.add("V", "churn-2", number)
    story.add("A", stream, 1)
    for name in ("all", "renew", "cutter-2", "away-2"):
        story.add("G", name, stream, 1, 2)
    story.add("G", "overlap", stream, 1, 1)
    assert story.verdict().is_clean
    story.add("G", "churn-2", stream, 1, 2)
    assert story.verdict().is_clean


def test_repeated(story: Story) -> None:
    story.add("G", "narrow", story.streams["load/p1/a", 1], 2, 1)
    assert story.verdict().is_clean  # QoS 1 may
    assert story.verdict().rows[1].repeated == 1
    story.add("G", "narrow", story.streams["load/p1/a", 2], 2, 2)
    assert story.verdict().counts == {"repeated at QoS 2": 1}


def test_repeated_by_another_member_of_a_group(story: Story) -> None:
    story.add("G", "member-2", story.streams["load/p1/a", 2], 1, 2)
    assert story.verdict().counts == {"repeated at QoS 2": 1}


def test_reordered(story: Story) -> None:
    stream = story.streams["load/p1/a", 2]
    for seq in (4, 5):
        story.message("load/p1/a", 2, seq, skip="narrow")
    story.add("G", "narrow", stream, 5, 2)
    story.add("G", "narrow", stream, 4, 2)
    assert story.verdict().counts == {"reordered": 1}


def test_what_was_sent_before_the_subscription_may_come_late(story: Story) -> None:
    stream = story.streams["load/p2/a", 1]
    story.add("U", "churn-2", 0)
    story.add("V", "churn-2", 0)
    story.add("U", "churn-2", 1)
    story.add("V", "churn-2", 1)
    story.message("load/p2/a", 1, 1, skip="churn-2")
    story.add("Q", "churn-2", 0)
    story.add("K", "churn-2", 0)
    story.message("load/p2/a", 1, 2)
    story.lines = [line for line in story.lines if f"A {stream} 1" not in line]
    story.add("A", stream, 1)  # it was repeated meanwhile
    story.add("G", "churn-2", stream, 1, 1)
    assert story.verdict().is_clean


def test_what_a_session_that_was_given_up_had_is_not_due(story: Story) -> None:
    story.message("load/p2/a", 2, 1, skip="renew")
    assert story.verdict().counts == {"lost at QoS 2": 1}
    story.add("Z", "renew")
    assert story.verdict().is_clean
    story.add("Q", "renew", 1)
    story.add("K", "renew", 1)
    story.message("load/p2/a", 2, 2)
    assert story.verdict().is_clean
    story.message("load/p2/a", 2, 3, skip="renew")
    assert story.verdict().counts == {"lost at QoS 2": 1}


def test_a_session_lost_and_a_rule_broken(story: Story) -> None:
    story.add("L", "narrow", 100_000)
    story.add("E", "narrow", "said something it may not")
    story.add("X", story.streams["load/p1/a", 1], 3, "0x97")
    assert story.verdict().counts == {"sessions lost": 1, "protocol errors": 1, "refused": 1}


def test_retained(story: Story) -> None:
    topic = "state/p0/2"
    stream = story.streams[topic, 2]
    story.message(topic, 2, 1)
    story.message(topic, 2, 2)
    since = story.now
    story.add("S", stream, 3)
    story.add("R", stream, 2)
    story.add("F", since + 0.5)
    story.add("A", stream, 3)
    story.add("G", "all", stream, 3, 2)
    assert story.verdict().is_clean
    story.add("R", stream, 2)
    story.add("F", story.now)
    assert story.verdict().counts == {"retained wrong": 1}
    story.add("F", story.now)
    assert story.verdict().counts == {"retained wrong": 2}


def test_wills(story: Story) -> None:
    def will(episode: int, comes: int) -> None:
        story.add("P", episode)
        story.add("W", episode)
        for _ in range(comes):
            story.add("D", episode)
        story.now += plan.WILL_DELAY_S + WILL_SLACK_S
        story.add("T", episode + 1)

    will(1, comes=1)
    assert story.verdict().is_clean
    will(2, comes=0)
    assert story.verdict().counts == {"wills lost": 1}
    will(3, comes=2)
    assert story.verdict().counts == {"wills lost": 1, "wills repeated": 1}


def test_the_delay_of_a_will_counts_from_a_start(story: Story) -> None:
    story.add("P", 1)
    story.add("W", 1)
    story.now += plan.WILL_DELAY_S + WILL_SLACK_S
    story.starts.append(story.now - 1.0)
    story.add("T", 2)
    assert story.verdict().is_clean
    story.starts[:] = [story.now - plan.WILL_DELAY_S - WILL_SLACK_S - 0.5]
    assert story.verdict().counts == {"wills lost": 1}


def test_a_start_that_is_noted_after_the_first_client_came(story: Story) -> None:
    story.add("P", 1)
    story.add("W", 1)
    story.now += plan.WILL_DELAY_S + WILL_SLACK_S
    story.add("T", 2)
    story.starts.append(story.now + 0.1)
    assert story.verdict().is_clean
    story.starts[:] = [story.now + WILL_SLACK_S]
    assert story.verdict().counts == {"wills lost": 1}


def test_a_will_though_its_client_was_back(story: Story) -> None:
    story.add("P", 1)
    story.add("W", 1)
    story.now -= 0.5
    story.add("P", 2)
    assert story.verdict().is_clean
    story.add("D", 1)
    assert story.verdict().counts == {"wills wrong": 1}


def test_a_line_that_is_not_whole_is_not_there_yet(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.note("S", 1, 2)
    ledger.close()
    with (tmp_path / "ledger").open("a") as file:
        file.write("1.0 S 1")
    (entry,) = read(tmp_path / "ledger")
    assert entry.kind == "S" and entry.fields == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "topic", "takes"),
    [
        ("a/#", "a", True), ("a/#", "a/b/c", True), ("a/+", "a/b", True), ("a/+", "a", False),
        ("a/+", "a/b/c", False), ("+/b", "a/b", True), ("a/b", "a/b", True), ("a/b", "a", False),
    ],
)  # fmt: skip
def test_matching(text: str, topic: str, takes: bool) -> None:
    assert plan.matches(text, topic) == takes


def test_a_payload_says_when_it_was_changed() -> None:
    payload = plan.write(3, 77, 10)
    assert plan.read(payload) == (3, 77)
    for wrong in (payload[:-1], payload + b"x", payload[:-1] + b"x", b"", payload[:4]):
        with pytest.raises(ValueError):
            plan.read(wrong)


def test_a_message_that_a_fleeting_member_took_with_it(story: Story) -> None:
    story.message("load/p0/a", 1, 1, skip="host")
    assert story.verdict().counts == {"lost from a group with fleeting members": 1}
    story.add("G", "guest-1", story.streams["load/p0/a", 1], 1, 1)
    assert story.verdict().is_clean


def test_a_group_of_fleeting_members_alone_is_owed_nothing(story: Story) -> None:
    story.add("U", "host", 0)
    story.message("load/p0/a", 1, 1, skip="host")
    assert story.verdict().is_clean


def test_the_id_of_a_session_that_ended_swallows_a_message(story: Story) -> None:
    story.message("load/p3/a", 2, 1, skip="all")
    assert story.verdict().counts == {"lost after Clean Start": 1}


def test_what_was_given_up_with_its_session_need_not_be_acknowledged(story: Story) -> None:
    stream = story.streams["load/p3/a", 2]
    story.add("S", stream, 1)
    assert story.verdict().counts == {"never acknowledged": 1}
    story.add("N", stream, 1)
    assert story.verdict().is_clean


def test_short_session_lost(story: Story) -> None:
    story.add("L", "brief", 8.5)
    assert story.verdict().is_clean
    story.add("L", "brief", 5.5)
    assert story.verdict().counts == {"short sessions lost": 1}


def test_fleeting_wills(story: Story) -> None:
    for episode in (1, 2):
        story.add("B", episode)
        story.add("I", episode)
    story.add("O", 2)
    assert story.verdict().counts == {"fleeting wills lost": 1}
    story.add("J", 1)
    assert story.verdict().counts == {"fleeting wills late": 1}
    story.add("J", 1)
    assert story.verdict().counts == {"wills repeated": 1, "fleeting wills late": 1}
