import logging
from pathlib import Path

import pytest

from experiment import told
from ringwide.experiment.worker import log_file
from ringwide.training.progress import Evaluation

LOGGER = logging.getLogger("ringwide.bootstrap")


def test_every_step_is_a_line_and_so_is_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "not yet there" / "node-0.log"
    with log_file(path) as log:
        log.hear(told.plan())
        log.hear(told.steps([1, 2]))
        log.hear(told.steps([3], gradient_norm=1.25))
        assert len(path.read_text().splitlines()) == 4  # not only at the end
        log.hear(Evaluation(step=3, seconds=1.5, loss=0.5, accuracy=None))
        log.hear(told.result())
    plan, first, _, third, evaluation, result = path.read_text().splitlines()
    assert plan.startswith("plan parameters=10 gradient_bytes=40 ")
    assert first == (
        "step=1 epoch=0 seconds=0.5000 loss=0.50000 samples=16 learning_rate=0.1 network_ms=125.000 hidden_ms=0.000"
    )
    assert third.startswith("step=3 ")
    assert third.endswith(" hidden_ms=0.000 gradient_norm=1.25")
    assert evaluation == "evaluation step=3 seconds=1.5 loss=0.5 accuracy=None"
    assert result.startswith("result steps=10 ")


def test_what_the_rooms_below_say_is_between_them(tmp_path: Path) -> None:
    path = tmp_path / "node-0.log"
    with log_file(path) as log:
        log.hear(told.steps([1]))
        LOGGER.debug("dial address=%s", "there")
        log.hear(told.steps([2]))
    LOGGER.warning("too late")
    first, said, second = path.read_text().splitlines()
    assert said.endswith("DEBUG ringwide.bootstrap dial address=there")
    assert (first[:6], second[:6]) == ("step=1", "step=2")


@pytest.mark.parametrize("fails", [False, True])
def test_logging_is_afterwards_as_it_was(tmp_path: Path, fails: bool) -> None:
    logger = logging.getLogger("ringwide")
    before = logger.level, list(logger.handlers)

    def use() -> None:
        with log_file(tmp_path / "node-0.log"):
            assert logger.isEnabledFor(logging.DEBUG)
            if fails:
                raise OSError("full")

    if fails:
        with pytest.raises(OSError, match="full"):
            use()
    else:
        use()
    assert (logger.level, logger.handlers) == before


def test_without_a_path_nothing_is_written_and_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with log_file(None) as log:
        assert not logging.getLogger("ringwide").isEnabledFor(logging.DEBUG)
        log.hear(told.steps([1]))
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        with log_file(tmp_path / "node-0.log") as log:
            log.hear(told.steps([number]))
    assert [line[:6] for line in (tmp_path / "node-0.log").read_text().splitlines()] == ["step=1", "step=2"]
