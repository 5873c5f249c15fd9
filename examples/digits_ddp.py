"""The same DDP script with gloo and with ringwide: one word differs. It learns to read handwritten digits.

torchrun --nproc-per-node 2 examples/digits_ddp.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(backend: str, epochs: int) -> tuple[float, float]:
    """Seconds of training, and accuracy on digits that the model has never seen."""
    dist.init_process_group(backend)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    seen = TensorDataset(images[:1500], labels[:1500])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(seen, seed=1)
    batches = DataLoader(seen, batch_size=32, sampler=sampler)

    began = time.perf_counter()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for image, label in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(image), label).backward()
            optimizer.step()
    seconds = time.perf_counter() - began

    with torch.no_grad():
        right = (net(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean().item()
    del model  # before the group: gloo's, if it goes with the model, can wait for ever (torch 2.13)
    dist.destroy_process_group()
    return seconds, right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", default=["gloo", "ringwide"])
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for backend in arguments.backends:
        seconds, right = train(backend, arguments.epochs)
        if os.environ["RANK"] == "0":
            print(f"{backend:8}  {seconds:6.2f} s  {right:.1%} right", flush=True)
