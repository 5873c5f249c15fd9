"""Thousands of rings on a virtual clock. Try a seed alone: `python -m ringwide.simulator --seeds 1 --first SEED`."""

from collections.abc import Callable

import pytest

from ringwide.simulator import Outcome, simulate
from ringwide.simulator.__main__ import main
from ringwide.simulator.scenario import FaultKind, Scenario, scenario_of

SEEDS, BATCH = 3000, 250


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_seed_has_problems(first: int) -> None:
    failures = [outcome for outcome in map(simulate, range(first, first + BATCH)) if outcome.problems]
    assert not failures, "\n".join(map(described, failures))


def test_a_replay_is_identical() -> None:
    for seed in range(100):
        assert simulate(seed) == simulate(seed), f"seed {seed}"


def test_seeds_differ() -> None:
    assert len({simulate(seed).digest for seed in range(20)}) == 20


def test_time_changes_the_order_of_events_but_no_bit_of_a_result() -> None:
    for seed in seeds_where(lambda scenario: scenario.fault.kind is FaultKind.NONE, 150):
        one, other = simulate(seed, timing=1), simulate(seed, timing=2)
        assert not one.problems + other.problems, f"seed {seed}"
        assert one.digest != other.digest, f"seed {seed}"
        assert one.results == other.results, f"seed {seed}"


def test_sums_that_cannot_wait_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many segments queued, partial sums wait in the bucket; small simulated buckets never get that far."""
    seeds = seeds_where(lambda scenario: scenario.fault.kind is FaultKind.NONE, 100)
    usual = [simulate(seed).results for seed in seeds]
    monkeypatch.setattr("ringwide.collective.operation.RELAYED_LIMIT_BYTES", 10)
    for seed, results in zip(seeds, usual, strict=True):
        outcome = simulate(seed)
        assert not outcome.problems, described(outcome)
        assert outcome.results == results, f"seed {seed}"


def test_every_size_and_every_fault_comes_up() -> None:
    scenarios = [scenario_of(seed) for seed in range(SEEDS)]
    assert {scenario.size for scenario in scenarios} == set(range(2, 17))
    assert {scenario.fault.kind for scenario in scenarios} == set(FaultKind)


# The command


def test_the_command_counts_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--first", "3"]) == 0
    assert capsys.readouterr().out.startswith("5 seeds, 0 failing, ")


def test_the_command_names_failing_seeds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Outcome(seed=8, scenario=scenario_of(8), problems=("a wrong sum",), events=1, digest="", results="")
    monkeypatch.setattr("ringwide.simulator.__main__.simulate", lambda seed: bad if seed == 8 else simulate(seed))
    assert main(["--seeds", "2", "--first", "7"]) == 1
    assert "seed 8: a wrong sum" in capsys.readouterr().out


def described(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {'; '.join(outcome.problems)}"


def seeds_where(condition: Callable[[Scenario], bool], count: int) -> list[int]:
    return [seed for seed in range(count * 10) if condition(scenario_of(seed))][:count]
