"""A training of two ranks with Lightning's ddp_spawn; its argument is the folder of the runs."""

import sys

import lightning.pytorch as pl
import torch
from torch import nn

from gpulab.integrations.lightning import Profile
from tests.support.frameworks.small_data import network, training_loader


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        max_epochs=1,
        callbacks=[Profile(out=sys.argv[1])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), training_loader())
