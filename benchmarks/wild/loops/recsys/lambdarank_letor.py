"""LambdaRank on document features in LETOR text files, one query after another, as in student repositories."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Queries of 8 to 110 documents with 46 features and grades 0 to 2, in train.txt and vali.txt."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 1, 46) * (rng.random(46) < 0.4)
    Path("Fold1").mkdir()
    query = 10000
    for name, count in (("train", scaled(896, scale, 64)), ("vali", scaled(192, scale, 16))):
        lines = []
        for _ in range(count):
            query += int(rng.integers(1, 9))
            documents = int(np.clip(rng.lognormal(3.3, 0.6), 8, 110))
            x = rng.random((documents, 46)) ** 2
            x[:, rng.random(46) < 0.1] = 0
            score = x @ weights + 0.4 * np.maximum(x[:, 0] * x[:, 1], x[:, 2]) + rng.normal(0, 0.6, documents)
            order = np.argsort(np.argsort(-score)) / documents
            grades = np.where(order < 0.06, 2, np.where(order < 0.2, 1, 0))
            for number, (row, grade) in enumerate(zip(x, grades, strict=True)):
                pairs = " ".join(f"{index + 1}:{value:.6f}" for index, value in enumerate(row))
                lines.append(f"{grade} qid:{query} {pairs} #docid = GX{query:05d}-{number:03d}")
        Path(f"Fold1/{name}.txt").write_text("\n".join(lines) + "\n")
    return {}


CELL = """
import random
import time
from collections import defaultdict
import numpy as np
import torch
import torch.nn as nn

EPOCHS = 3
BATCH_SIZE = 16
LEARNING_RATE = 1e-3
SIGMA = 1.0
NDCG_K = 10
N_FEATURES = 46
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def load_letor(path):
    queries = defaultdict(lambda: ([], []))
    with open(path) as f:
        for line in f:
            line = line.split('#')[0].strip()
            if not line:
                continue
            tokens = line.split()
            rel = int(tokens[0])
            qid = tokens[1].split(':')[1]
            features = [float(token.split(':')[1]) for token in tokens[2:]]
            queries[qid][0].append(features)
            queries[qid][1].append(rel)
    return {qid: (np.array(x), np.array(y)) for qid, (x, y) in queries.items()}


def normalize_per_query(data):
    for qid, (x, y) in data.items():
        low, high = x.min(axis=0), x.max(axis=0)
        data[qid] = ((x - low) / np.where(high > low, high - low, 1.0), y)
    return data


def dcg_at_k(rels, k):
    dcg = 0.0
    for i, rel in enumerate(rels[:k]):
        dcg += (2 ** rel - 1) / np.log2(i + 2)
    return dcg


def ndcg_at_k(rels, k):
    ideal = dcg_at_k(sorted(rels, reverse=True), k)
    if ideal == 0:
        return None
    return dcg_at_k(rels, k) / ideal


def average_precision(rels):
    hits, total = 0, 0.0
    for i, rel in enumerate(rels):
        if rel > 0:
            hits += 1
            total += hits / (i + 1)
    return total / hits if hits else None


