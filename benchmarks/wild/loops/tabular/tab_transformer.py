"""A TabTransformer on census data: categories through attention, numbers beside them, a scikit-learn report every epoch."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, mask_dropout, scaled

CATEGORIES = {
    "workclass": 9,
    "education": 16,
    "marital_status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native_country": 42,
}


def prepare(scale: float) -> Namespace:
    """Persons with eight categories, five numbers and an income that depends on them, as a CSV file."""
    rng = np.random.default_rng(0)
    count = scaled(7000, scale, 1000)
    score = rng.normal(0, 0.7, count)
    columns: dict[str, object] = {}
    for name, size in CATEGORIES.items():
        values = np.minimum(rng.geometric(0.35, count) - 1, size - 1)
        score += rng.normal(0, 0.6, size)[values]
        columns[name] = [f"{name}-{value}" for value in values]
    for name in ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week"):
        numbers = rng.gamma(3, 10, count)
        score += rng.normal(0, 0.3) * (numbers - 30) / 17
        columns[name] = numbers.round()
    columns["income"] = np.where(score > np.quantile(score, 0.76), ">50K", "<=50K")
    pd.DataFrame(columns).to_csv("adult.csv", index=False)
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch.utils.data import Dataset, DataLoader

BATCH_SIZE = 128
EPOCHS = 2
LR = 1e-3
WEIGHT_DECAY = 1e-5

df = pd.read_csv('adult.csv')
CONT_COLS = ['age', 'education_num', 'capital_gain', 'capital_loss', 'hours_per_week']
CAT_COLS = [c for c in df.columns if c not in CONT_COLS + ['income']]

cat_dims = []
for col in CAT_COLS:
    le = LabelEncoder()
    df[col] = le.fit_transform(df[col].astype(str))
    cat_dims.append(len(le.classes_))
df['income'] = (df['income'] == '>50K').astype(int)

train_df, val_df = train_test_split(df, test_size=0.2, random_state=42, stratify=df['income'])
scaler = StandardScaler()
train_df[CONT_COLS] = scaler.fit_transform(train_df[CONT_COLS])
val_df[CONT_COLS] = scaler.transform(val_df[CONT_COLS])

class AdultDataset(Dataset):
    def __init__(self, df):
        self.X_cat = df[CAT_COLS].values.astype(np.int64)
        self.X_cont = df[CONT_COLS].values.astype(np.float32)
        self.y = df['income'].values.astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return self.X_cat[idx], self.X_cont[idx], self.y[idx]

class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)

class FeedForward(nn.Module):
    def __init__(self, dim, mult=4, dropout=0.):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim * mult * 2),
            GEGLU(),
            nn.Dropout(dropout),
            nn.Linear(dim * mult, dim)
        )

    def forward(self, x):
        return self.net(x)

class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=16, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, _ = x.shape
        x = self.norm(x)
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: t.reshape(b, n, self.heads, -1).transpose(1, 2), (q, k, v))
        q = q * self.scale
        sim = torch.einsum('b h i d, b h j d -> b h i j', q, k)
        attn = sim.softmax(dim=-1)
        dropped_attn = self.dropout(attn)
        out = torch.einsum('b h i j, b h j d -> b h i d', dropped_attn, v)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)

class TabTransformer(nn.Module):
    def __init__(self, categories, num_continuous, dim=32, depth=6, heads=8, dim_head=16, dim_out=1,
                 mlp_hidden_mults=(4, 2), attn_dropout=0.1, ff_dropout=0.1):
        super().__init__()
        offsets = np.cumsum([0] + list(categories))[:-1]
        self.register_buffer('categories_offset', torch.tensor(offsets))
        self.category_embed = nn.Embedding(sum(categories), dim)
        self.layers = nn.ModuleList([
            nn.ModuleList([Attention(dim, heads, dim_head, attn_dropout), FeedForward(dim, dropout=ff_dropout)])
            for _ in range(depth)])
        self.norm = nn.LayerNorm(num_continuous)
        input_size = dim * len(categories) + num_continuous
        hidden = [m * input_size // 8 for m in mlp_hidden_mults]
        dims = [input_size, *hidden, dim_out]
        layers = []
        for i, (dim_in, dim_o) in enumerate(zip(dims[:-1], dims[1:])):
            layers.append(nn.Linear(dim_in, dim_o))
            if i < len(dims) - 2:
                layers.append(nn.ReLU())
        self.mlp = nn.Sequential(*layers)

    def forward(self, x_categ, x_cont):
        x = self.category_embed(x_categ + self.categories_offset)
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        x = torch.cat((x.flatten(1), self.norm(x_cont)), dim=-1)
        return self.mlp(x).squeeze(-1)

train_loader = DataLoader(AdultDataset(train_df), batch_size=BATCH_SIZE, shuffle=True)
val_loader = DataLoader(AdultDataset(val_df), batch_size=BATCH_SIZE)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = TabTransformer(cat_dims, len(CONT_COLS)).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
print(f'Parameters: {sum(p.numel() for p in model.parameters()):,}')

history = {'train_loss': [], 'val_loss': [], 'val_auc': []}
best_auc, rows_seen = 0, 0
for epoch in range(EPOCHS):
    model.train()
    running_loss = 0.0
    for x_cat, x_cont, y in train_loader:
        x_cat, x_cont, y = x_cat.to(device), x_cont.to(device), y.to(device)
        optimizer.zero_grad()
        logits = model(x_cat, x_cont)
        loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * y.size(0)
        rows_seen += y.size(0)
    train_loss = running_loss / len(train_loader.dataset)

    model.eval()
    val_loss, probs, targets = 0.0, [], []
    with torch.no_grad():
        for x_cat, x_cont, y in val_loader:
            x_cat, x_cont, y = x_cat.to(device), x_cont.to(device), y.to(device)
            logits = model(x_cat, x_cont)
            val_loss += criterion(logits, y).item() * y.size(0)
            probs.extend(torch.sigmoid(logits).cpu().numpy())
            targets.extend(y.cpu().numpy())
    val_loss /= len(val_loader.dataset)
    probs, targets = np.array(probs), np.array(targets)
    auc = roc_auc_score(targets, probs)
    acc = accuracy_score(targets, probs > 0.5)
    f1 = f1_score(targets, probs > 0.5)
    history['train_loss'].append(train_loss)
    history['val_loss'].append(val_loss)
    history['val_auc'].append(auc)
    print(f'Epoch {epoch + 1:02d} | train {train_loss:.4f} | val {val_loss:.4f} | AUC {auc:.4f} | acc {acc:.4f} | F1 {f1:.4f}')
    if auc > best_auc:
        best_auc = auc
        torch.save(model.state_dict(), 'tabtransformer_best.pt')
"""

