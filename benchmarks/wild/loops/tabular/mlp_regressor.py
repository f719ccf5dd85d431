"""A regressor with fit and predict in the manner of scikit-learn, small batches cut from a permutation, early stopping."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Arrays such as `fetch_california_housing` returns."""
    count = scaled(38_400, scale, 32)
    x = np.random.normal(size=(count, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + np.sin(x[:, 2]) + np.random.normal(size=count) * 0.1).astype(np.float32)
    return {"X_train": x, "y_train": y, "X_valid": x[:2000] + 0.1, "y_valid": y[:2000]}


CELL = """
import numpy as np
import torch
from torch import nn

class MLPRegressor:
    def __init__(self, hidden=(64, 64), lr=1e-3, batch_size=32, epochs=5, patience=10, verbose=True):
        self.hidden, self.lr, self.batch_size = hidden, lr, batch_size
        self.epochs, self.patience, self.verbose = epochs, patience, verbose

    def _build(self, n_in):
        layers, width = [], n_in
        for h in self.hidden:
            layers += [nn.Linear(width, h), nn.ReLU(), nn.Dropout(0.1)]
            width = h
        return nn.Sequential(*layers, nn.Linear(width, 1))

    def fit(self, X, y, eval_set):
        X, y = torch.as_tensor(X), torch.as_tensor(y)
        Xv, yv = torch.as_tensor(eval_set[0]), torch.as_tensor(eval_set[1])
        self.model_ = self._build(X.shape[1])
        opt = torch.optim.Adam(self.model_.parameters(), lr=self.lr)
        loss_fn = nn.MSELoss()
        best, bad, self.n_seen_ = float('inf'), 0, 0
        for epoch in range(self.epochs):
            self.model_.train()
            perm = torch.randperm(len(X))
            for i in range(0, len(X), self.batch_size):
                idx = perm[i:i + self.batch_size]
                opt.zero_grad()
                loss = loss_fn(self.model_(X[idx]).squeeze(1), y[idx])
                loss.backward()
                opt.step()
                self.n_seen_ += len(idx)
            self.model_.eval()
            with torch.no_grad():
                val = loss_fn(self.model_(Xv).squeeze(1), yv).item()
            if self.verbose:
                print(f'epoch {epoch:3d} | train {loss.item():.4f} | valid {val:.4f}')
            bad = 0 if val < best else bad + 1
            best = min(best, val)
            if bad > self.patience:
                break
        return self

    def predict(self, X):
        self.model_.eval()
        with torch.no_grad():
            return self.model_(torch.as_tensor(X)).squeeze(1).numpy()

reg = MLPRegressor()
reg.fit(X_train, y_train, eval_set=(X_valid, y_valid))
rmse = np.sqrt(np.mean((reg.predict(X_valid) - y_valid) ** 2))
print('RMSE', rmse)
"""

CHANGES = (
    Change("batches of 256", "larger_batch", edits={"batch_size=32": "batch_size=256"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=self.lr)": "lr=self.lr, fused=True)"}),
    Change("one thread", "threads", edits={"reg = MLPRegressor()": "torch.set_num_threads(1)\nreg = MLPRegressor()"}),
    Change(
        "permute once per epoch",
        "batch_whole",
        edits={
            "            perm = torch.randperm(len(X))\n": "            perm = torch.randperm(len(X))\n"
            "            Xs, ys = X[perm].split(self.batch_size), y[perm].split(self.batch_size)\n",
            "            for i in range(0, len(X), self.batch_size):\n                idx = perm[i:i + self.batch_size]\n": ""
            "            for xb, yb in zip(Xs, ys):\n",
            "self.model_(X[idx]).squeeze(1), y[idx])": "self.model_(xb).squeeze(1), yb)",
            "len(idx)": "len(xb)",
        },
    ),
    Change("collector off", "gc", edits={"reg = MLPRegressor()": "import gc\ngc.disable()\nreg = MLPRegressor()"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="reg.n_seen_", loss="rmse", seconds=4)
