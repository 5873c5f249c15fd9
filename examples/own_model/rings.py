"""A model and data of your own in an experiment: which of two rings does a point lie in?

python -m ringwide run examples/own_model/rings.yaml
"""

import torch


def model(inputs: torch.Size, outputs: int, width: int) -> torch.nn.Module:
    """`inputs` is the shape of one sample, `outputs` the number of classes; `width` is from model_options."""
    return torch.nn.Sequential(torch.nn.Linear(inputs[0], width), torch.nn.ReLU(), torch.nn.Linear(width, outputs))


def data(samples: int) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """What to train on and what is held out. It must be the same on every node, hence the seed."""
    numbers = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (samples,), generator=numbers)
    angles = torch.rand(samples, generator=numbers) * 2 * torch.pi
    radii = 1.0 + labels + 0.2 * torch.randn(samples, generator=numbers)
    points = torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1)
    train = samples * 4 // 5
    return (points[:train], labels[:train]), (points[train:], labels[train:])
