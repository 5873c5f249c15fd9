import io
import sys
from typing import Any

import pytest

from experiment.told import Terminal, config, plan, progress, step
from ringwide.experiment.run_state import Board
from ringwide.experiment.view import LINE_EVERY_SECONDS, Lines, Live, Silent, view_for, waiting


def board(**keys: Any) -> Board:
    return Board(config(**keys))


def lines_of(out: io.StringIO) -> list[str]:
    return [line for line in out.getvalue().splitlines() if line.startswith("step ")]


def test_a_line_tells_how_far_and_how_fast() -> None:
    shown, out = board(), io.StringIO()
    lines = Lines(shown, out, clock=lambda: 0.0)
    shown.hear(0, plan())
    shown.hear(0, progress(step(5, loss=0.5, samples=16_000), sent=1_000_000))
    lines.tick()
    assert lines_of(out) == []  # node 1 is still starting
    shown.hear(1, progress(step(4, loss=1.0, samples=16_000), sent=1_000_000))
    lines.tick()
    assert lines_of(out) == ["step 4/10  epoch 1  loss 0.7500  900 batches/s  900 kB/s"]


def test_a_run_that_only_time_ends_shows_the_time() -> None:
    shown, out = board(nodes=1), io.StringIO()
    shown.hear(0, plan(last_step=None, seconds=30.0))
    shown.hear(0, progress(step(24)))
    Lines(shown, out, clock=lambda: 0.0).tick()
    assert lines_of(out)[0].startswith("step 24  12/30 s  epoch 1  loss 0.5000")


def test_lines_keep_their_distance_and_the_last_step_is_always_told() -> None:
    now = 0.0
    shown, out = board(nodes=1), io.StringIO()
    shown.hear(0, plan())
    with Lines(shown, out, clock=lambda: now) as lines:
        for number in range(1, 9):
            shown.hear(0, progress(step(number)))
            lines.tick()
            now += LINE_EVERY_SECONDS / 4
    assert [line.split()[1] for line in lines_of(out)] == ["1/10", "5/10", "8/10"]


def test_starting_and_the_plan_are_told_once() -> None:
    shown, out = board(), io.StringIO()
    with Lines(shown, out) as lines:
        lines.tick()
        assert out.getvalue() == "waiting for 2 nodes to start\n"
        shown.hear(0, plan())
        lines.tick()
        lines.tick()
    assert out.getvalue().splitlines()[1:] == [
        "10 parameters, 40.0 B of gradients in 1 bucket; 100 samples, 5 steps an epoch"
    ]


@pytest.mark.parametrize(("nodes", "told"), [(1, "1 node to start"), (2, "1 other node"), (3, "2 other nodes")])
def test_a_lone_node_waits_for_the_others(nodes: int, told: str) -> None:
    assert waiting(Board(config(nodes=nodes), nodes=1)) == f"waiting for {told}"


@pytest.mark.parametrize(("logging", "told"), [("normal", []), ("verbose", ["  node 0", "  node 1"])])
def test_verbose_tells_of_every_node(logging: str, told: list[str]) -> None:
    shown, out = board(logging=logging), io.StringIO()
    for rank in (1, 0):
        shown.hear(rank, progress(step(2, network_seconds=0.25, hidden_seconds=0.125), sent=1000))
    Lines(shown, out).tick()
    nodes = [line for line in out.getvalue().splitlines() if "node" in line]
    assert [line[:8] for line in nodes] == told
    if nodes:
        assert nodes[0].endswith("step 2  loss 0.5000  1.00 batches/s  1.00 kB/s  network 25.0 %, 50.0 % of it hidden")


def test_silence_is_silent() -> None:
    out = io.StringIO()
    with view_for(board(logging="silent"), out) as view:
        view.say("hello")
        view.tick()
    assert isinstance(view, Silent)
    assert out.getvalue() == ""


def test_a_terminal_gets_a_live_view_if_rich_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(view_for(board(), io.StringIO()), Lines)
    assert isinstance(view_for(board(), Terminal()), Live)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(view_for(board(), Terminal()), Lines)
