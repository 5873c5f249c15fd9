from ringwide.experiment.pace import Paced
from ringwide.training.progress import Step


def test_one_step_each_interval_and_always_the_last() -> None:
    now = 0.0
    passed: list[int] = []
    paced = Paced(lambda step: passed.append(step.number), every_seconds=1.0, clock=lambda: now)
    for number in range(1, 11):
        paced(Step(number=number, total=10, epoch=0, loss=0.0))
        now += 0.25
    assert passed == [1, 5, 9, 10]
