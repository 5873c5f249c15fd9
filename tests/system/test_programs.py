"""Programs of a ring's users, between real processes over every transport: the same as the simulator's, by seed."""

import pytest

from ringwide.simulator.__main__ import main
from ringwide.simulator.programs.processes import try_programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

PROGRAMS = 60


def test_no_program_has_problems() -> None:
    tried = list(try_programs(0, PROGRAMS))
    failures = [one for some in tried for one in some.failing]
    assert sum(some.seeds for some in tried) == PROGRAMS
    assert not failures, "\n".join(f"seed {one.seed}: {'; '.join(one.problems)}\n{one.story}" for one in failures)


def test_any_number_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "3", "--first", "7", "--processes"]) == 0
    assert capsys.readouterr().out.startswith("3 programs, 0 failing, ")
