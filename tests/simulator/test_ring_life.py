"""Thousands of rings on a virtual clock. Try a seed alone: `python -m ringwide.simulator --seeds 1 --first SEED`."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, product

import pytest

from ringwide.compression.codecs import registry
from ringwide.simulator import LifeOutcome, simulate
from ringwide.simulator.__main__ import main
from ringwide.simulator.ring_life import Tried, cores, try_seeds
from ringwide.simulator.scenario import Damage, FaultKind, Scenario, scenario_of

pytestmark = pytest.mark.timeout(600)  # much is computed

SEEDS, PARTS = 20_000, 8
SOME_SEEDS = 6000


@pytest.fixture(scope="module")
def trials() -> Iterator[Iterator[Tried]]:
    """All seeds, tried by as many processes as there are cores while the tests here wait for them."""
    trials = try_seeds(0, SEEDS, jobs=cores())
    yield trials
    trials.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_has_problems(part: int, trials: Iterator[Tried]) -> None:
    failures, tried = [], 0
    while tried < SEEDS / PARTS:
        some = next(trials)
        failures += some.failing
        tried += some.seeds
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
    monkeypatch.setattr("ringwide.collectives.bucket_operation.RELAYED_LIMIT_BYTES", 10)
    monkeypatch.setattr("ringwide.collectives.compressed_operation.RELAYED_LIMIT_BYTES", 10)
    for seed, results in zip(seeds, usual, strict=True):
        outcome = simulate(seed)
        assert not outcome.problems, described(outcome)
        assert outcome.results == results, f"seed {seed}"


def test_every_size_and_every_fault_comes_up() -> None:
    assert {scenario.size for scenario in some_scenarios()} == set(range(2, 17))
    assert {scenario.fault.kind for scenario in some_scenarios()} == set(FaultKind)


def test_every_fault_comes_up_while_any_other_is_handled() -> None:
    seconds = (FaultKind.KILL, FaultKind.RESET, FaultKind.HOLE, FaultKind.FREEZE, FaultKind.DAMAGE, FaultKind.ABORT)
    pairs = [scenario.faults for scenario in some_scenarios() if len(scenario.faults) == 2]
    met = {(first.kind, second.kind) for first, second in pairs}
    assert met == set(product(set(FaultKind) - {FaultKind.NONE}, seconds))


def test_second_faults_strike() -> None:
    outcomes = map(simulate, seeds_where(lambda scenario: len(scenario.faults) == 2, 60))
    assert sum(outcome.injected == 2 for outcome in outcomes) > 40


def test_links_fail_in_every_way() -> None:
    faults = [fault for scenario in some_scenarios() for fault in scenario.faults]
    for kind in (FaultKind.RESET, FaultKind.HOLE):
        ways = {(fault.wide, fault.outward, fault.inward) for fault in faults if fault.kind is kind}
        assert len(ways) == 6, "one link or lane, or all; this way, that way or both"
    assert {fault.damage for fault in faults if fault.kind is FaultKind.DAMAGE} == set(Damage)
    for kind in (FaultKind.HOLE, FaultKind.FREEZE):
        assert len({fault.lasts for fault in faults if fault.kind is kind}) == 4


def test_every_error_is_met() -> None:
    met = frozenset[str]().union(*(simulate(seed).errors for seed in range(500)))
    assert met >= {
        "CollectiveAborted",
        "CollectiveMismatch",
        "CollectiveTimeout",
        "CorruptFrame",
        "PeerLeft",
        "PeerLost",
        "RemoteProtocolError",
    }


@pytest.mark.parametrize("deep", [False, True])
def test_every_algorithm_comes_up_with_every_fault(deep: bool) -> None:
    scenarios = [scenario for scenario in some_scenarios() if (scenario.fanout < scenario.size - 1) is deep]
    met = {(scenario.algorithm, scenario.fault.kind) for scenario in scenarios if scenario.size > 2}
    assert met == set(product(("auto", "ring", "tree"), FaultKind))


def test_every_codec_comes_up_and_is_used() -> None:
    seeds = seeds_where(lambda scenario: scenario.codec_settings.encodes and is_peaceful(scenario), 150)
    used = frozenset[str]().union(*(simulate(seed).codecs for seed in seeds))
    assert used >= {*registry.NAMES, "lz4+shuffle"}


def test_auto_finds_a_codec_in_time_to_use_it() -> None:
    seeds = seeds_where(lambda scenario: scenario.codec_settings.codec == "auto", 60)
    assert sum(simulate(seed).codecs > {"none"} for seed in seeds) >= 5


@pytest.mark.parametrize(
    "kind", [FaultKind.MISMATCH, FaultKind.ABORT, FaultKind.KILL, FaultKind.LEAVE, FaultKind.RESET, FaultKind.FREEZE]
)
def test_faults_strike_while_codecs_are_at_work(kind: FaultKind) -> None:
    seeds = seeds_where(lambda scenario: scenario.codec_settings.encodes and only(scenario, kind), 60)
    assert sum(simulate(seed).interrupted for seed in seeds) > 0


def test_books_are_kept_of_many_lives() -> None:
    assert len(seeds_where(lambda scenario: scenario.checks_feedback and len(scenario.calls) > 2, 20)) == 20


# The command


def test_the_command_counts_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--first", "3"]) == 0
    assert capsys.readouterr().out.startswith("5 seeds, 0 failing, ")


def test_the_command_wants_at_least_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--seeds", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_seeds_are_the_same_in_any_process() -> None:
    here, elsewhere = (sum(some.events for some in try_seeds(0, 150, jobs=jobs)) for jobs in (1, 2))
    assert here == elsewhere


def test_the_command_names_failing_seeds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = LifeOutcome(
        seed=8,
        scenario=scenario_of(8),
        problems=("a wrong sum",),
        events=1,
        digest="",
        results="",
        codecs=frozenset(),
        interrupted=0,
        injected=1,
        errors=frozenset(),
    )
    monkeypatch.setattr("ringwide.simulator.ring_life.simulate", lambda seed: bad if seed == 8 else simulate(seed))
    assert main(["--seeds", "2", "--first", "7"]) == 1
    assert "seed 8: a wrong sum" in capsys.readouterr().out


def described(outcome: LifeOutcome) -> str:
    return f"seed {outcome.seed}: {'; '.join(outcome.problems)}"


@cache
def some_scenarios() -> list[Scenario]:
    return [scenario_of(seed) for seed in range(SOME_SEEDS)]


def seeds_where(condition: Callable[[Scenario], bool], count: int) -> list[int]:
    return list(islice((seed for seed, scenario in enumerate(some_scenarios()) if condition(scenario)), count))


def only(scenario: Scenario, kind: FaultKind) -> bool:
    return [fault.kind for fault in scenario.faults] == [kind]


def is_peaceful(scenario: Scenario) -> bool:
    return scenario.fault.kind is FaultKind.NONE
