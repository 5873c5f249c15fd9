"""Ray Train with ringwide as torch's backend, as a user writes it: two workers fit a line with DDP.

python ray_train_loop.py ADDRESS STORAGE
"""

import json
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train(settings: dict[str, Any]) -> None:
    import torch.distributed as dist

    rank = get_context().get_world_rank()
    torch.manual_seed(rank)  # DDP gives all ranks the model of rank 0
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for _ in range(200):
        x = torch.rand(16, 1) * 2 - 1
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flat = torch.cat([each.detach().flatten() for each in model.parameters()])
    everyones = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, flat)
    found = {
        "backend": dist.get_backend(),
        "size": dist.get_world_size(),
        "parameters": [round(value, 2) for value in flat.tolist()],
        "equal": all(torch.equal(flat, each) for each in everyones),
        "rings": "ringwide.torch.process_group" in sys.modules,
    }
    Path(settings["found"], f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    address, storage = sys.argv[1:]
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    trainer = TorchTrainer(
        train,
        train_loop_config={"found": storage},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        torch_config=TorchConfig(backend="ringwide"),
        run_config=RunConfig(name="line", storage_path=storage),
    )
    trainer.fit()
