"""Thousands of rings on a virtual clock. Try a seed alone: `python -m ringwide.simulator --seeds 1 --first SEED`."""

from collections.abc import Callable
from itertools import islice, product

import pytest

from ringwide.codec import registry
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
    for seed in seeds_where(lambda scenario: is_peaceful(scenario) and not scenario.depends_on_time, 150):
        one, other = simulate(seed, timing=1), simulate(seed, timing=2)
        assert not one.problems + other.problems, f"seed {seed}"
        assert one.digest != other.digest, f"seed {seed}"
        assert one.results == other.results, f"seed {seed}"


def test_sums_that_cannot_wait_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many segments queued, partial sums wait in the bucket; small simulated buckets never get that far."""
    seeds = seeds_where(lambda scenario: is_peaceful(scenario) and not scenario.depends_on_time, 100)
    usual = [simulate(seed).results for seed in seeds]
    monkeypatch.setattr("ringwide.collective.operation.RELAYED_LIMIT_BYTES", 10)
    monkeypatch.setattr("ringwide.collective.coded.RELAYED_LIMIT_BYTES", 10)
    for seed, results in zip(seeds, usual, strict=True):
        outcome = simulate(seed)
        assert not outcome.problems, described(outcome)
        assert outcome.results == results, f"seed {seed}"


def test_every_size_and_every_fault_comes_up() -> None:
    scenarios = [scenario_of(seed) for seed in range(SEEDS)]
    assert {scenario.size for scenario in scenarios} == set(range(2, 17))
    assert {scenario.fault.kind for scenario in scenarios} == set(FaultKind)


@pytest.mark.parametrize("crowded", [False, True])
def test_every_algorithm_comes_up_with_every_fault(crowded: bool) -> None:
    scenarios = [scenario for scenario in map(scenario_of, range(SEEDS)) if scenario.crowded is crowded]
    met = {(scenario.algorithm, scenario.fault.kind) for scenario in scenarios if scenario.size > 2}
    assert met == set(product(("auto", "ring", "doubling", "star"), FaultKind))


def test_every_codec_comes_up_and_is_used() -> None:
    seeds = seeds_where(lambda scenario: scenario.coding.encodes and is_peaceful(scenario), 150)
    used = frozenset[str]().union(*(simulate(seed).codecs for seed in seeds))
    assert used >= {*registry.NAMES, "lz4+shuffle"}


def test_auto_finds_a_codec_in_time_to_use_it() -> None:
    seeds = seeds_where(lambda scenario: scenario.coding.codec == "auto" and is_peaceful(scenario), 20)
    assert sum(simulate(seed).codecs > {"none"} for seed in seeds) >= 5


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.NONE])
def test_faults_strike_while_codecs_are_at_work(kind: FaultKind) -> None:
    seeds = seeds_where(lambda scenario: scenario.coding.encodes and scenario.fault.kind is kind, 60)
    assert sum(simulate(seed).interrupted for seed in seeds) > 0


def test_books_are_kept_of_many_lives() -> None:
    assert len(seeds_where(lambda scenario: scenario.keeps_books and len(scenario.calls) > 2, 20)) == 20


# The command


def test_the_command_counts_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--first", "3"]) == 0
    assert capsys.readouterr().out.startswith("5 seeds, 0 failing, ")


def test_the_command_names_failing_seeds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Outcome(
        seed=8,
        scenario=scenario_of(8),
        problems=("a wrong sum",),
        events=1,
        digest="",
        results="",
        codecs=frozenset(),
        interrupted=0,
    )
    monkeypatch.setattr("ringwide.simulator.__main__.simulate", lambda seed: bad if seed == 8 else simulate(seed))
    assert main(["--seeds", "2", "--first", "7"]) == 1
    assert "seed 8: a wrong sum" in capsys.readouterr().out


def described(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {'; '.join(outcome.problems)}"


def seeds_where(condition: Callable[[Scenario], bool], count: int) -> list[int]:
    return list(islice((seed for seed in range(SEEDS) if condition(scenario_of(seed))), count))


def is_peaceful(scenario: Scenario) -> bool:
    return scenario.fault.kind is FaultKind.NONE
