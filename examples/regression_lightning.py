"""Lightning on ringwide: the strategy names the backend, and the rest is as it was.

python examples/regression_lightning.py
"""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def on_train_start(self) -> None:
        ddp = self.trainer.model
        self.print(f"{type(ddp).__name__} on {ddp.process_group.name()}")

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("training", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


if __name__ == "__main__":
    lightning.seed_everything(1)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="ringwide"),
        max_epochs=2,
        callbacks=[ModelCheckpoint("checkpoints", monitor="validation")],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=16))
    if trainer.is_global_zero:
        print({name: value.item() for name, value in trainer.callback_metrics.items()})
        print(trainer.checkpoint_callback.best_model_path)
