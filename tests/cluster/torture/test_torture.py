"""The torture, short; and that its harness notices what it is there to notice."""

from __future__ import annotations

import pytest

from tests.cluster.torture.__main__ import lines
from tests.cluster.torture.harness import Options, Verdict, torture
from tests.cluster.torture.program import Beats
from tests.fault.postgres import Unavailable


def run(options: Options) -> tuple[Verdict, str]:
    said: list[str] = []
    try:
        verdict = torture(options, said.append)
    except Unavailable as error:
        pytest.skip(f"PostgreSQL: {error}")  # the word that TESTS_REQUIRE looks for
    return verdict, "\n".join([*said, *lines(options, verdict)])


@pytest.mark.slow
def test_one_fault_of_each_kind() -> None:
    verdict, said = run(Options(faults=10))
    assert verdict.is_clean, said
    assert len(verdict.faults) == 9 and verdict.acknowledged, said


@pytest.mark.slow
def test_what_is_acknowledged_and_not_committed_is_missed() -> None:
    verdict, said = run(Options(faults=1, nodes=2, without="acknowledge-after-commit"))
    assert verdict.findings[0].startswith("[lost]"), said
    assert "--without acknowledge-after-commit" in said


def test_the_sign_of_life_is_the_begin_of_the_last_write_that_was_committed() -> None:
    beats = Beats(0.0)
    beats.look(1, 1.0, was_running=False)  # answered at once, as confirm is at the start
    assert beats.committed_began_at == 0.0
    beats.look(1, 2.0, was_running=False)  # begins at 2
    beats.look(1, 3.0, was_running=True)
    beats.look(2, 4.0, was_running=True)  # is committed, and the next begins
    assert beats.committed_began_at == 2.0
    beats.look(2, 9.0, was_running=True)
    beats.look(3, 10.0, was_running=True)
    assert beats.committed_began_at == 4.0
