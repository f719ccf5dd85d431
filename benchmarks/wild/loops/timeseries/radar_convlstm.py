"""Precipitation nowcasting by a ConvLSTM in Lightning: five radar frames in, five out, small batches and scores."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Sequences of ten frames of 32 by 32 pixels, cut from a smooth field that moves."""
    rng = np.random.default_rng(0)
    size, side, frames = 256, 32, 10
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    spectrum = np.fft.rfft2(rng.normal(size=(size, size))) * np.exp(-((frequency * 14) ** 2))
    field = np.fft.irfft2(spectrum, s=(size, size))
    field = np.clip(field / field.std() * 60 + 70, 0, 255).astype(np.uint8)
    count, held_out = scaled(384, scale, 16), 32
    sequences = np.empty((count + held_out, frames, side, side), dtype=np.uint8)
    for sequence in sequences:
        y, x = rng.integers(40, size - side - 40, 2)
        dy, dx = rng.integers(-3, 4, 2)
        for t in range(frames):
            sequence[t] = field[y + dy * t : y + dy * t + side, x + dx * t : x + dx * t + side]
    return {"train_frames": sequences[:count], "val_frames": sequences[count:]}


CELL = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import pytorch_lightning as pl

N_IN, N_OUT = 5, 5


class RadarDataset(Dataset):
    \"\"\"8-bit reflectivities to values between 0 and 1.\"\"\"

    def __init__(self, frames):
        self.frames = frames

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        seq = self.frames[index].astype(np.float32) / 255.0
        seq = torch.from_numpy(seq).unsqueeze(1)
        return seq[:N_IN], seq[N_IN:]


class RadarDataModule(pl.LightningDataModule):
    def __init__(self, batch_size=4, num_workers=0):
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers

    def train_dataloader(self):
        return DataLoader(RadarDataset(train_frames), batch_size=self.batch_size, shuffle=True,
                          num_workers=self.num_workers)

    def val_dataloader(self):
        return DataLoader(RadarDataset(val_frames), batch_size=self.batch_size, num_workers=self.num_workers)


class ConvLSTMCell(nn.Module):
    def __init__(self, input_dim, hidden_dim, kernel_size=3):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.conv = nn.Conv2d(input_dim + hidden_dim, 4 * hidden_dim, kernel_size, padding=kernel_size // 2)

    def forward(self, x, state):
        h, c = state
        gates = self.conv(torch.cat([x, h], dim=1))
        i, f, o, g = torch.split(gates, self.hidden_dim, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c

    def init_hidden(self, batch_size, height, width, device):
        return (torch.zeros(batch_size, self.hidden_dim, height, width, device=device),
                torch.zeros(batch_size, self.hidden_dim, height, width, device=device))


class EncoderDecoderConvLSTM(nn.Module):
    def __init__(self, nf=16):
        super().__init__()
        self.encoder_1 = ConvLSTMCell(1, nf)
        self.encoder_2 = ConvLSTMCell(nf, nf)
        self.decoder_1 = ConvLSTMCell(nf, nf)
        self.decoder_2 = ConvLSTMCell(nf, nf)
        self.decoder_cnn = nn.Conv3d(nf, 1, kernel_size=(1, 3, 3), padding=(0, 1, 1))

    def forward(self, x, future=N_OUT):
        b, seq_len, _, height, width = x.shape
        h1 = self.encoder_1.init_hidden(b, height, width, x.device)
        h2 = self.encoder_2.init_hidden(b, height, width, x.device)
        h3 = self.decoder_1.init_hidden(b, height, width, x.device)
        h4 = self.decoder_2.init_hidden(b, height, width, x.device)
        for t in range(seq_len):
            h1 = self.encoder_1(x[:, t], h1)
            h2 = self.encoder_2(h1[0], h2)
        vector, outputs = h2[0], []
        for t in range(future):
            h3 = self.decoder_1(vector, h3)
            h4 = self.decoder_2(h3[0], h4)
            vector = h4[0]
            outputs.append(vector)
        outputs = torch.stack(outputs, 2)
        return torch.sigmoid(self.decoder_cnn(outputs)).permute(0, 2, 1, 3, 4)


def csi(pred, target, threshold):
    p, t = pred >= threshold, target >= threshold
    hits = (p & t).sum()
    return hits / ((p | t).sum() + 1e-6)


class Nowcast(pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = EncoderDecoderConvLSTM()
        self.criterion = nn.MSELoss()
        self.n_sequences = 0

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = self.criterion(y_hat, y)
        self.log('train_loss', loss, prog_bar=True)
        for thr in (0.25, 0.5, 0.75):
            self.log(f'train_csi_{thr}', csi(y_hat, y, thr))
        self.n_sequences += x.size(0)
        self.last_loss = loss.detach()
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        self.log('val_loss', self.criterion(y_hat, y), prog_bar=True)
        for thr in (0.25, 0.5, 0.75):
            self.log(f'val_csi_{thr}', csi(y_hat, y, thr))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, betas=(0.9, 0.98))


pl.seed_everything(42)
dm = RadarDataModule()
model = Nowcast()
trainer = pl.Trainer(max_epochs=1, accelerator='auto', devices=1, num_sanity_val_steps=0)
trainer.fit(model, datamodule=dm)
"""

CHANGES = (
    Change("two workers", "num_workers", edits={"batch_size=4, num_workers=0": "batch_size=4, num_workers=2"}),
    Change("batches of 16", "larger_batch", edits={"batch_size=4, num_workers=0": "batch_size=16, num_workers=0"}),
    Change(
        "bf16-mixed", "precision", edits={"num_sanity_val_steps=0)": "num_sanity_val_steps=0, precision='bf16-mixed')"}
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "        gates = self.conv(torch.cat([x, h], dim=1))\n": ""
            "        xh = torch.cat([x, h], dim=1).contiguous(memory_format=torch.channels_last)\n"
            "        gates = self.conv(xh)\n",
            "kernel_size, padding=kernel_size // 2)\n": "kernel_size, padding=kernel_size // 2)\n"
            "        self.conv.to(memory_format=torch.channels_last)\n",
        },
    ),
    Change(
        "no skill scores in training",
        "fewer_logs",
        edits={
            "        for thr in (0.25, 0.5, 0.75):\n            self.log(f'train_csi_{thr}', csi(y_hat, y, thr))\n": "",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"betas=(0.9, 0.98))": "betas=(0.9, 0.98), fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.n_sequences", loss="model.last_loss.item()", seconds=10)
