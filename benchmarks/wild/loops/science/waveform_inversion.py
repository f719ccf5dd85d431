"""Full-waveform inversion: automatic differentiation through the time steps of the acoustic wave equation."""

import math

import torch
from torch.nn import functional

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

NZ, NX, H, DT, NT = 88, 140, 10.0, 0.0015, 180


def prepare(scale: float) -> Namespace:
    """A layered model with a lens, a smooth first guess, and the recorded waves of all shots."""
    shots = scaled(48, scale, 8)
    z, x = torch.meshgrid(torch.arange(NZ) * 1.0, torch.arange(NX) * 1.0, indexing="ij")
    true = 1600 + 12 * z + 250 * (z > 40 + 6 * torch.sin(x / 20)).float()
    true = true - 300 * torch.exp(-(((z - 30) / 8) ** 2) - ((x - 70) / 18) ** 2)
    guess = functional.avg_pool2d(true[None, None], 31, 1, 15, count_include_pad=False)[0, 0]
    t = torch.arange(NT) * DT - 0.07
    source = (1 - 2 * (math.pi * 15 * t) ** 2) * torch.exp(-((math.pi * 15 * t) ** 2))
    edge = torch.minimum(torch.minimum(x, NX - 1 - x), NZ - 1 - z)
    damp = 60 * ((12 - edge).clamp(min=0) / 12) ** 2
    source_x = torch.linspace(14, NX - 15, shots).long()
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])[None, None]
    k1, k2, k3 = 2 / (1 + damp * DT), (1 - damp * DT) / (1 + damp * DT), (true * DT / H) ** 2 / (1 + damp * DT)
    u1, u2, records = torch.zeros(shots, NZ, NX), torch.zeros(shots, NZ, NX), []
    for amplitude in source:
        u = k1 * u1 - k2 * u2 + k3 * functional.conv2d(u1[:, None], kernel, padding=1)[:, 0]
        u[torch.arange(shots), 3, source_x] += amplitude
        u1, u2 = u, u1
        records.append(u[:, 5])
    return {
        "observed": torch.stack(records, 1),
        "source_x": source_x,
        "wavelet": source,
        "damping": damp,
        "v_init": guess,
        "h": H,
        "dt": DT,
    }


CELL = """
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
BATCH_SHOTS = 8
N_EPOCHS = 6
SOURCE_Z, RECEIVER_Z = 3, 5

class WaveCell(nn.Module):
    def __init__(self, dt, h, b):
        super().__init__()
        self.dt, self.h = dt, h
        self.register_buffer('k1', 2 / (1 + b * dt))
        self.register_buffer('k2', (1 - b * dt) / (1 + b * dt))
        self.register_buffer('k3', dt ** 2 / h ** 2 / (1 + b * dt))

    def laplacian(self, y):
        # the edges wrap around, but the sponge layer absorbs what arrives there
        return (torch.roll(y, 1, dims=1) + torch.roll(y, -1, dims=1)
                + torch.roll(y, 1, dims=2) + torch.roll(y, -1, dims=2) - 4 * y)

    def forward(self, h1, h2, c2):
        y = self.k1 * h1 - self.k2 * h2 + c2 * self.laplacian(h1)
        return y, h1

class WaveRNN(nn.Module):
    def __init__(self, v_init, damping, dt, h):
        super().__init__()
        self.vel = nn.Parameter(v_init.clone() / 1000)  # km/s
        self.cell = WaveCell(dt, h, damping)

    def forward(self, wavelet, src_x):
        batch_size = len(src_x)
        h1 = torch.zeros(batch_size, *self.vel.shape, device=src_x.device)
        h2 = torch.zeros(batch_size, *self.vel.shape, device=src_x.device)
        c2 = self.cell.k3 * (self.vel * 1000) ** 2
        shots = torch.arange(batch_size, device=src_x.device)
        traces = []
        for s in wavelet:
            h1, h2 = self.cell(h1, h2, c2)
            h1[shots, SOURCE_Z, src_x] += s
            traces.append(h1[:, RECEIVER_Z])
        return torch.stack(traces, dim=1)

loader = DataLoader(TensorDataset(source_x, observed), batch_size=BATCH_SHOTS, shuffle=True)
model = WaveRNN(v_init, damping, dt, h).to(device)
wavelet = wavelet.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.MSELoss()

loss_history, n_shots = [], 0
for epoch in range(N_EPOCHS):
    epoch_loss = 0.0
    for src_x, d_obs in loader:
        src_x, d_obs = src_x.to(device), d_obs.to(device)
        optimizer.zero_grad()
        d_pred = model(wavelet, src_x)
        loss = criterion(d_pred, d_obs) / d_obs.pow(2).mean()
        loss.backward()
        model.vel.grad[:8] = 0  # the water layer is known
        optimizer.step()
        with torch.no_grad():
            model.vel.clamp_(1.3, 4.0)
        epoch_loss += loss.item() * len(src_x)
        n_shots += len(src_x)
    loss_history.append(epoch_loss / len(source_x))
    print('Epoch: {:03d}, Loss: {:.5f}'.format(epoch, loss_history[-1]))
np.save('inverted.npy', model.vel.detach().cpu().numpy())
"""

LAPLACIAN = CELL[CELL.index("        # the edges wrap") : CELL.index("    def forward(self, h1")]

CHANGES = (
    Change("24 shots per batch", "larger_batch", edits={"BATCH_SHOTS = 8": "BATCH_SHOTS = 24"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.01)": "lr=0.01, fused=True)"}),
    Change(
        "time step with addcmul",
        "other",
        edits={
            "self.k1 * h1 - self.k2 * h2 + c2 * self.laplacian(h1)": (
                "torch.addcmul(torch.addcmul(self.k1 * h1, self.k2, h2, value=-1), c2, self.laplacian(h1))"
            )
        },
    ),
    Change(
        "Laplacian by slices",
        "other",
        edits={
            LAPLACIAN: "        p = nn.functional.pad(y, (1, 1, 1, 1))\n"
            "        return p[:, 2:, 1:-1] + p[:, :-2, 1:-1] + p[:, 1:-1, 2:] + p[:, 1:-1, :-2] - 4 * y\n\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        d_pred = model(wavelet, src_x)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            d_pred = model(wavelet, src_x)\n"
        },
    ),
    Change(
        "amplitudes as a list of numbers",
        "remove_python",
        edits={"for s in wavelet:": "for s in wavelet.tolist():"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_shots", seconds=6)
