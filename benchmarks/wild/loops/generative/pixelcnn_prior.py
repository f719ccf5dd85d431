"""A PixelCNN over the codes of a VQ-VAE, in Lightning, which draws a grid of samples after every epoch."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The codes of images: smooth fields in steps, with noise."""
    count = scaled(384, scale, 48)
    fields = torch.nn.functional.interpolate(torch.rand(count, 1, 4, 4), size=12, mode="bilinear").squeeze(1)
    codes = (fields * 60 + 4 * torch.rand(count, 12, 12)).long()
    labels = torch.randint(10, (count,))
    torch.save({"codes": codes, "labels": labels}, "codes.pt")
    return {}


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import lightning.pytorch as pl

K, DIM, N_LAYERS, BATCH_SIZE, MAX_EPOCHS = 64, 48, 4, 16, 2

class MaskedConv2d(nn.Conv2d):
    def __init__(self, mask_type, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer('mask', torch.ones_like(self.weight))
        _, _, kH, kW = self.weight.size()
        self.mask[:, :, kH // 2, kW // 2 + (mask_type == 'B'):] = 0
        self.mask[:, :, kH // 2 + 1:] = 0

    def forward(self, x):
        self.weight.data *= self.mask
        return super().forward(x)

class ResidualBlock(nn.Module):
    def __init__(self, dim, n_classes):
        super().__init__()
        self.class_cond = nn.Embedding(n_classes, dim)
        self.net = nn.Sequential(
            nn.ReLU(), nn.Conv2d(dim, dim // 2, 1), nn.BatchNorm2d(dim // 2),
            nn.ReLU(), MaskedConv2d('B', dim // 2, dim // 2, 3, padding=1), nn.BatchNorm2d(dim // 2),
            nn.ReLU(), nn.Conv2d(dim // 2, dim, 1))

    def forward(self, x, label):
        return x + self.net(x + self.class_cond(label)[:, :, None, None])

class PixelCNN(pl.LightningModule):
    def __init__(self, k=K, dim=DIM, n_layers=N_LAYERS, n_classes=10, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(k, dim)
        self.first = MaskedConv2d('A', dim, dim, 7, padding=3)
        self.layers = nn.ModuleList([ResidualBlock(dim, n_classes) for _ in range(n_layers)])
        self.output_conv = nn.Sequential(nn.ReLU(), nn.Conv2d(dim, 128, 1), nn.ReLU(), nn.Conv2d(128, k, 1))
        self.n_seen = 0

    def forward(self, x, label):
        x = self.embedding(x).permute(0, 3, 1, 2)  # (B, C, H, W)
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, label)
        return self.output_conv(x)

    def generate(self, label, shape=(12, 12)):
        x = torch.zeros((len(label), *shape), dtype=torch.int64, device=self.device)
        for i in range(shape[0]):
            for j in range(shape[1]):
                logits = self(x, label)
                probs = F.softmax(logits[:, :, i, j], -1)
                x[:, i, j] = probs.multinomial(1).squeeze(1)
        return x

    def training_step(self, batch, batch_idx):
        codes, label = batch
        logits = self(codes, label)
        loss = F.cross_entropy(logits, codes)
        self.log('train_loss', loss, prog_bar=True)
        self.n_seen += len(codes)
        self.last_loss = loss.detach()
        return loss

    def on_train_epoch_end(self):
        self.eval()
        samples = self.generate(torch.arange(10, device=self.device))
        torch.save(samples.cpu(), f'samples_{self.current_epoch}.pt')
        self.train()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

saved = torch.load('codes.pt')
train_loader = DataLoader(TensorDataset(saved['codes'], saved['labels']), batch_size=BATCH_SIZE, shuffle=True)
model = PixelCNN()
trainer = pl.Trainer(max_epochs=MAX_EPOCHS, accelerator='auto', gradient_clip_val=1.0, enable_checkpointing=False,
                     log_every_n_steps=10)
trainer.fit(model, train_loader)
"""

CHANGES = (
    Change(
        "samples after the last epoch",
        "eval_less_often",
        edits={
            "        self.eval()\n": ""
            "        if self.current_epoch < MAX_EPOCHS - 1:\n            return\n        self.eval()\n"
        },
    ),
    Change(
        "samples without a graph", "no_grad", edits={"    def generate(": "    @torch.no_grad()\n    def generate("}
    ),
    Change(
        "only the rows up to the current one",
        "other",
        edits={"                logits = self(x, label)": "                logits = self(x[:, :i + 1], label)"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    def generate(": "    @torch.autocast('cpu', dtype=torch.bfloat16)\n    def generate(",
            "log_every_n_steps=10)": "log_every_n_steps=10, precision='bf16-mixed')",
        },
    ),
    Change("batches of 48", "larger_batch", edits={"MAX_EPOCHS = 64, 48, 4, 16, 2": "MAX_EPOCHS = 64, 48, 4, 48, 2"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=self.hparams.lr)": "lr=self.hparams.lr, fused=True)"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.n_seen", loss="model.last_loss.item()", seconds=6)
