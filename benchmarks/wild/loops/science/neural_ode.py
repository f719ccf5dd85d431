"""A neural ODE fitted to a spiral with a hand-written Runge-Kutta solver, after the demo of torchdiffeq."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The number of iterations; the cell computes its data."""
    return {"niters": scaled(960, scale, 4)}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
data_size, batch_time, batch_size, test_freq = 500, 10, 20, 20
true_y0 = torch.tensor([[2., 0.]]).to(device)
t = torch.linspace(0., 25., data_size).to(device)
true_A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]).to(device)

class Lambda(nn.Module):
    def forward(self, t, y):
        return torch.mm(y**3, true_A)

class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)

def rk4_step(func, t, dt, y):
    k1 = func(t, y)
    k2 = func(t + dt / 2, y + dt * k1 / 2)
    k3 = func(t + dt / 2, y + dt * k2 / 2)
    k4 = func(t + dt, y + dt * k3)
    return y + dt * (k1 + 2 * k2 + 2 * k3 + k4) / 6

def odeint(func, y0, t):
    solution = [y0]
    for i in range(len(t) - 1):
        solution.append(rk4_step(func, t[i], t[i + 1] - t[i], solution[-1]))
    return torch.stack(solution)

with torch.no_grad():
    true_y = odeint(Lambda(), true_y0, t).squeeze(1)

def get_batch():
    s = torch.from_numpy(np.random.choice(np.arange(data_size - batch_time, dtype=np.int64), batch_size, replace=False))
    batch_y0 = true_y[s]
    batch_t = t[:batch_time]
    batch_y = torch.stack([true_y[s + i] for i in range(batch_time)], dim=0)
    return batch_y0.to(device), batch_t.to(device), batch_y.to(device)

func = ODEFunc().to(device)
optimizer = optim.RMSprop(func.parameters(), lr=1e-3)

n_curves = 0
for itr in range(1, niters + 1):
    optimizer.zero_grad()
    batch_y0, batch_t, batch_y = get_batch()
    pred_y = odeint(func, batch_y0, batch_t)
    loss = torch.mean(torch.abs(pred_y - batch_y))
    loss.backward()
    optimizer.step()
    n_curves += len(batch_y0)
    if itr % test_freq == 0:
        with torch.no_grad():
            pred_y = odeint(func, true_y0, t).squeeze(1)
            print('Iter {:04d} | Total Loss {:.6f}'.format(itr, torch.mean(torch.abs(pred_y - true_y)).item()))
"""

CHANGES = (
    Change(
        "test every 100 iterations",
        "eval_less_often",
        edits={
            "batch_time, batch_size, test_freq = 500, 10, 20, 20": "batch_time, batch_size, test_freq = 500, 10, 20, 100"
        },
    ),
    Change(
        "batches of 80",
        "larger_batch",
        edits={
            "test_freq = 500, 10, 20, 20": "test_freq = 500, 10, 80, 5",
            "range(1, niters + 1)": "range(1, niters // 4 + 1)",
        },
    ),
    Change(
        "compile the right-hand side",
        "compile",
        edits={"func = ODEFunc().to(device)\n": "func = torch.compile(ODEFunc().to(device))\n"},
    ),
    Change(
        "time steps as numbers",
        "remove_python",
        edits={
            "    solution = [y0]\n": "    solution = [y0]\n    times = t.tolist()\n",
            "rk4_step(func, t[i], t[i + 1] - t[i], solution[-1])": "rk4_step(func, times[i], times[i + 1] - times[i], solution[-1])",
            "torch.stack([true_y[s + i] for i in range(batch_time)], dim=0)": "true_y[s + torch.arange(batch_time)[:, None]]",
        },
    ),
    Change("foreach RMSprop", "foreach_optimizer", edits={"lr=1e-3)": "lr=1e-3, foreach=True)"}),
    Change("one thread", "threads", edits={"n_curves = 0\n": "n_curves = 0\ntorch.set_num_threads(1)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_curves", seconds=5)
