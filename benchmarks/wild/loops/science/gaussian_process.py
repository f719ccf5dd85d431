"""An exact Gaussian process whose hyperparameters maximize the marginal likelihood by Cholesky factors; a healthy loop."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Measurements of a smooth function of five variables."""
    x = torch.rand(1000, 5)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] ** 2 - torch.cos(4 * x[:, 2] * x[:, 3]) + 0.1 * torch.randn(len(x))
    return {"train_x": x, "train_y": y - y.mean(), "training_iter": scaled(80, scale)}


CELL = """
import math
import torch
import torch.nn as nn

class ExactGP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.raw_lengthscale = nn.Parameter(torch.zeros(dim))
        self.raw_outputscale = nn.Parameter(torch.tensor(0.0))
        self.raw_noise = nn.Parameter(torch.tensor(-1.0))
        self.mean = nn.Parameter(torch.tensor(0.0))

    @property
    def noise(self):
        return nn.functional.softplus(self.raw_noise) + 1e-3

    def kernel(self, a, b):
        lengthscale = nn.functional.softplus(self.raw_lengthscale)
        a, b = a / lengthscale, b / lengthscale
        d2 = (a.pow(2).sum(-1)[:, None] + b.pow(2).sum(-1) - 2 * a @ b.T).clamp_min(0)
        return nn.functional.softplus(self.raw_outputscale) * torch.exp(-0.5 * d2)

    def neg_mll(self, x, y):
        n = len(x)
        K = self.kernel(x, x) + self.noise * torch.eye(n, device=x.device)
        L = torch.linalg.cholesky(K)
        resid = (y - self.mean).unsqueeze(1)
        alpha = torch.cholesky_solve(resid, L)
        log_det = 2 * L.diagonal().log().sum()
        return 0.5 * ((resid * alpha).sum() + log_det + n * math.log(2 * math.pi)) / n

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_x, train_y = train_x.to(device), train_y.to(device)
model = ExactGP(train_x.shape[-1]).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

for i in range(training_iter):
    optimizer.zero_grad()
    loss = model.neg_mll(train_x, train_y)
    loss.backward()
    if i % 10 == 0:
        print('Iter %d/%d - Loss: %.3f noise: %.3f' % (i + 1, training_iter, loss.item(), model.noise.item()))
    optimizer.step()
"""

CHANGES = (
    Change("fused Adam", "fused_optimizer", edits={"lr=0.1)": "lr=0.1, fused=True)"}),
    Change("print once", "fewer_logs", edits={"if i % 10 == 0:": "if i == 0:"}),
    Change(
        "one thread",
        "threads",
        edits={"for i in range(training_iter):": "torch.set_num_threads(1)\nfor i in range(training_iter):"},
    ),
    Change(
        "noise on the diagonal in place",
        "other",
        edits={
            "K = self.kernel(x, x) + self.noise * torch.eye(n, device=x.device)": "K = self.kernel(x, x)\n"
            "        K.diagonal().add_(self.noise)"
        },
    ),
    Change("no garbage collection", "gc", edits={"import math\n": "import gc\nimport math\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="(i + 1) * len(train_x)", seconds=6)
