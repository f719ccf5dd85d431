"""DeepFM with an L2 penalty over all embedding tables in every loss, in the manner of DeepCTR-Torch."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Label-encoded clicks with 20 categorical and 6 dense columns, shaped like Criteo."""
    rng = np.random.default_rng(0)
    rows = scaled(45056, scale, 1024)
    columns: dict[str, np.ndarray] = {"label": (rng.random(rows) < 0.25).astype(np.float32)}
    for index in range(6):
        columns[f"I{index + 1}"] = rng.random(rows, dtype=np.float32)
    sizes = {f"C{index + 1}": int(30 * 1.55**index) for index in range(20)}
    for name, size in sizes.items():
        columns[name] = (size * rng.random(rows) ** 2).astype(np.int64)
    return {"data": pd.DataFrame(columns), "vocabulary": sizes}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

sparse_features = [f'C{i}' for i in range(1, 21)]
dense_features = [f'I{i}' for i in range(1, 7)]
batch_size = 256
l2_reg_embedding = 1e-5

def log_loss(y, p):
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))

def roc_auc_score(y, p):
    ranks = np.argsort(np.argsort(p)) + 1
    n_pos = y.sum()
    return (ranks[y == 1].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * (len(y) - n_pos))

class DeepFM(nn.Module):
    def __init__(self, embedding_dim=8, dnn_hidden_units=(128, 64)):
        super().__init__()
        self.embedding_dict = nn.ModuleDict({f: nn.Embedding(vocabulary[f], embedding_dim) for f in sparse_features})
        self.linear_dict = nn.ModuleDict({f: nn.Embedding(vocabulary[f], 1) for f in sparse_features})
        for table in [*self.embedding_dict.values(), *self.linear_dict.values()]:
            nn.init.normal_(table.weight, mean=0, std=1e-4)
        layers, width = [], len(sparse_features) * embedding_dim + len(dense_features)
        for units in dnn_hidden_units:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        self.dnn = nn.Sequential(*layers, nn.Linear(width, 1, bias=False))
        self.dense_linear = nn.Linear(len(dense_features), 1)

    def forward(self, sparse, dense):
        emb = torch.stack([self.embedding_dict[f](sparse[:, i]) for i, f in enumerate(sparse_features)], 1)
        linear = sum(self.linear_dict[f](sparse[:, i]) for i, f in enumerate(sparse_features)) + self.dense_linear(dense)
        fm = 0.5 * (emb.sum(1) ** 2 - (emb ** 2).sum(1)).sum(1, keepdim=True)
        deep = self.dnn(torch.cat([emb.flatten(1), dense], 1))
        return torch.sigmoid(linear + fm + deep).squeeze(1)

    def get_regularization_loss(self):
        total = torch.zeros((1,))
        for table in [*self.embedding_dict.values(), *self.linear_dict.values()]:
            total = total + torch.sum(l2_reg_embedding * torch.square(table.weight))
        return total.squeeze()

device = 'cuda' if torch.cuda.is_available() else 'cpu'
train_tensor_data = TensorDataset(torch.from_numpy(data[sparse_features].values), torch.from_numpy(data[dense_features].values),
                                  torch.from_numpy(data['label'].values))
train_loader = DataLoader(train_tensor_data, shuffle=True, batch_size=batch_size)
model = DeepFM().to(device)
optim = torch.optim.Adam(model.parameters())

n_samples = 0
for epoch in range(1):
    model.train()
    loss_epoch, total_loss_epoch, y_all, pred_all = 0, 0, [], []
    for x_sparse, x_dense, y_train in train_loader:
        x_sparse, x_dense, y = x_sparse.to(device), x_dense.to(device), y_train.to(device)
        y_pred = model(x_sparse, x_dense)
        optim.zero_grad()
        loss = F.binary_cross_entropy(y_pred, y, reduction='sum') / len(y)
        total_loss = loss + model.get_regularization_loss()
        loss_epoch += loss.item()
        total_loss_epoch += total_loss.item()
        total_loss.backward()
        optim.step()
        y_all.append(y.cpu().numpy())
        pred_all.append(y_pred.cpu().data.numpy())
        n_samples += len(y)
    y_all, pred_all = np.concatenate(y_all), np.concatenate(pred_all).astype('float64')
    print(f'Epoch {epoch + 1} - loss: {total_loss_epoch / len(train_loader):.4f} - '
          f'binary_crossentropy: {log_loss(y_all, pred_all):.4f} - auc: {roc_auc_score(y_all, pred_all):.4f}')
"""

_ADAM = "optim = torch.optim.Adam(model.parameters())"
_GROUPS = """tables = [*model.embedding_dict.parameters(), *model.linear_dict.parameters()]
others = [*model.dnn.parameters(), *model.dense_linear.parameters()]
optim = torch.optim.Adam([{'params': tables, 'weight_decay': 2 * l2_reg_embedding}, {'params': others}])"""

CHANGES = (
    Change("fused Adam", "fused_optimizer", edits={_ADAM: _ADAM[:-1] + ", fused=True)"}),
    Change(
        "penalty as weight decay",
        "other",
        edits={"total_loss = loss + model.get_regularization_loss()": "total_loss = loss", _ADAM: _GROUPS},
    ),
    Change("foreach Adam", "foreach_optimizer", edits={_ADAM: _ADAM[:-1] + ", foreach=True)"}),
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "train_loader = DataLoader(train_tensor_data, shuffle=True, batch_size=batch_size)": ""
            "sampler = torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(train_tensor_data), batch_size, False)\n"
            "train_loader = DataLoader(train_tensor_data, sampler=sampler, batch_size=None)"
        },
    ),
    Change("batches of 1024", "larger_batch", edits={"batch_size = 256": "batch_size = 1024"}),
    Change("two workers", "num_workers", edits={"batch_size=batch_size)": "batch_size=batch_size, num_workers=2)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_samples", seconds=6)
