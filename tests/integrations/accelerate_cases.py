"""Cases of Accelerate: training, metrics, checkpoints, uneven data, and what it does with a backend's name."""

import warnings
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType, InitProcessGroupKwargs, broadcast_object_list, set_seed
from tests.integrations.library_cases import Case, Outcome, Run
from torch.distributed.algorithms.join import Join
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

MAKES_NO_GROUP = True


def new_accelerator(**settings: Any) -> Accelerator:
    """Accelerator with the group that exists. Its settings are global: those of the case before are forgotten."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    set_seed(3)
    return Accelerator(**{"cpu": True, **settings})


def samples(count: int) -> Dataset[Any]:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def network(width: int = 16) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Linear(width, 1)
    )


def prepared(accelerator: Accelerator, count: int, *, shuffle: bool = False, width: int = 16) -> tuple[Any, Any, Any]:
    model = network(width)
    model, optimizer, batches = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        DataLoader(samples(count), batch_size=8, shuffle=shuffle),
    )
    assert isinstance(model, DistributedDataParallel)
    return model, optimizer, batches


def train(accelerator: Accelerator, model: Any, optimizer: Any, batches: Any) -> list[float]:
    losses = []
    for inputs, goals in batches:
        with accelerator.accumulate(model):
            loss = mse_loss(model(inputs), goals)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses


def trained(accelerator: Accelerator, *, width: int = 16) -> Outcome:
    model, optimizer, batches = prepared(accelerator, 100, shuffle=True, width=width)
    return Outcome(model, train(accelerator, model, optimizer, batches))


def gradient_accumulation(run: Run) -> Outcome:
    return trained(new_accelerator(gradient_accumulation_steps=3))


def mixed_precision(run: Run) -> Outcome:
    return trained(new_accelerator(mixed_precision="bf16"))


def large_gradients(run: Run) -> Outcome:
    """2.3 MB of gradients, more than the tree of a ring carries."""
    return trained(new_accelerator(), width=750)


def metrics_of_uneven_data(run: Run) -> Outcome:
    """45 samples in batches of 8 for two ranks: what was padded is cut off again."""
    accelerator = new_accelerator()
    model, tests = accelerator.prepare(network(), DataLoader(samples(45), batch_size=8))
    with torch.inference_mode():
        errors = [accelerator.gather_for_metrics((model(inputs) - goals).square()) for inputs, goals in tests]
    together = torch.cat(errors).flatten()
    assert len(together) == 45
    return Outcome(model, together.tolist())


def objects(run: Run) -> Outcome:
    accelerator = new_accelerator()
    rank = accelerator.process_index
    words = [f"from {rank}"]
    broadcast_object_list(words, from_process=1)
    everyones = accelerator.gather_for_metrics([{"rank": rank, "word": "a" * rank}], use_gather_object=True)
    assert words == ["from 1"]
    assert everyones == [{"rank": 0, "word": ""}, {"rank": 1, "word": "a"}]
    padded = accelerator.pad_across_processes(torch.ones(3 + rank), dim=0)
    return Outcome(torch.nn.Linear(1, 1), padded.tolist())


def checkpoints(run: Run) -> Outcome:
    """What is loaded is what was saved, and training goes on from it."""
    accelerator = new_accelerator()
    model, optimizer, batches = prepared(accelerator, 100)
    train(accelerator, model, optimizer, batches)
    accelerator.save_state(str(run.files))
    accelerator.wait_for_everyone()
    without_a_break = train(accelerator, model, optimizer, batches)
    accelerator.load_state(str(run.files))
    assert train(accelerator, model, optimizer, batches) == without_a_break
    return Outcome(model, without_a_break)


def uneven_inputs(run: Run) -> Outcome:
    """Rank 0 has two batches and rank 1 has one. `join_uneven_inputs` is not for CPUs, torch's own `Join` is."""
    accelerator = new_accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
    model, optimizer, batches = prepared(accelerator, 24)
    with warnings.catch_warnings(record=True) as said, accelerator.join_uneven_inputs([model]):
        warnings.simplefilter("always")
    count = 0
    with Join([model]):
        for inputs, goals in batches:
            optimizer.zero_grad()
            accelerator.backward(mse_loss(model(inputs), goals))
            optimizer.step()
            count += 1
    assert count == 2 - accelerator.process_index
    return Outcome(model, [count, len(said)])


class Stream(IterableDataset[Any]):
    """Data that only rank 0 reads, and hands out."""

    def __iter__(self) -> Any:
        return iter(torch.arange(37.0))


def dispatched_batches(run: Run) -> Outcome:
    accelerator = new_accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    batches = accelerator.prepare(DataLoader(Stream(), batch_size=8))
    together = torch.cat([accelerator.gather_for_metrics(batch) for batch in batches])
    assert together.tolist() == list(range(37))
    return Outcome(torch.nn.Linear(1, 1), together.tolist())


def the_name_of_the_backend(run: Run) -> Outcome:
    """Why docs/integrations.md makes the group first: by name Accelerate takes only gloo for CPUs.

    Without `cpu=True` it takes any name, and uses it for nothing: no DDP, whatever the backend.
    """
    handler = InitProcessGroupKwargs(backend=run.backend)
    if run.backend == "gloo":
        assert new_accelerator(kwargs_handlers=[handler]).state.backend == "gloo"
    else:
        with pytest.raises(ValueError, match="backend ringwide is not available, please use gloo"):
            new_accelerator(kwargs_handlers=[handler])
    accelerator = new_accelerator(cpu=False, kwargs_handlers=[handler])
    assert accelerator.distributed_type == DistributedType.NO
    model = torch.nn.Linear(1, 1)
    assert accelerator.prepare(model) is model
    return Outcome(torch.nn.Linear(1, 1), [])


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        gradient_accumulation,
        mixed_precision,
        large_gradients,
        metrics_of_uneven_data,
        objects,
        checkpoints,
        uneven_inputs,
        dispatched_batches,
        the_name_of_the_backend,
    )
}
