"""Cases of Lightning, which makes the process group itself. Here torchrun starts the processes.

That Lightning can start them too is shown by the piece in docs/integrations.md.
"""

import logging
import warnings
from typing import Any

import lightning
import torch
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from tests.integrations.library_cases import Case, Outcome, Run, flat
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError

MAKES_NO_GROUP = False

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regression(lightning.LightningModule):
    """Small network whose steps use what Lightning has for several ranks: sync_dist, all_gather, torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.distance = MeanAbsoluteError()
        self.gathered: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("training", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        guessed = self.net(batch[0])
        self.log("validation", mse_loss(guessed, batch[1]), sync_dist=True)
        self.log("largest", guessed.max(), sync_dist=True, reduce_fx="max")
        self.distance(guessed, batch[1])
        self.log("distance", self.distance)
        self.gathered.append(self.all_gather(guessed.sum()).sum().item())

    test_step = validation_step

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        guessed: torch.Tensor = self.net(batch[0])
        return guessed

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Sharded(Regression):
    """The same network, of which each rank keeps a part (FSDP2)."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for layer in (self.net[0], self.net[2], self.net):
            fully_shard(layer, mesh=mesh)


def samples(count: int, *, shuffle: bool = False) -> DataLoader[Any]:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(4))
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin()), batch_size=16, shuffle=shuffle)


def new_trainer(strategy: Any, **settings: Any) -> lightning.Trainer:
    lightning.seed_everything(1, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    usual = {"accelerator": "cpu", "devices": 2, "max_epochs": 2, "enable_checkpointing": False, **quiet}
    return lightning.Trainer(strategy=strategy, **{**usual, **settings})


def fit(run: Run, *, checkpoint: str | None = None, **settings: Any) -> tuple[lightning.Trainer, Outcome]:
    """Training with 241 samples and 237 for validation: ranks do not get whole batches, nor equally many."""
    trainer = new_trainer(DDPStrategy(process_group_backend=run.backend), **settings)
    model = Regression()
    trainer.fit(model, samples(241, shuffle=True), samples(237), ckpt_path=checkpoint)
    return trainer, Outcome(model, [*(value.item() for value in trainer.callback_metrics.values()), *model.gathered])


def validation_of_uneven_data(run: Run) -> Outcome:
    return fit(run)[1]


def gradient_accumulation(run: Run) -> Outcome:
    return fit(run, accumulate_grad_batches=3, gradient_clip_val=0.5)[1]


def mixed_precision(run: Run) -> Outcome:
    return fit(run, precision="bf16-mixed")[1]


def resumption(run: Run) -> Outcome:
    """From a checkpoint training comes to the same parameters as without a break; then test and prediction."""
    saving = ModelCheckpoint(run.files, monitor="validation", save_top_k=-1, filename="{epoch}")
    _, first = fit(run, max_epochs=3, enable_checkpointing=True, callbacks=[saving])
    trainer, second = fit(run, max_epochs=3, checkpoint=str(run.files / "epoch=0.ckpt"))
    assert torch.equal(flat(first.model), flat(second.model))
    (tested,) = trainer.test(second.model, samples(50), verbose=False)
    predicted = trainer.predict(second.model, samples(50))
    return Outcome(second.model, [*tested.values(), float(torch.cat(predicted).sum())])


def sharded_parameters(run: Run) -> Outcome:
    trainer = new_trainer(ModelParallelStrategy(process_group_backend=run.backend))
    model = Sharded()
    trainer.fit(model, samples(96, shuffle=True))
    whole = Regression()
    for mine, part in zip(whole.parameters(), model.parameters(), strict=True):
        mine.data = part.full_tensor()
    return Outcome(whole, [trainer.callback_metrics["training"].item()])


def fabric(run: Run) -> Outcome:
    lightning.seed_everything(1, verbose=False)
    ours = lightning.Fabric(accelerator="cpu", devices=2, strategy=FabricDDPStrategy(process_group_backend=run.backend))
    ours.launch()
    linear = torch.nn.Linear(8, 1)
    model, optimizer = ours.setup(linear, torch.optim.AdamW(linear.parameters(), lr=0.01))
    for step, (inputs, goals) in enumerate(ours.setup_dataloaders(samples(96, shuffle=True))):
        with ours.no_backward_sync(model, enabled=step % 2 == 0):
            ours.backward(mse_loss(model(inputs), goals))
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    rank = torch.tensor(float(ours.global_rank))
    return Outcome(linear, [ours.all_reduce(rank.clone()).item(), *ours.all_gather(rank).tolist(), ours.broadcast(7)])


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        validation_of_uneven_data,
        gradient_accumulation,
        mixed_precision,
        resumption,
        sharded_parameters,
        fabric,
    )
}
