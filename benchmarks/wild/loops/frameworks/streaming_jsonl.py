"""An IterableDataset that streams compressed JSON lines, tokenizes them and shuffles in a buffer, as in corpus pre-training."""

import gzip
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class BagModel(nn.Module):
    """Predicts each token from the mean of the previous ones; small, so that it trains quickly."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, width, 4)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next token."""
        x = nn.functional.pad(self.embedding(ids).transpose(1, 2), (3, 0))
        scores: Tensor = self.out(torch.relu(self.mix(x)).transpose(1, 2))
        return scores


def prepare(scale: float) -> Namespace:
    """Shards of documents with metadata, as in C4."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("etaoinshrdlu"), n)) for n in rng.integers(2, 9, 800)])
    Path("c4").mkdir()
    per_shard = scaled(3200, scale, 16)
    for shard in range(2):
        with gzip.open(f"c4/train.{shard:05d}.json.gz", "wt", compresslevel=3) as stream:
            for _ in range(per_shard):
                text = " ".join(rng.choice(words, rng.integers(150, 500)))
                stream.write(
                    json.dumps({"text": text.capitalize() + ".", "url": "http://a.b", "timestamp": "2019"}) + "\n"
                )
    return {"BagModel": BagModel, "words": words.tolist()}


CELL = r"""
import glob, gzip, json, random, re
import torch
from torch import nn
from torch.utils.data import IterableDataset, DataLoader, get_worker_info

vocab = {w: i + 1 for i, w in enumerate(words)}
pattern = re.compile(r"[A-Za-z]+|[^\sA-Za-z]")

def tokenize(text):
    return [vocab.get(tok.lower(), 0) for tok in pattern.findall(text)]

class StreamingDataset(IterableDataset):
    def __init__(self, pattern, seq_len=64, buffer_size=500):
        self.files = sorted(glob.glob(pattern))
        self.seq_len, self.buffer_size = seq_len, buffer_size

    def read(self):
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id::info.num_workers]
        for file in files:
            with gzip.open(file, 'rt') as f:
                for line in f:
                    yield json.loads(line)['text']

    def shuffled(self):
        buffer = []
        for text in self.read():
            if len(buffer) < self.buffer_size:
                buffer.append(text)
                continue
            k = random.randrange(len(buffer))
            yield buffer[k]
            buffer[k] = text
        random.shuffle(buffer)
        yield from buffer

    def __iter__(self):
        for text in self.shuffled():
            ids = tokenize(text)[:self.seq_len + 1]
            yield torch.tensor(ids[:-1]), torch.tensor(ids[1:])

loader = DataLoader(StreamingDataset('c4/train.*.json.gz'), batch_size=16, num_workers=0)
model = BagModel(len(words) + 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

docs = 0
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    docs += len(x)
    if step % 20 == 0:
        print(f'step {step} loss {loss.item():.3f}')
"""

CHANGES = (
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "tokenize only the beginning",
        "vectorize_items",
        edits={
            "    return [vocab.get(tok.lower(), 0) for tok in pattern.findall(text)]": "    from itertools import islice\n"
            "    return [vocab.get(m.group().lower(), 0) for m in islice(pattern.finditer(text), 65)]"
        },
    ),
    Change("smaller shuffle buffer", "other", edits={"buffer_size=500": "buffer_size=50"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("batches of 64", "larger_batch", edits={"batch_size=16": "batch_size=64"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    loss = nn.functional.cross_entropy(model(x)": "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "        scores = model(x).float()\n"
            "    loss = nn.functional.cross_entropy(scores"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="docs", seconds=5)
