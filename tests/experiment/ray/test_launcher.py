from pathlib import Path

import pytest

from ringwide.bootstrap.protection import new_key
from ringwide.errors import ConfigError, JoinError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.ray.cluster import needed, there_is
from ringwide.experiment.ray.keeper import NodeEnvironment, Order, our_version
from ringwide.experiment.ray.launcher import check_environments, listening_hosts, placement

HOSTS = ("10.0.0.1", "10.0.0.2")
SHARED, ALONE = NodeEnvironment("a", our_version(), True), NodeEnvironment("b", our_version(), False)


def config(**keys: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "t", "nodes": 2, **keys})


def test_loopback_is_for_those_that_share_a_machine() -> None:
    assert listening_hosts(["a", "a"], HOSTS) == ["127.0.0.1", "127.0.0.1"]
    assert listening_hosts(["a", "b"], HOSTS) == list(HOSTS)


def test_where_nodes_are_is_said_by_machine() -> None:
    assert placement(["10.0.0.1", "10.0.0.2", "10.0.0.1"]) == "on Ray: nodes 0, 2 on 10.0.0.1; node 1 on 10.0.0.2"


def test_what_is_needed_and_what_there_is() -> None:
    assert needed(1, 2) == "1 node with 2 CPUs each"
    assert there_is([4.0, 8.0], 5.0) == "it has 12 CPUs on 2 Ray nodes (at most 8 on one), 5 of them free"
    assert there_is([], 0.0) == "it has 0 CPUs on 0 Ray nodes (at most 0 on one), 0 of them free"


def test_another_version_is_named() -> None:
    with pytest.raises(JoinError, match=r"node 1 on 10\.0\.0\.2: it has ringwide 9\.9, this machine has "):
        check_environments([SHARED, NodeEnvironment("b", "9.9", True)], HOSTS, None, config(), Path("/runs/t"))


def test_checkpoints_need_a_disk_that_is_shared() -> None:
    found, kept = [SHARED, ALONE], {"every_steps": 5}
    check_environments(found, HOSTS, None, config(), Path("/runs/t"))
    check_environments(found, HOSTS, None, config(checkpoint={**kept, "directory": "/shared"}), Path("/runs/t"))
    with pytest.raises(ConfigError, match=r"node 1 on 10\.0\.0\.2 does not see /runs/t"):
        check_environments(found, HOSTS, None, config(checkpoint=kept), Path("/runs/t"))
    with pytest.raises(ConfigError, match=r"--resume old: node 1 on 10\.0\.0\.2 does not share this disk"):
        check_environments(found, HOSTS, Path("old"), config(), Path("/runs/t"))


def test_an_order_that_is_shown_does_not_show_its_key() -> None:
    key = new_key()
    order = Order(
        rank=0,
        experiment="",
        directory=None,
        peers=(),
        working_directory=".",
        import_from=(),
        resume=None,
        threads=1,
        variables={},
        key=key,
    )
    assert key.split()[1] not in repr(order)


@pytest.mark.parametrize(
    ("ring", "variables", "said"),
    [
        ({}, {}, False),
        ({"insecure": True}, {}, True),
        ({"key_file": "a.key"}, {}, True),
        ({"tls": {"cert": "a", "key": "b", "ca": "c"}}, {}, True),
        ({}, {"RINGWIDE_KEY_FILE": "a.key"}, True),
        ({}, {"RINGWIDE_INSECURE": "1"}, True),
    ],
)
def test_who_says_who_may_join_needs_no_key_of_ours(
    ring: dict[str, object], variables: dict[str, str], said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RINGWIDE_KEY_FILE", "RINGWIDE_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert config(ring=ring).ring.says_who_may_join is said
