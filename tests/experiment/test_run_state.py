import math

import pytest

from experiment.told import config, plan, progress, result, step
from ringwide.experiment.run_state import Board
from ringwide.training.progress import Evaluation


def board_at(first: int, second: int, **changes: object) -> Board:
    board = Board(config())
    board.hear(0, plan(**changes))
    board.hear(0, progress(step(first, epoch=1)))
    board.hear(1, progress(step(second)))
    return board


def test_the_slowest_node_tells_how_far_it_is() -> None:
    board = board_at(5, 4)
    assert (board.step, board.epoch, board.done) == (4, 0, 0.4)
    assert board.seconds == 2.5
    assert board.seconds_left == pytest.approx(2.5 * 0.6 / 0.4)


def test_what_ends_it_first_tells_how_much_is_done() -> None:
    assert board_at(5, 5, seconds=100.0).done == 0.5
    assert board_at(5, 5, seconds=3.0).done == pytest.approx(2.5 / 3)
    assert board_at(5, 5, last_step=None, seconds=10.0).done == 0.25
    assert board_at(8, 8, first_step=6).done == 0.6
    assert board_at(5, 5, seconds=1.0).done == 1


def test_it_trains_once_every_node_has_made_a_step() -> None:
    board = Board(config())
    assert not board.is_training
    assert (board.done, board.seconds_left) == (0, math.inf)
    board.hear(0, progress(step()))
    board.hear(1, progress())
    assert not board.is_training
    board.hear(1, progress(step()))
    assert board.is_training


def test_a_lone_node_waits_for_nobody() -> None:
    board = Board(config(), nodes=1)
    board.hear(1, progress(step()))
    assert board.is_training


def test_speeds_are_added_up_and_losses_weighted_by_samples() -> None:
    board = Board(config())
    board.hear(0, progress(step(1, samples=16, loss=1.0), sent=1000))
    board.hear(1, progress(step(1, samples=48, loss=2.0), sent=2000))
    assert (board.batches_per_second, board.throughput, board.loss) == (8.0, 6000.0, 1.75)


def test_an_evaluation_that_all_nodes_tell_of_is_heard_once() -> None:
    board = Board(config())
    for at in (5, 10):
        for rank in range(2):
            board.hear(rank, Evaluation(step=at, seconds=1.0 + rank, loss=0.5, accuracy=None))
    assert [(seen.step, seen.seconds) for seen in board.evaluations] == [(5, 1.0), (10, 1.0)]


def test_results_are_kept_by_rank() -> None:
    board = Board(config())
    board.hear(1, result())
    assert board.results == {1: result()}