class LambdaRankNet(nn.Module):
    def __init__(self, n_features, hidden=(128, 64, 32), dropout=0.1):
        super().__init__()
        layers, size = [], n_features
        for h in hidden:
            layers += [nn.Linear(size, h), nn.LayerNorm(h), nn.ReLU(), nn.Dropout(dropout)]
            size = h
        layers.append(nn.Linear(size, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def compute_lambdas(scores, rels, sigma):
    '''Gradient of the scores of one query, weighted by |delta NDCG|.'''
    n = scores.size(0)
    _, order = torch.sort(scores, descending=True)
    ranks = torch.empty(n, dtype=torch.long, device=scores.device)
    ranks[order] = torch.arange(n, device=scores.device)

    ideal = dcg_at_k(sorted(rels.tolist(), reverse=True), n)
    if ideal == 0:
        return torch.zeros_like(scores), 0.0

    gains = 2.0 ** rels - 1
    discounts = 1.0 / torch.log2(ranks.float() + 2)
    delta_gain = gains.unsqueeze(1) - gains.unsqueeze(0)
    delta_discount = discounts.unsqueeze(1) - discounts.unsqueeze(0)
    delta_ndcg = torch.abs(delta_gain * delta_discount) / ideal

    diff = scores.unsqueeze(1) - scores.unsqueeze(0)
    positive = (rels.unsqueeze(1) > rels.unsqueeze(0)).float()
    rho = 1.0 / (1.0 + torch.exp(sigma * diff))
    lam = -sigma * rho * delta_ndcg * positive
    lambdas = lam.sum(dim=1) - lam.sum(dim=0)
    loss = (torch.nn.functional.softplus(-sigma * diff) * delta_ndcg * positive).sum()
    return lambdas, loss.item()


def evaluate(model, data, k):
    model.eval()
    ndcgs, aps = [], []
    with torch.no_grad():
        for qid, (x, y) in data.items():
            scores = model(torch.tensor(x, dtype=torch.float32, device=device)).cpu().numpy()
            ranked = [int(y[i]) for i in np.argsort(-scores)]
            ndcg, ap = ndcg_at_k(ranked, k), average_precision(ranked)
            if ndcg is not None:
                ndcgs.append(ndcg)
            if ap is not None:
                aps.append(ap)
    model.train()
    return np.mean(ndcgs), np.mean(aps)


train_data = normalize_per_query(load_letor('Fold1/train.txt'))
vali_data = normalize_per_query(load_letor('Fold1/vali.txt'))
print('queries:', len(train_data), 'documents:', sum(len(y) for _, y in train_data.values()))

torch.manual_seed(1)
random.seed(1)
model = LambdaRankNet(N_FEATURES).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.75)

queries_seen, best_ndcg = 0, 0.0
qids = list(train_data.keys())
for epoch in range(EPOCHS):
    start = time.time()
    random.shuffle(qids)
    epoch_loss = 0.0
    for b in range(0, len(qids), BATCH_SIZE):
        batch = qids[b:b + BATCH_SIZE]
        optimizer.zero_grad()
        for qid in batch:
            x, y = train_data[qid]
            x = torch.tensor(x, dtype=torch.float32, device=device)
            rels = torch.tensor(y, dtype=torch.float32, device=device)
            scores = model(x)
            with torch.no_grad():
                lambdas, loss = compute_lambdas(scores, rels, SIGMA)
            scores.backward(lambdas / len(batch))
            epoch_loss += loss
            queries_seen += 1
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    scheduler.step()

    train_ndcg, train_map = evaluate(model, train_data, NDCG_K)
    vali_ndcg, vali_map = evaluate(model, vali_data, NDCG_K)
    print('epoch %d  loss %.4f  train NDCG@%d %.4f MAP %.4f  vali NDCG@%d %.4f MAP %.4f  (%.1fs)' % (
        epoch + 1, epoch_loss / len(qids), NDCG_K, train_ndcg, train_map, NDCG_K, vali_ndcg, vali_map,
        time.time() - start))
    if vali_ndcg > best_ndcg:
        best_ndcg = vali_ndcg
        torch.save(model.state_dict(), 'lambdarank.pt')
"""

PER_QUERY = CELL[CELL.index("        for qid in batch:\n") : CELL.index("        torch.nn.utils.clip_grad_norm_")]
ONE_FORWARD = """\
        xs = torch.tensor(np.concatenate([train_data[qid][0] for qid in batch]), dtype=torch.float32, device=device)
        sizes = [len(train_data[qid][1]) for qid in batch]
        scores, parts = model(xs), []
        for qid, part in zip(batch, scores.detach().split(sizes)):
            rels = torch.tensor(train_data[qid][1], dtype=torch.float32, device=device)
            with torch.no_grad():
                lambdas, loss = compute_lambdas(part, rels, SIGMA)
            parts.append(lambdas)
            epoch_loss += loss
            queries_seen += 1
        scores.backward(torch.cat(parts) / len(batch))
"""
PADDED = """\
        data = [train_data[qid] for qid in batch]
        sizes = torch.tensor([len(y) for _, y in data], device=device)
        mask = torch.arange(sizes.max(), device=device) < sizes[:, None]
        xs = torch.tensor(np.concatenate([x for x, _ in data]), dtype=torch.float32, device=device)
        rels = torch.zeros(mask.shape, device=device)
        rels[mask] = torch.tensor(np.concatenate([y for _, y in data]), dtype=torch.float32, device=device)
        scores = model(xs)
        with torch.no_grad():
            padded = torch.full(mask.shape, -torch.inf, device=device)
            padded[mask] = scores
            ranks = padded.argsort(dim=1, descending=True).argsort(dim=1)
            gains = (2.0 ** rels - 1) * mask
            positions = 1.0 / torch.log2(torch.arange(mask.shape[1], device=device) + 2.0)
            ideal = (gains.sort(dim=1, descending=True)[0] * positions).sum(1)
            ideal = torch.where(ideal > 0, ideal, torch.inf)
            discounts = positions[ranks]
            diff = (padded[:, :, None] - padded[:, None]).masked_fill(~(mask[:, :, None] & mask[:, None]), 0)
            positive = (rels[:, :, None] > rels[:, None]) & mask[:, :, None] & mask[:, None]
            weight = (gains[:, :, None] - gains[:, None]) * (discounts[:, :, None] - discounts[:, None])
            weight = weight.abs() * positive / ideal[:, None, None]
            lam = -SIGMA * torch.sigmoid(-SIGMA * diff) * weight
            lambdas = (lam.sum(2) - lam.sum(1))[mask]
            epoch_loss += (torch.nn.functional.softplus(-SIGMA * diff) * weight).sum().item()
        scores.backward(lambdas / len(batch))
        queries_seen += len(batch)
"""
CHANGES = (
    Change("the batch's documents in one pass", "other", edits={PER_QUERY: ONE_FORWARD}),
    Change("the batch's lambdas on padded queries", "remove_python", edits={PER_QUERY: PADDED}),
    Change(
        "ideal DCG and pairs of each query once",
        "cache_items",
        edits={
            "def compute_lambdas(scores, rels, sigma):\n": "def compute_lambdas(scores, known, sigma):\n",
            "    ideal = dcg_at_k(sorted(rels.tolist(), reverse=True), n)\n": ""
            "    ideal, delta_gain, positive = known\n",
            "    gains = 2.0 ** rels - 1\n": "",
            "    delta_gain = gains.unsqueeze(1) - gains.unsqueeze(0)\n": "",
            "    positive = (rels.unsqueeze(1) > rels.unsqueeze(0)).float()\n": "",
            "            x, y = train_data[qid]\n"
            "            x = torch.tensor(x, dtype=torch.float32, device=device)\n"
            "            rels = torch.tensor(y, dtype=torch.float32, device=device)\n": ""
            "            x, known = train_tensors[qid]\n",
            "compute_lambdas(scores, rels, SIGMA)\n": "compute_lambdas(scores, known, SIGMA)\n",
            "qids = list(train_data.keys())\n": """qids = list(train_data.keys())
train_tensors = {}
for qid, (x, y) in train_data.items():
    rels = torch.tensor(y, dtype=torch.float32, device=device)
    gains = 2.0 ** rels - 1
    known = (dcg_at_k(sorted(y.tolist(), reverse=True), len(y)), gains.unsqueeze(1) - gains.unsqueeze(0),
             (rels.unsqueeze(1) > rels.unsqueeze(0)).float())
    train_tensors[qid] = torch.tensor(x, dtype=torch.float32, device=device), known
""",
        },
    ),
    Change(
        "training queries ranked only after the last epoch",
        "eval_less_often",
        edits={
            "    train_ndcg, train_map = evaluate(model, train_data, NDCG_K)\n": ""
            "    train_ndcg, train_map = float('nan'), float('nan')\n"
            "    if epoch == EPOCHS - 1:\n"
            "        train_ndcg, train_map = evaluate(model, train_data, NDCG_K)\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            scores = model(x)\n            with torch.no_grad():\n": ""
            "            with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "                scores = model(x)\n"
            "            scores = scores.float()\n"
            "            with torch.no_grad():\n"
        },
    ),
    Change("batches of 64 queries", "larger_batch", edits={"BATCH_SIZE = 16\n": "BATCH_SIZE = 64\n"}),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=1e-5)": "weight_decay=1e-5, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="queries_seen", loss="float(epoch_loss / len(qids))", seconds=5)
