"""A diagonal state space model (S4D) that predicts the next values of sensors; batches are windows at random places."""

import math

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A long recording of eight sensors: daily and weekly waves with noise, and the number of iterations."""
    t = torch.arange(40000.0).unsqueeze(1)
    phases, amplitudes = torch.rand(2, 8) * 2 * math.pi, 0.5 + torch.rand(2, 8)
    waves = amplitudes[0] * torch.sin(2 * math.pi * t / 96 + phases[0])
    waves = waves + amplitudes[1] * torch.sin(2 * math.pi * t / 672 + phases[1]) + 0.2 * torch.randn(40000, 8)
    torch.save(waves, "sensors.pt")
    return {"max_iters": scaled(10, scale, 2)}


CELL = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size, seq_len, d_model, n_layers, d_state = 64, 512, 64, 4, 16
device = 'cuda' if torch.cuda.is_available() else 'cpu'

data = torch.load('sensors.pt')
data = (data - data.mean(0)) / data.std(0)
n = int(0.9 * len(data))
train_data, val_data = data[:n], data[n:]

def get_batch(split):
    d = train_data if split == 'train' else val_data
    ix = torch.randint(len(d) - seq_len - 1, (batch_size,))
    x = torch.stack([d[i:i + seq_len] for i in ix])
    y = torch.stack([d[i + 1:i + 1 + seq_len] for i in ix])
    return x.to(device), y.to(device)

class S4DKernel(nn.Module):
    def __init__(self, d_model, N=64, dt_min=0.001, dt_max=0.1):
        super().__init__()
        H = d_model
        log_dt = torch.rand(H) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)
        C = torch.randn(H, N // 2, dtype=torch.cfloat)
        self.C = nn.Parameter(torch.view_as_real(C))
        self.log_dt = nn.Parameter(log_dt)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(H, N // 2)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(N // 2).float().repeat(H, 1))

    def forward(self, L):
        dt = torch.exp(self.log_dt)
        C = torch.view_as_complex(self.C)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        K = dtA.unsqueeze(-1) * torch.arange(L, device=A.device)
        C = C * (torch.exp(dtA) - 1.) / A
        return 2 * torch.einsum('hn, hnl -> hl', C, torch.exp(K)).real

class S4D(nn.Module):
    def __init__(self, d_model, d_state=64, dropout=0.0):
        super().__init__()
        self.D = nn.Parameter(torch.randn(d_model))
        self.kernel = S4DKernel(d_model, N=d_state)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.output_linear = nn.Sequential(nn.Conv1d(d_model, 2 * d_model, kernel_size=1), nn.GLU(dim=-2))

    def forward(self, u):  # (B, H, L)
        L = u.size(-1)
        k = self.kernel(L=L)
        k_f = torch.fft.rfft(k, n=2 * L)
        u_f = torch.fft.rfft(u, n=2 * L)
        y = torch.fft.irfft(u_f * k_f, n=2 * L)[..., :L]
        y = y + u * self.D.unsqueeze(-1)
        y = self.dropout(self.activation(y))
        return self.output_linear(y)

class S4Model(nn.Module):
    def __init__(self, d_input, d_model, n_layers, d_state, dropout=0.1):
        super().__init__()
        self.encoder = nn.Linear(d_input, d_model)
        self.s4_layers = nn.ModuleList([S4D(d_model, d_state, dropout) for _ in range(n_layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(n_layers)])
        self.decoder = nn.Linear(d_model, d_input)

    def forward(self, x):
        x = self.encoder(x).transpose(-1, -2)
        for layer, norm in zip(self.s4_layers, self.norms):
            z = norm(x.transpose(-1, -2)).transpose(-1, -2)
            x = layer(z) + x
        return self.decoder(x.transpose(-1, -2))

model = S4Model(data.shape[1], d_model, n_layers, d_state).to(device)
ssm = [p for name, p in model.named_parameters() if 'kernel' in name]
rest = [p for name, p in model.named_parameters() if 'kernel' not in name]
optimizer = torch.optim.AdamW([{'params': rest}, {'params': ssm, 'lr': 1e-3, 'weight_decay': 0.0}], lr=4e-3,
                              weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_iters)

n_windows = 0
model.train()
for it in range(max_iters):
    x, y = get_batch('train')
    pred = model(x)
    loss = F.mse_loss(pred, y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    n_windows += len(x)
    if it % 5 == 0:
        print(f'iter {it}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.5f}')

model.eval()
with torch.no_grad():
    x, y = get_batch('val')
    print(f'val mse {F.mse_loss(model(x), y).item():.4f}')
"""

CHANGES = (
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    pred = model(x)\n": "    with torch.autocast(device, dtype=torch.bfloat16):\n        pred = model(x)\n"
            "    pred = pred.float()\n"
        },
    ),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={"weight_decay=0.01)": "weight_decay=0.01, fused=True)"},
    ),
    Change(
        "batches of 128",
        "larger_batch",
        edits={
            "d_state = 64,": "d_state = 128,",
            "\nn_windows = 0\n": "\nn_windows, max_iters = 0, max_iters // 2\n",
        },
    ),
    Change(
        "windows by one index",
        "batch_whole",
        edits={
            "    x = torch.stack([d[i:i + seq_len] for i in ix])\n"
            "    y = torch.stack([d[i + 1:i + 1 + seq_len] for i in ix])\n": ""
            "    window = d[ix.unsqueeze(1) + torch.arange(seq_len + 1)]\n"
            "    x, y = window[:, :-1], window[:, 1:]\n"
        },
    ),
    Change("print once", "fewer_logs", edits={"    if it % 5 == 0:": "    if it == 0:"}),
    Change(
        "foreach AdamW",
        "foreach_optimizer",
        edits={"weight_decay=0.01)": "weight_decay=0.01, foreach=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_windows", seconds=6)
