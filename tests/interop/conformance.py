"""All cases, in the order in which a set plays them: what others rest on comes first."""

from tests.interop.cases import (
    beginning,
    functional,
    groups,
    messages,
    objects,
    reducing,
    spreading,
    training,
    waiting,
)
from tests.interop.world import Play

FAMILIES = (
    beginning.FAMILY,
    reducing.FAMILY,
    spreading.FAMILY,
    objects.FAMILY,
    messages.FAMILY,
    waiting.FAMILY,
    functional.FAMILY,
    groups.FAMILY,
    training.FAMILY,
    beginning.ONCE_MORE,
)
CASES: dict[str, Play] = {name: play for family in FAMILIES for name, play in family.cases.items()}
