import io
from collections.abc import Iterable

from rich.console import Console, Group

from experiment.told import Terminal, config, plan, progress, step
from ringwide.experiment.run_state import Board
from ringwide.experiment.view import Live, picture, rows_of
from ringwide.training.progress import Evaluation


def trained(ranks: Iterable[int], network_seconds: float = 0.125) -> Board:
    board = Board(config(nodes=len(list(ranks)) or 1))
    board.hear(0, plan())
    for rank in ranks:
        board.hear(rank, progress(step(4, samples=16_000, network_seconds=network_seconds * (rank + 1)), sent=400_000))
    return board


def drawn(board: Board, note: str = "", *, rows: int = 16, width: int = 100) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(Group(picture(board, note, rows=rows)))  # as it is, not joined to other text
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_while_nodes_start_it_says_so() -> None:
    assert drawn(Board(config(nodes=10))) == ["t: waiting for 10 nodes to start"]


def test_the_picture_shows_all_and_each() -> None:
    heading, overall, head, *rows = drawn(trained(range(2)), "stopping")
    assert heading.split()[0] == "t"
    assert heading.endswith("40%  3.00 s left")
    assert overall == "step 4/10  epoch 1  loss 0.5000  1,000 batches/s  400 kB/s"
    assert head.split() == ["node", "step", "epoch", "loss", "batches/s", "sent", "on", "network", "hidden"]
    assert [row.split() for row in rows] == [
        ["0", "4", "1", "0.5000", "500", "200", "kB/s", "6.2", "%", "0.0", "%"],
        ["1", "4", "1", "0.5000", "500", "200", "kB/s", "12.5", "%", "0.0", "%"],
        ["stopping"],
    ]


def test_the_last_evaluation_is_shown() -> None:
    board = trained(range(1))
    board.hear(0, Evaluation(step=3, seconds=1.0, loss=0.125, accuracy=0.5))
    assert "held out 0.1250" in drawn(board)[1]


def test_of_many_nodes_those_are_shown_that_keep_the_others_waiting() -> None:
    board = trained(range(20))
    assert rows_of(board, 16) == list(range(16))  # who waits most is not slow
    board.hear(19, progress(step(4, seconds=2.5, network_seconds=0.0)))
    board.hear(7, progress(step(3)))
    assert rows_of(board, 2) == [0, 7]
    text = drawn(board, rows=2)
    assert [line.split()[0] for line in text[3:5]] == ["0", "7"]
    assert text[-1] == "and 18 others, which wait for these"


def test_a_narrow_terminal_cuts_lines_but_breaks_none() -> None:
    narrow, wide = drawn(trained(range(2)), width=40), drawn(trained(range(2)))
    assert len(narrow) == len(wide)
    assert max(map(len, narrow)) <= 40


def test_it_draws_only_when_something_was_heard_or_said() -> None:
    board, out = trained(range(2)), Terminal()
    with Live(board, out) as live:
        drawn_once = out.getvalue()
        assert "step 4/10" in drawn_once
        live.tick()
        assert out.getvalue() == drawn_once
        board.hear(0, progress(step(5)))
        board.hear(1, progress(step(5)))
        live.tick()
        assert "step 5/10" in out.getvalue()
        live.say("stopping")
        assert "stopping" in out.getvalue()
