"""Every case on every kind of set: gloo shows that the cases ask for the right thing, ringwide has to do the same."""

import pytest
from tests.interop.conformance import CASES
from tests.interop.limits import GLOO, RINGWIDE, is_tried
from tests.interop.sets import SET_SECONDS, Kind, Sets

pytestmark = [pytest.mark.system, pytest.mark.timeout(2 * SET_SECONDS)]  # the first test of a set waits for all of it

KINDS = (
    Kind("gloo", 2, "environment"),
    Kind("gloo", 3, "environment"),
)
QUESTIONS = [
    pytest.param(kind, name, id=f"{kind}: {name}") for kind in KINDS for name in CASES if is_tried(kind.backend, name)
]


@pytest.mark.parametrize(("kind", "name"), QUESTIONS)
def test_a_backend_does_what_is_asked_of_it(sets: Sets, kind: Kind, name: str) -> None:
    cases = [case for case in CASES if is_tried(kind.backend, case)]
    why_not = sets.verdict(kind, cases, name)
    assert not why_not, why_not


def test_every_limit_is_one_of_a_case() -> None:
    assert GLOO.keys() | RINGWIDE.keys() <= CASES.keys()
