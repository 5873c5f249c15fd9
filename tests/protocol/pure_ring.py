"""All ranks of one collective as bare machines. Their "numbers" are terms that tell who was combined with whom."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from random import Random

from ringwide.protocol.instruction import Combine, Finish, Keep, Machine, Relay, Script, Send

Term = tuple[object, ...]


def own(rank: int, segment: int) -> Term:
    return ("own", rank, segment)


def plus(left: Term, right: Term) -> Term:
    return ("plus", left, right)


def total(term: Term) -> Term:
    return ("total", term)


def owners(term: Term) -> Iterator[int]:
    """The ranks in a term, each as often as its numbers were added."""
    match term:
        case ("own", int(rank), int()):
            yield rank
        case ("plus", tuple(left), tuple(right)):
            yield from owners(left)
            yield from owners(right)
        case ("total", tuple(inner)):
            yield from owners(inner)


def totals(term: Term) -> int:
    """How often a term was declared to be the total."""
    match term:
        case ("plus", tuple(left), tuple(right)):
            return totals(left) + totals(right)
        case ("total", tuple(inner)):
            return 1 + totals(inner)
    return 0


class PureRing:
    """Carries out scripts and delivers what was sent: in order for one segment between two ranks, else at random."""

    def __init__(self, machines: Sequence[Machine], *, segments: int) -> None:
        self.machines = machines
        self.values = [[own(rank, segment) for segment in range(segments)] for rank in range(len(machines))]
        self.sent: set[tuple[int, int, int, int]] = set()  # (from, to, segment, hop)
        self._under_way: defaultdict[tuple[int, int, int], deque[tuple[int, Term]]] = defaultdict(deque)
        self._early: dict[tuple[int, int, int], Term] = {}

    def run(self, chance: Random) -> None:
        for rank, machine in enumerate(self.machines):
            for segment, script in machine.begin():
                self._execute(rank, segment, script, own(rank, segment))
        while self._under_way:
            self._deliver(*chance.choice(sorted(self._under_way)))
        assert not self._early, f"never used: {self._early}"

    def _deliver(self, source: int, rank: int, segment: int) -> None:
        queue = self._under_way[source, rank, segment]
        hop, term = queue.popleft()
        if not queue:
            del self._under_way[source, rank, segment]
        machine = self.machines[rank]
        assert machine.expects(source, segment, hop), f"rank {rank} does not expect {segment} at {hop} from {source}"
        script = machine.arrive(segment, hop)
        if not script:
            self._early[rank, segment, hop] = term
            return
        assert not machine.expects(source, segment, hop), f"rank {rank} would take {segment} at {hop} twice"
        self._execute(rank, segment, script, term)
        self._bring_again(rank, segment)

    def _bring_again(self, rank: int, segment: int) -> None:
        for key in sorted(key for key in self._early if key[:2] == (rank, segment)):
            script = self.machines[rank].arrive(segment, key[2])
            if not script:
                return
            self._execute(rank, segment, script, self._early.pop(key))

    def _execute(self, rank: int, segment: int, script: Script, arrival: Term) -> None:
        values = self.values[rank]
        for instruction in script:
            match instruction:
                case Combine(arrival_first=True):
                    values[segment] = plus(arrival, values[segment])
                case Combine():
                    values[segment] = plus(values[segment], arrival)
                case Keep():
                    values[segment] = arrival
                case Finish():
                    values[segment] = total(values[segment])
                case Relay(hop, peer):
                    self._send(rank, peer, segment, hop, plus(arrival, values[segment]))
                case Send(hop, peer):
                    self._send(rank, peer, segment, hop, values[segment])

    def _send(self, rank: int, peer: int, segment: int, hop: int, term: Term) -> None:
        assert (rank, peer, segment, hop) not in self.sent, "sent twice"
        self.sent.add((rank, peer, segment, hop))
        self._under_way[rank, peer, segment].append((hop, term))


def expected_at_the_start(machines: Sequence[Machine], *, segments: int) -> set[tuple[int, int, int, int]]:
    """Everything that some rank would take as its first frame: (from, to, segment, hop)."""
    size = len(machines)
    return {
        (source, rank, segment, hop)
        for rank, machine in enumerate(machines)
        for source in range(size + 1)
        for segment in range(segments + 2)
        for hop in range(2 * size + 2)
        if machine.expects(source, segment, hop)
    }


def assert_all_ended(ring: PureRing) -> None:
    for rank, machine in enumerate(ring.machines):
        assert machine.done, f"rank {rank}"
        assert not machine.waiting_for(), f"rank {rank}"


def assert_is_total(term: Term, size: int) -> None:
    """Every rank's numbers once, and finished once."""
    assert sorted(owners(term)) == list(range(size))
    assert totals(term) == 1
