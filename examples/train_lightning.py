"""A small model with Lightning's Trainer: a callback, and where to resume from."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.trainer.integrations.lightning import ShoalCallback  # shoal


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, 4)

    def training_step(self, batch, number):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


torch.manual_seed(0)
inputs = torch.randn(128, 16)
loader = DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=16)
shoal = ShoalCallback()  # shoal
trainer = Trainer(
    max_epochs=int(os.environ.get("EPOCHS", "3")),
    accelerator="auto",
    callbacks=[shoal],  # shoal: was without
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), loader, ckpt_path=shoal.newest())  # shoal: was without ckpt_path
print(f"step {trainer.global_step}: done", flush=True)
