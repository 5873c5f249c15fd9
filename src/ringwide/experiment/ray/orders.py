"""What a launcher and a keeper say to each other, through Ray."""

from dataclasses import dataclass, field

from ringwide.experiment.record.machine import versions


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a keeper is."""

    machine: str  # equal for those that reach each other over loopback, and for no others
    version: str  # of ringwide
    sees_directory: bool  # of the run, as the launcher does: because it is the same machine, or the disk is shared


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that a keeper needs to start its node."""

    rank: int
    experiment: str  # the file's text
    directory: str | None  # of the run; None: it is not seen from there
    peers: tuple[str, ...]
    working_directory: str  # of the launcher, used where it exists
    import_from: tuple[str, ...]
    resume: str | None
    threads: int
    variables: dict[str, str]  # those of the launcher's environment that are about ringwide
    key: str | None = field(repr=False)  # the text of a key file, made for this run


@dataclass(frozen=True, slots=True)
class News:
    """What a node has said since the last news, and its exit code once that was all."""

    output: tuple[str, ...]
    errors: tuple[str, ...]
    code: int | None = None


def our_version() -> str:
    return versions().get("ringwide", "not installed as a package")
