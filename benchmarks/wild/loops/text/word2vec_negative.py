"""Word2vec: skip-gram with negative sampling, where every pair draws its own negatives, as in many small repositories."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A text file of sentences of twelve words, whose frequencies fall as in natural text."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(3, 6003) ** 0.9
    lines = rng.choice(6000, (scaled(1300, scale), 12), p=weights / weights.sum())
    Path("corpus.txt").write_text("\n".join(" ".join(f"w{k}" for k in line) for line in lines) + "\n")
    return {}


CELL = """
from collections import Counter
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

WINDOW, NEGATIVES, EMBED_DIM, BATCH_SIZE = 2, 5, 150, 128

with open('corpus.txt') as f:
    sentences = [line.split() for line in f]
counter = Counter(w for s in sentences for w in s)
vocab = [w for w, _ in counter.most_common()]
word2idx = {w: i for i, w in enumerate(vocab)}
freq = np.array([counter[w] for w in vocab], dtype=np.float64) ** 0.75
noise = freq / freq.sum()

class SkipGramDataset(Dataset):
    def __init__(self, sentences):
        self.pairs = []
        for s in sentences:
            ids = [word2idx[w] for w in s]
            for i, center in enumerate(ids):
                for j in range(max(0, i - WINDOW), min(len(ids), i + WINDOW + 1)):
                    if j != i:
                        self.pairs.append((center, ids[j]))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, idx):
        center, context = self.pairs[idx]
        negatives = np.random.choice(len(vocab), size=NEGATIVES, p=noise)
        return torch.tensor(center), torch.tensor(context), torch.LongTensor(negatives)

class SkipGram(nn.Module):
    def __init__(self, vocab_size, embed_dim):
        super().__init__()
        self.in_embed = nn.Embedding(vocab_size, embed_dim)
        self.out_embed = nn.Embedding(vocab_size, embed_dim)
        self.in_embed.weight.data.uniform_(-0.5 / embed_dim, 0.5 / embed_dim)
        self.out_embed.weight.data.zero_()

    def forward(self, center, context, negatives):
        v = self.in_embed(center)
        u = self.out_embed(context)
        n = self.out_embed(negatives)
        pos_score = F.logsigmoid(torch.sum(u * v, dim=1))
        neg_score = F.logsigmoid(-torch.bmm(n, v.unsqueeze(2)).squeeze(2)).sum(1)
        return -(pos_score + neg_score).mean()

dataset = SkipGramDataset(sentences)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
model = SkipGram(len(vocab), EMBED_DIM)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

n_pairs = 0
for epoch in range(1):
    running_loss = 0.0
    for step, (center, context, negatives) in enumerate(loader):
        optimizer.zero_grad()
        loss = model(center, context, negatives)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        n_pairs += len(center)
        if step % 100 == 99:
            print(f'epoch {epoch} step {step + 1}/{len(loader)} loss {running_loss / 100:.4f}')
            running_loss = 0.0
"""

CHANGES = (
    Change(
        "sparse gradients",
        "sparse_gradients",
        edits={
            "self.in_embed = nn.Embedding(vocab_size, embed_dim)": "self.in_embed = nn.Embedding(vocab_size, embed_dim, sparse=True)",
            "self.out_embed = nn.Embedding(vocab_size, embed_dim)": "self.out_embed = nn.Embedding(vocab_size, embed_dim, sparse=True)",
            "torch.optim.Adam(": "torch.optim.SparseAdam(",
        },
    ),
    Change(
        "negatives of a whole batch at once",
        "batch_whole",
        edits={
            "        center, context = self.pairs[idx]\n        negatives = np.random.choice(len(vocab), size=NEGATIVES, p=noise)\n"
            "        return torch.tensor(center), torch.tensor(context), torch.LongTensor(negatives)\n": "        return self.pairs[idx]\n",
            "loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)": """
def collate(pairs):
    center, context = torch.tensor(pairs).unbind(1)
    negatives = np.random.choice(len(vocab), size=(len(pairs), NEGATIVES), p=noise)
    return center, context, torch.from_numpy(negatives)

loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)""",
        },
    ),
    Change(
        "a table of negatives",
        "vectorize_items",
        edits={
            "        self.pairs = []\n": "        self.pairs = []\n"
            "        self.table = np.random.choice(len(vocab), size=1_000_000, p=noise)\n",
            "np.random.choice(len(vocab), size=NEGATIVES, p=noise)": "self.table[np.random.randint(0, len(self.table), NEGATIVES)]",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "batches of 512",
        "larger_batch",
        edits={"EMBED_DIM, BATCH_SIZE = 2, 5, 150, 128": "EMBED_DIM, BATCH_SIZE = 2, 5, 150, 512"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.003)": "lr=0.003, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_pairs", seconds=6)
