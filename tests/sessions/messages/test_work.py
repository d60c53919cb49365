"""Shares of work: where one ends depends on what was done, and on nothing else."""

from __future__ import annotations

from sessions.messages.work import Work


def test_a_share_ends_behind_so_much_work() -> None:
    work = Work(share=10)
    work.spent = 1_000
    work.begin()
    ends: list[bool] = []
    for units in (0, 9, 1, 5):
        work.spent += units
        ends.append(work.is_over)
    assert ends == [False, False, True, True]
    work.begin()
    assert [work.is_over, work.limit] == [False, 1_025]


def test_a_share_may_be_ended() -> None:
    work = Work(share=10)
    work.begin()
    work.stop()
    assert work.is_over


def test_a_share_may_have_no_end() -> None:
    work = Work(share=10)
    work.begin()
    work.lift()
    work.spent += 1 << 40
    assert not work.is_over


def test_work_that_nobody_gave_a_share_has_no_end() -> None:
    work = Work(share=10)
    work.spent += 1 << 40
    assert not work.is_over
