import pytest
import torch

from ringwide.training.optimizer import Sgd


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_steps_as_torch_does(momentum: float) -> None:
    torch.manual_seed(0)
    ours = torch.randn(50, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    optimizers = Sgd([ours], learning_rate=0.1, momentum=momentum), torch.optim.SGD([theirs], lr=0.1, momentum=momentum)
    for _ in range(5):
        ours.grad = torch.randn(50)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_a_step_without_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\) has no gradient"):
        Sgd([torch.zeros(2, 3)], learning_rate=0.1, momentum=0.9).step()
