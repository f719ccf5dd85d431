"""Hyperparameters of a Gaussian process by L-BFGS in double precision, with restarts: linear algebra and little else."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Noisy values of a smooth function of six variables."""
    inputs = np.random.rand(640, 6)
    values = np.sin(3 * inputs[:, 0]) + inputs[:, 1] ** 2 + 0.1 * np.random.randn(640)
    return {"X": inputs, "y": values, "n_restarts": scaled(10, scale)}


CELL = """
import math
import torch

X_train = torch.tensor(X, dtype=torch.float64)
y_train = torch.tensor(y, dtype=torch.float64)
y_train = (y_train - y_train.mean()) / y_train.std()
n, d = X_train.shape

def kernel(A, B, log_ell, log_sf):
    A, B = A / log_ell.exp(), B / log_ell.exp()
    sq = (A ** 2).sum(1)[:, None] + (B ** 2).sum(1)[None] - 2 * A @ B.t()
    r = torch.sqrt(sq.clamp(min=0) + 1e-12)
    return (2 * log_sf).exp() * (1 + math.sqrt(5) * r + 5 / 3 * r ** 2) * torch.exp(-math.sqrt(5) * r)

def nll(log_ell, log_sf, log_sn):
    K = kernel(X_train, X_train, log_ell, log_sf) + ((2 * log_sn).exp() + 1e-5) * torch.eye(n, dtype=X_train.dtype)
    L = torch.linalg.cholesky(K)
    alpha = torch.cholesky_solve(y_train[:, None], L)
    return 0.5 * (y_train @ alpha[:, 0]) + L.diagonal().log().sum() + 0.5 * n * math.log(2 * math.pi)

best_nll, best_params, fitted_points = float('inf'), None, 0
for restart in range(n_restarts):
    log_ell = (0.5 * torch.randn(d, dtype=X_train.dtype)).requires_grad_()
    log_sf = torch.zeros(1, dtype=X_train.dtype, requires_grad=True)
    log_sn = torch.full((1,), -1.0, dtype=X_train.dtype, requires_grad=True)
    params = [log_ell, log_sf, log_sn]
    optimizer = torch.optim.LBFGS(params, lr=0.5, max_iter=4, history_size=10)

    def closure():
        optimizer.zero_grad()
        value = nll(*params) + 0.05 * sum((p ** 2).sum() for p in params)
        value.backward()
        return value

    for it in range(3):
        loss = optimizer.step(closure)
        fitted_points += n
    print(f'restart {restart}: nll {loss.item():.3f} lengthscales {[round(v, 2) for v in log_ell.exp().tolist()]}')
    if loss.item() < best_nll:
        best_nll, best_params = loss.item(), [p.detach().clone() for p in params]
"""

CHANGES = (
    Change(
        "identity and constants once",
        "remove_python",
        edits={
            "def nll(log_ell": "EYE, CONST = torch.eye(n, dtype=X_train.dtype), 0.5 * n * math.log(2 * math.pi)\n\ndef nll(log_ell",
            " * torch.eye(n, dtype=X_train.dtype)\n": " * EYE\n",
            "L.diagonal().log().sum() + 0.5 * n * math.log(2 * math.pi)": "L.diagonal().log().sum() + CONST",
        },
    ),
    Change(
        "print nothing",
        "fewer_logs",
        edits={
            "    print(f'restart {restart}: nll {loss.item():.3f} lengthscales {[round(v, 2) for v in log_ell.exp().tolist()]}')\n": ""
        },
    ),
    Change("one thread", "threads", edits={"import math\n": "import math\nimport torch\ntorch.set_num_threads(1)\n"}),
    Change("compile the kernel", "compile", edits={"def kernel(": "@torch.compile\ndef kernel("}),
    Change("collector off", "gc", edits={"import math\n": "import gc, math\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="fitted_points", loss="best_nll", seconds=5)
