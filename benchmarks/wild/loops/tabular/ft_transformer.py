"""An FT-Transformer on a DataFrame that becomes tensors before training, in the manner of rtdl."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class FTTransformer(nn.Module):
    """A token per column, a transformer, and a head on the first token."""

    def __init__(self, numeric: int, cardinalities: list[int], width: int = 96, layers: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numeric, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(numeric, width))
        self.embeddings = nn.ModuleList(nn.Embedding(n, width) for n in cardinalities)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        """A logit per row."""
        tokens = [self.cls.expand(len(x_num), -1, -1), x_num.unsqueeze(-1) * self.weight + self.bias]
        tokens += [embedding(x_cat[:, k : k + 1]) for k, embedding in enumerate(self.embeddings)]
        out: Tensor = self.head(self.encoder(torch.cat(tokens, 1))[:, 0]).squeeze(-1)
        return out


def prepare(scale: float) -> Namespace:
    """A table like that of Adult, with six numeric and eight categorical columns."""
    rng = np.random.default_rng(0)
    count = scaled(5760, scale, 128) + 640
    frame = pd.DataFrame(rng.normal(size=(count, 6)), columns=[f"num_{k}" for k in range(6)])
    for k, n in enumerate((9, 16, 16, 7, 15, 6, 5, 42)):
        frame[f"cat_{k}"] = rng.integers(0, n, count).astype(str)
    frame["income"] = np.where(frame["num_0"] + rng.normal(size=count) > 0.8, ">50K", "<=50K")
    return {"df": frame, "FTTransformer": FTTransformer}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
num_cols = [c for c in df.columns if c.startswith('num_')]
cat_cols = [c for c in df.columns if c.startswith('cat_')]
train_df, val_df = df.iloc[:-640].copy(), df.iloc[-640:].copy()
mean, std = train_df[num_cols].mean(), train_df[num_cols].std()
categories = {c: pd.Index(sorted(df[c].unique())) for c in cat_cols}

def to_tensors(part):
    x_num = torch.tensor(((part[num_cols] - mean) / std).to_numpy(np.float32))
    x_cat = torch.tensor(np.stack([categories[c].get_indexer(part[c]) for c in cat_cols], 1))
    y = torch.tensor((part['income'] == '>50K').to_numpy(np.float32))
    return x_num, x_cat, y

train_set, val_set = TensorDataset(*to_tensors(train_df)), TensorDataset(*to_tensors(val_df))
train_loader = DataLoader(train_set, batch_size=128, shuffle=True)
val_loader = DataLoader(val_set, batch_size=640)
model = FTTransformer(len(num_cols), [len(c) for c in categories.values()]).to(device)
no_decay = [p for n, p in model.named_parameters() if p.ndim < 2 or 'norm' in n]
decay = [p for n, p in model.named_parameters() if not (p.ndim < 2 or 'norm' in n)]
optimizer = torch.optim.AdamW([{'params': decay}, {'params': no_decay, 'weight_decay': 0.0}], lr=1e-4, weight_decay=1e-5)

n_rows, best = 0, 0.0
for epoch in range(2):
    model.train()
    for x_num, x_cat, y in train_loader:
        x_num, x_cat, y = x_num.to(device), x_cat.to(device), y.to(device)
        optimizer.zero_grad()
        logits = model(x_num, x_cat)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        loss.backward()
        optimizer.step()
        n_rows += len(y)
    model.eval()
    with torch.no_grad():
        correct = sum(((model(a.to(device), b.to(device)) > 0).float() == y.to(device)).sum() for a, b, y in val_loader)
    accuracy = correct.item() / len(val_set)
    best = max(best, accuracy)
    print(f'Epoch {epoch:03d} | loss {loss.item():.4f} | val accuracy {accuracy:.4f} | best {best:.4f}')
"""

CHANGES = (
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        logits = model(x_num, x_cat)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            logits = model(x_num, x_cat).float()\n"
        },
    ),
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "train_loader = DataLoader(train_set, batch_size=128, shuffle=True)": "from torch.utils.data import BatchSampler, RandomSampler\n"
            "train_loader = DataLoader(train_set, sampler=BatchSampler(RandomSampler(train_set), 128, False), batch_size=None)"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 512", "larger_batch", edits={"batch_size=128": "batch_size=512"}),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=1e-5)": "weight_decay=1e-5, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_rows", seconds=6)
