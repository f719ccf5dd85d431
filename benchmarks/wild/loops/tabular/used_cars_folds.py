"""Prices of used cars: embeddings of categories, five folds, a one-cycle schedule, flat cells as in Kaggle playground notebooks."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Listings of cars with text in the columns engine, milage and accident, as train.csv and test.csv."""
    rng = np.random.default_rng(0)
    brands = [f"Brand {letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    models = [f"{brand[-1]}{number} {trim}" for brand in brands for number in range(1, 9) for trim in ("Base", "Sport")]
    worth = dict(zip(brands, rng.normal(0, 0.4, len(brands)), strict=True))
    colours = ["Black", "White", "Gray", "Silver", "Blue", "Red", "Green", "Beige", "Gold", "Orange", "Ebony", "Jet"]
    fuels, weights = ["Gasoline", "Hybrid", "Diesel", "E85 Flex Fuel", None], [0.8, 0.07, 0.05, 0.05, 0.03]
    gearboxes = [f"{n}-Speed {kind}" for n in (5, 6, 7, 8, 9, 10) for kind in ("A/T", "M/T", "Automatic")]

    def frame(count: int, first: int) -> pd.DataFrame:
        rows = []
        for index in range(count):
            model = str(rng.choice(models))
            brand = f"Brand {model[0]}"
            year, power = int(2024 - rng.gamma(2.5, 3.2)), int(np.clip(rng.normal(310, 90), 90, 760))
            miles = int(rng.gamma(2, 4500) * (2025 - year) ** 0.7)
            litres = round(float(np.clip(power / 85 + rng.normal(0, 0.5), 1, 8)), 1)
            engine = f"{power}.0HP {litres}L {rng.choice([4, 6, 8])} Cylinder Engine Gasoline Fuel"
            accident = rng.choice(["None reported", "At least 1 accident or damage reported"], p=[0.75, 0.25])
            price = 10.2 + worth[brand] + power / 500 - 0.06 * (2024 - year) - miles / 300000 + rng.normal(0, 0.3)
            rows.append(
                {
                    "id": first + index,
                    "brand": brand,
                    "model": model,
                    "model_year": year,
                    "milage": miles,
                    "fuel_type": rng.choice(np.array(fuels, dtype=object), p=weights),
                    "engine": engine if rng.random() < 0.9 else f"{litres} Liter Turbo",
                    "transmission": rng.choice(gearboxes),
                    "ext_col": rng.choice(colours),
                    "int_col": rng.choice(colours),
                    "accident": accident,
                    "clean_title": "Yes" if rng.random() < 0.85 else None,
                    "price": int(np.exp(price)),
                }
            )
        return pd.DataFrame(rows)

    Path("input").mkdir()
    count = scaled(5000, scale, 100)
    frame(count, 0).to_csv("input/train.csv", index=False)
    frame(scaled(1500, scale, 100), count).drop(columns="price").to_csv("input/test.csv", index=False)
    return {}


CELL = """
# %% [1]
import gc
import os
import random
import re
import time

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import KFold
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch.utils.data import DataLoader, Dataset

# %% [2]
class CFG:
    seed = 42
    n_folds = 5
    epochs = 3
    batch_size = 128
    max_lr = 5e-3
    weight_decay = 1e-4
    hidden = [256, 128]
    emb_drop = 0.1
    drop = 0.2

def seed_everything(seed):
    random.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

seed_everything(CFG.seed)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

# %% [3]
train = pd.read_csv('input/train.csv')
test = pd.read_csv('input/test.csv')
print(train.shape, test.shape)
train.isna().sum()

# %% [4]
def extract(pattern, text):
    match = re.search(pattern, text)
    return float(match.group(1)) if match else np.nan

def feature_engineering(df):
    df = df.copy()
    df['horsepower'] = df['engine'].apply(lambda x: extract(r'([\\d.]+)HP', x))
    df['litres'] = df['engine'].apply(lambda x: extract(r'([\\d.]+)\\s?L', x))
    df['cylinders'] = df['engine'].apply(lambda x: extract(r'(\\d+) Cylinder', x))
    df['age'] = 2024 - df['model_year']
    df['milage_per_year'] = df['milage'] / (df['age'] + 1)
    df['has_accident'] = df['accident'].apply(lambda x: 0 if x == 'None reported' else 1)
    df['is_clean'] = df['clean_title'].apply(lambda x: 1 if x == 'Yes' else 0)
    return df

train = feature_engineering(train)
test = feature_engineering(test)

cat_cols = ['brand', 'model', 'fuel_type', 'engine', 'transmission', 'ext_col', 'int_col', 'model_year']
num_cols = ['milage', 'horsepower', 'litres', 'cylinders', 'age', 'milage_per_year', 'has_accident', 'is_clean']

# %% [5]
# rare values in one group, then label encoding on train and test together
for col in cat_cols:
    values = pd.concat([train[col], test[col]]).astype(str).fillna('missing')
    counts = values.value_counts()
    values = values.where(values.map(counts) >= 5, 'rare')
    encoded = LabelEncoder().fit_transform(values)
    train[col] = encoded[:len(train)]
    test[col] = encoded[len(train):]

for col in num_cols:
    median = train[col].median()
    train[col] = train[col].fillna(median)
    test[col] = test[col].fillna(median)

scaler = StandardScaler()
train[num_cols] = scaler.fit_transform(train[num_cols].astype(float))
test[num_cols] = scaler.transform(test[num_cols].astype(float))

train['target'] = np.log1p(train['price'])
target_mean = train['target'].mean()
cat_dims = [int(max(train[col].max(), test[col].max()) + 1) for col in cat_cols]
emb_dims = [(x, min(50, (x + 1) // 2)) for x in cat_dims]
emb_dims

# %% [6]
class CarDataset(Dataset):
    def __init__(self, df, is_test=False):
        self.cats = df[cat_cols].values.astype(np.int64)
        self.nums = df[num_cols].values.astype(np.float32)
        self.is_test = is_test
        if not is_test:
            self.target = df['target'].values.astype(np.float32)

    def __len__(self):
        return len(self.cats)

    def __getitem__(self, idx):
        out = {
            'cats': torch.tensor(self.cats[idx], dtype=torch.long),
            'nums': torch.tensor(self.nums[idx], dtype=torch.float),
        }
        if not self.is_test:
            out['target'] = torch.tensor(self.target[idx], dtype=torch.float)
        return out

# %% [7]
class CarModel(nn.Module):
    def __init__(self, emb_dims, n_nums, hidden):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(x, y) for x, y in emb_dims])
        self.emb_drop = nn.Dropout(CFG.emb_drop)
        self.bn_nums = nn.BatchNorm1d(n_nums)
        sizes = [sum(y for _, y in emb_dims) + n_nums] + hidden
        layers = []
        for i, o in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(i, o), nn.BatchNorm1d(o), nn.SiLU(), nn.Dropout(CFG.drop)]
        self.mlp = nn.Sequential(*layers)
        self.out = nn.Linear(hidden[-1], 1)
        nn.init.constant_(self.out.bias, target_mean)

    def forward(self, cats, nums):
        x = [emb(cats[:, i]) for i, emb in enumerate(self.embeddings)]
        x = self.emb_drop(torch.cat(x, 1))
        x = torch.cat([x, self.bn_nums(nums)], 1)
        return self.out(self.mlp(x)).squeeze(1)

# %% [8]
def train_fn(model, loader, optimizer, scheduler, criterion):
    model.train()
    losses, n = [], 0
    for batch in loader:
        cats, nums, target = batch['cats'].to(device), batch['nums'].to(device), batch['target'].to(device)
        optimizer.zero_grad()
        preds = model(cats, nums)
        loss = criterion(preds, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        n += len(target)
    return np.mean(losses), n

def predict_fn(model, loader):
    model.eval()
    preds = []
    with torch.no_grad():
        for batch in loader:
            preds.append(model(batch['cats'].to(device), batch['nums'].to(device)).cpu().numpy())
    return np.concatenate(preds)

# %% [9]
oof = np.zeros(len(train))
test_preds = np.zeros(len(test))
rows_seen = 0
kf = KFold(n_splits=CFG.n_folds, shuffle=True, random_state=CFG.seed)

for fold, (trn_idx, val_idx) in enumerate(kf.split(train)):
    start = time.time()
    print(f'===== Fold {fold} =====')
    trn_loader = DataLoader(CarDataset(train.iloc[trn_idx]), batch_size=CFG.batch_size, shuffle=True)
    val_loader = DataLoader(CarDataset(train.iloc[val_idx]), batch_size=CFG.batch_size, shuffle=False)
    test_loader = DataLoader(CarDataset(test, is_test=True), batch_size=CFG.batch_size, shuffle=False)

    model = CarModel(emb_dims, len(num_cols), CFG.hidden).to(device)
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=CFG.max_lr, weight_decay=CFG.weight_decay)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=CFG.max_lr, epochs=CFG.epochs, steps_per_epoch=len(trn_loader), pct_start=0.1)

    best_rmse = np.inf
    for epoch in range(CFG.epochs):
        train_loss, n = train_fn(model, trn_loader, optimizer, scheduler, criterion)
        rows_seen += n
        val_preds = predict_fn(model, val_loader)
        rmse = np.sqrt(mean_squared_error(train['price'].values[val_idx], np.expm1(val_preds)))
        print(f'epoch {epoch} | train loss {train_loss:.4f} | val rmse {rmse:.1f}')
        if rmse < best_rmse:
            best_rmse = rmse
            oof[val_idx] = np.expm1(val_preds)
            torch.save(model.state_dict(), f'model_fold{fold}.pth')

    model.load_state_dict(torch.load(f'model_fold{fold}.pth'))
    test_preds += np.expm1(predict_fn(model, test_loader)) / CFG.n_folds
    print(f'fold {fold} best rmse {best_rmse:.1f} in {time.time() - start:.1f} s')
    gc.collect()

# %% [10]
print('CV', np.sqrt(mean_squared_error(train['price'], oof)))
submission = pd.DataFrame({'id': test['id'], 'price': test_preds})
submission.to_csv('submission.csv', index=False)
submission.head()
"""

DATASET = "class CarDataset(Dataset):\n"
WHOLE = '''class TensorLoader:
    """Whole batches by one index per tensor."""

    def __init__(self, dataset, batch_size, shuffle):
        self.tensors = {'cats': torch.from_numpy(dataset.cats), 'nums': torch.from_numpy(dataset.nums)}
        if not dataset.is_test:
            self.tensors['target'] = torch.from_numpy(dataset.target)
        self.count, self.batch_size, self.shuffle = len(dataset), batch_size, shuffle

    def __len__(self):
        return -(-self.count // self.batch_size)

    def __iter__(self):
        order = torch.randperm(self.count) if self.shuffle else torch.arange(self.count)
        for index in order.split(self.batch_size):
            yield {name: tensor[index] for name, tensor in self.tensors.items()}

'''
TRN, VAL, TEST = (
    CELL[CELL.index(f"{name}_loader = DataLoader(") :].split("\n", 1)[0].split(", batch_size")[0]
    for name in ("trn", "val", "test")
)
TRN_LINE = f"{TRN}, batch_size=CFG.batch_size, shuffle=True)"
FORWARD = "        preds = model(cats, nums)\n        loss = criterion(preds, target)\n"

CHANGES = (
    Change(
        "whole batches of tensors",
        "batch_whole",
        edits={
            DATASET: WHOLE + DATASET,
            **{line: line.replace("DataLoader", "TensorLoader") for line in (TRN, VAL, TEST)},
        },
    ),
    Change("no garbage collection between the folds", "gc", edits={"    gc.collect()\n": ""}),
    Change("two workers", "num_workers", edits={TRN_LINE: TRN_LINE.replace("True)", "True, num_workers=2)")}),
    Change("batches of 512", "larger_batch", edits={"batch_size = 128": "batch_size = 512"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=CFG.max_lr, weight": "fused=True, lr=CFG.max_lr, weight"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            preds = model(cats, nums)\n"
            "            loss = criterion(preds, target)\n"
        },
    ),
    Change(
        "one thread",
        "threads",
        edits={"seed_everything(CFG.seed)\n": "seed_everything(CFG.seed)\ntorch.set_num_threads(1)\n"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="rows_seen", loss="train_loss", seconds=6)
