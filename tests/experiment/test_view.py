import io
import sys

import pytest

from ringwide.experiment.view import LINE_EVERY_SECONDS, Bars, Lines, view_for
from ringwide.training.progress import Step


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(number: int, loss: float = 0.5) -> Step:
    return Step(number=number, total=10, epoch=0, loss=loss)


def test_a_line_tells_of_the_slowest_node_and_the_mean_loss() -> None:
    out = io.StringIO()
    lines = Lines(2, out, clock=lambda: 0.0)
    lines.update(0, step(5, loss=0.5))
    assert out.getvalue() == ""  # node 1 is still starting
    lines.update(1, step(4, loss=1.0))
    assert out.getvalue() == "step 4/10  epoch 1  loss 0.7500\n"


def test_lines_keep_their_distance() -> None:
    now = 0.0
    out = io.StringIO()
    lines = Lines(1, out, clock=lambda: now)
    for number in range(1, 9):
        lines.update(0, step(number))
        now += LINE_EVERY_SECONDS / 4
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/10", "5/10"]


def test_bars_follow_each_node() -> None:
    bars = Bars(2)
    bars.update(1, step(7))
    first, second = bars._progress.tasks
    assert (first.total, first.fields["loss"]) == (None, "starting")
    assert (second.completed, second.total, second.fields["loss"]) == (7, 10, "loss 0.5000")


def test_bars_are_for_terminals_with_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(view_for(1, io.StringIO()), Lines)
    assert isinstance(view_for(1, Terminal()), Bars)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert isinstance(view_for(1, Terminal()), Lines)
