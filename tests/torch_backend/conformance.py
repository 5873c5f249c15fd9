"""All cases, in the order in which a set plays them: what others rest on comes first."""

from tests.torch_backend.cases import (
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
from tests.torch_backend.limits import is_tried
from tests.torch_backend.world import Play

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

# torchrun is another way to begin, and what has begun is the same. Every process of its own imports torch.
WITH_TORCHRUN = (beginning.FAMILY, objects.FAMILY, groups.FAMILY, training.FAMILY, beginning.ONCE_MORE)


def cases_of(backend: str, start: str) -> list[str]:
    """The names of those that are played."""
    families = WITH_TORCHRUN if start == "torchrun" else FAMILIES
    return [name for family in families for name in family.cases if is_tried(backend, name)]
