"""Every case on every kind of set: gloo shows that the cases ask for the right thing, ringwide has to do the same."""

import pytest
from tests.torch_backend.conformance import CASES, cases_of
from tests.torch_backend.limits import GLOO, RINGWIDE
from tests.torch_backend.sets import SET_SECONDS, Kind, Sets

pytestmark = [pytest.mark.system, pytest.mark.timeout(2 * SET_SECONDS)]  # the first test of a set waits for all of it

KINDS = (
    Kind("gloo", 3, "environment"),
    Kind("ringwide", 2, "environment"),
    Kind("ringwide", 3, "environment"),
    Kind("ringwide", 2, "detail"),
    Kind("ringwide", 2, "torchrun"),
)
QUESTIONS = [
    pytest.param(kind, name, id=f"{kind}: {name}") for kind in KINDS for name in cases_of(kind.backend, kind.start)
]


@pytest.mark.parametrize(("kind", "name"), QUESTIONS)
def test_a_backend_does_what_is_asked_of_it(sets: Sets, kind: Kind, name: str) -> None:
    why_not = sets.verdict(kind, cases_of(kind.backend, kind.start), name)
    assert not why_not, why_not


def test_every_limit_is_one_of_a_case() -> None:
    assert GLOO.keys() | RINGWIDE.keys() <= CASES.keys()
