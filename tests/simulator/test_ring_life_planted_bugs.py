"""Sensitivity of the simulator: bugs planted in the real machinery are found, each within a few hundred seeds."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from ringwide.collectives.bucket_operation import Operation, Snapshot
from ringwide.collectives.compressed_operation import CompressedOperation
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.peer_loss import Leaving, PeerLoss
from ringwide.collectives.single_segment import SingleSegmentOperation
from ringwide.protocol import frame
from ringwide.protocol.frame import FrameKind, Header
from ringwide.simulator import simulate
from ringwide.simulator.host import Host
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.scenario import Damage, FaultKind, Scenario, scenario_of

pytestmark = pytest.mark.timeout(600)  # much is computed

MOST_SEEDS = 20_000

Plant = Callable[[pytest.MonkeyPatch], None]
Likely = Callable[[Scenario], bool]


def found(likely: Likely) -> str:
    """The first problem of a seed that is likely to show one."""
    for seed in range(MOST_SEEDS):
        if likely(scenario_of(seed)) and (problems := simulate(seed).problems):
            return problems[0]
    return ""


def strikes(*kinds: FaultKind, least: int = 2) -> Likely:
    """Nothing else goes wrong, in a ring of at least so many ranks."""

    def likely(scenario: Scenario) -> bool:
        return len(scenario.faults) == 1 and scenario.fault.kind in kinds and scenario.size >= least

    return likely


def old_epoch(scenario: Scenario) -> bool:
    fault = scenario.fault
    return strikes(FaultKind.DAMAGE)(scenario) and fault.damage is Damage.STALE and not scenario.sealed


def garbled(scenario: Scenario) -> bool:
    return strikes(FaultKind.DAMAGE)(scenario) and scenario.fault.garbles


def one_sided_reset(scenario: Scenario) -> bool:
    fault = scenario.fault
    return strikes(FaultKind.RESET, least=3)(scenario) and fault.outward != fault.inward


def lasting(scenario: Scenario) -> bool:
    return strikes(FaultKind.FREEZE, FaultKind.HOLE)(scenario) and scenario.fault.lasts > 1


# The bugs


def accept_any_epoch(plant: pytest.MonkeyPatch) -> None:
    def believing(method: Callable[..., Any]) -> Callable[..., Any]:
        def believe(self: Dispatcher, lane: Any, header: Header, *rest: Any) -> Any:
            return method(self, lane, header._replace(epoch=self._epoch), *rest)

        return believe

    plant.setattr(Dispatcher, "landing", believing(Dispatcher.landing))
    plant.setattr(Dispatcher, "arrived", believing(Dispatcher.arrived))


def forget_to_restore(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Snapshot, "put_back", lambda self: None)


def return_before_all_has_left(plant: pytest.MonkeyPatch) -> None:
    def check_done(self: Operation) -> None:
        if self._machine.done and not self.done:
            self.done = True
            self._on_done(self._collective)

    plant.setattr(Operation, "_check_done", check_done)


def ignore_losses_that_others_tell(plant: pytest.MonkeyPatch) -> None:
    hear = Dispatcher.arrived

    def deaf(self: Dispatcher, lane: Any, header: Header, payload: memoryview) -> None:
        if header.kind != FrameKind.LOST:
            hear(self, lane, header, payload)

    plant.setattr(Dispatcher, "arrived", deaf)


def keep_losses_to_oneself(plant: pytest.MonkeyPatch) -> None:
    """Who hears of a loss from another does not pass it on."""
    hear = PeerLoss.hear_of_loss

    def hear_quietly(self: PeerLoss, peer: int, words: str) -> None:
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setattr(self, "_tell_all", lambda frame: None)
            hear(self, peer, words)

    plant.setattr(PeerLoss, "hear_of_loss", hear_quietly)


def ignore_silence(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(PeerLoss, "silent", lambda self, peers, seconds: None)


def combine_twice(plant: pytest.MonkeyPatch) -> None:
    combine = Operation._combine

    def twice(self: Operation, segment: int, payload: memoryview, arrival_first: bool) -> None:
        combine(self, segment, payload, arrival_first)
        combine(self, segment, payload, arrival_first)

    plant.setattr(Operation, "_combine", twice)


def combine_small_ones_twice(plant: pytest.MonkeyPatch) -> None:
    combine = SingleSegmentOperation._combine

    def twice(self: SingleSegmentOperation, payload: memoryview, arrival_first: bool) -> None:
        combine(self, payload, arrival_first)
        combine(self, payload, arrival_first)

    plant.setattr(SingleSegmentOperation, "_combine", twice)


def forget_to_restore_small_ones(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(SingleSegmentOperation, "_put_back", lambda self: None)


def take_small_ones_at_any_turn(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(SingleSegmentOperation, "check", lambda self, peer, header: None)


def ignore_fingerprints(plant: pytest.MonkeyPatch) -> None:
    hear = Dispatcher._hear_data

    def believe(self: Dispatcher, lane: Any, collective: Any, header: Header, payload: memoryview) -> None:
        hear(self, lane, collective, header._replace(fingerprint=collective.plan.fingerprint), payload)

    plant.setattr(Dispatcher, "_hear_data", believe)


def skip_checksums(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(frame, "check_payload", lambda header, payload: None)


def take_any_turn(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Operation, "_check_turn", lambda self, peer, header: None)


def go_on_with_jobs_of_the_past(plant: pytest.MonkeyPatch) -> None:
    def abandon(self: CompressedOperation) -> None:
        Operation.abandon(self)
        self.coding.abandon()

    plant.setattr(CompressedOperation, "abandon", abandon)


def hang_up_after_the_goodbye(plant: pytest.MonkeyPatch) -> None:
    """Without waiting for the others to read what was sent."""

    def begin(self: Leaving, lost: Collection[int]) -> None:
        self.cut_short()
        self._on_done()

    plant.setattr(Leaving, "begin", begin)


def answer_on_each_lane_alone(plant: pytest.MonkeyPatch) -> None:
    """A peer that leaves takes it for read what still waits on another lane."""
    hear = SimulatedLane._hear_end

    def answer(self: SimulatedLane) -> None:
        hear(self)
        for lane in self._network.links[self.rank][self.peer].lanes:
            lane.finish()
            lane.ended = True

    plant.setattr(SimulatedLane, "_hear_end", answer)


def take_computing_for_silence(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Host, "silent", property(lambda self: self.frozen))


def leaving(scenario: Scenario) -> bool:
    return strikes(FaultKind.NONE, FaultKind.LEAVE, FaultKind.COMPUTE)(scenario) and (
        scenario.leave_when_done or scenario.fault.kind is FaultKind.LEAVE
    )


def computing(scenario: Scenario) -> bool:
    return strikes(FaultKind.COMPUTE)(scenario) and scenario.fault.lasts > 1


def encoded(scenario: Scenario) -> bool:
    return scenario.codec_settings.encodes and scenario.fault.kind is FaultKind.ABORT


def repeated(scenario: Scenario) -> bool:
    return strikes(FaultKind.DAMAGE)(scenario) and scenario.fault.damage is Damage.REPEATED and not scenario.sealed


BUGS: list[tuple[Plant, Likely]] = [
    (accept_any_epoch, old_epoch),
    (forget_to_restore, strikes(FaultKind.KILL)),
    (return_before_all_has_left, strikes(FaultKind.NONE)),
    (ignore_losses_that_others_tell, strikes(FaultKind.RESET, least=3)),
    (keep_losses_to_oneself, one_sided_reset),
    (ignore_silence, lasting),
    (combine_twice, strikes(FaultKind.NONE)),
    (combine_small_ones_twice, strikes(FaultKind.NONE)),
    (forget_to_restore_small_ones, strikes(FaultKind.KILL)),
    (take_small_ones_at_any_turn, repeated),
    (ignore_fingerprints, strikes(FaultKind.MISMATCH)),
    (skip_checksums, garbled),
    (take_any_turn, repeated),
    (go_on_with_jobs_of_the_past, encoded),
    (hang_up_after_the_goodbye, leaving),
    (answer_on_each_lane_alone, leaving),
    (take_computing_for_silence, computing),
]


@pytest.mark.parametrize(("bug", "likely"), [pytest.param(*case, id=case[0].__name__) for case in BUGS])
def test_a_planted_bug_is_found(bug: Plant, likely: Likely, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert found(likely), "no seed has noticed"