ATTENTION = CELL[CELL.index("        q = q * self.scale\n") : CELL.index("        out = out.transpose(1, 2).reshape")]

CHANGES = (
    mask_dropout("model = TabTransformer(cat_dims, len(CONT_COLS)).to(device)\n"),
    Change("batches of 512", "larger_batch", edits={"BATCH_SIZE = 128": "BATCH_SIZE = 512"}),
    Change(
        "scaled_dot_product_attention",
        "sdpa",
        edits={
            ATTENTION: "        out = F.scaled_dot_product_attention(\n"
            "            q, k, v, dropout_p=self.dropout.p if self.training else 0.)\n"
        },
    ),
    Change(
        "whole batches of tensors",
        "batch_whole",
        edits={
            "    for x_cat, x_cont, y in train_loader:\n": ""
            "    table = [torch.from_numpy(a) for a in (train_set.X_cat, train_set.X_cont, train_set.y)]\n"
            "    for index in torch.randperm(len(train_set)).split(BATCH_SIZE):\n"
            "        x_cat, x_cont, y = (column[index] for column in table)\n",
            "train_loader = DataLoader(AdultDataset(train_df),": ""
            "train_set = AdultDataset(train_df)\ntrain_loader = DataLoader(train_set,",
        },
    ),
    Change(
        "fused AdamW", "fused_optimizer", edits={"weight_decay=WEIGHT_DECAY)": "weight_decay=WEIGHT_DECAY, fused=True)"}
    ),
    Change(
        "one thread", "threads", edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("}
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits = model(x_cat, x_cont)\n        loss = criterion(logits, y)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            logits = model(x_cat, x_cont)\n"
            "            loss = criterion(logits, y)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="rows_seen", loss="train_loss", seconds=8)
