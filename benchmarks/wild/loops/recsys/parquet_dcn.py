"""Click prediction by a deep and cross network on Parquet files, which an IterableDataset reads row by row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SIZES = (20000, 12000, 6000, 3000, 1000, 400, 120, 60, 24, 12)


def prepare(scale: float) -> Namespace:
    """Four files with ten categories, six numbers and a label per row."""
    rng = np.random.default_rng(0)
    rows = scaled(40960, scale, 2048)
    Path("clicks").mkdir()
    for part in range(4):
        columns: dict[str, np.ndarray] = {
            f"cat_{i}": (size * rng.random(rows) ** 3).astype(np.int64) for i, size in enumerate(SIZES)
        }
        columns |= {f"num_{i}": rng.lognormal(0, 1, rows).astype(np.float32) for i in range(6)}
        chance = 1 / (1 + np.exp(2 - columns["num_0"] - (columns["cat_4"] % 3)))
        columns["clicked"] = (rng.random(rows) < chance).astype(np.int64)
        pq.write_table(pa.table(columns), f"clicks/part-{part:04d}.parquet", row_group_size=4096)
    return {"CARDINALITIES": list(SIZES)}


CELL = """
import glob
import logging
import math
import random
import time

import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s')
logger = logging.getLogger('train')

CONFIG = {
    'data': 'clicks/*.parquet',
    'batch_size': 512,
    'num_workers': 0,
    'shuffle_buffer': 4096,
    'embedding_dim': 16,
    'cross_layers': 3,
    'hidden': [256, 128],
    'lr': 1e-3,
    'log_every': 20,
}
CATEGORICAL = [f'cat_{i}' for i in range(len(CARDINALITIES))]
NUMERICAL = [f'num_{i}' for i in range(6)]


class ClickStream(IterableDataset):
    \"\"\"Streams rows of a set of parquet files; every worker reads its share of the files.\"\"\"

    def __init__(self, pattern, shuffle_buffer=0):
        self.files = sorted(glob.glob(pattern))
        self.shuffle_buffer = shuffle_buffer

    def _my_files(self):
        info = get_worker_info()
        return self.files if info is None else self.files[info.id::info.num_workers]

    def _rows(self):
        for path in self._my_files():
            for record_batch in pq.ParquetFile(path).iter_batches(batch_size=1024):
                yield from record_batch.to_pylist()

    def _shuffled(self):
        buffer = []
        for row in self._rows():
            if len(buffer) < self.shuffle_buffer:
                buffer.append(row)
                continue
            i = random.randrange(len(buffer))
            yield buffer[i]
            buffer[i] = row
        random.shuffle(buffer)
        yield from buffer

    def __iter__(self):
        for row in self._shuffled():
            yield {
                'categorical': torch.tensor([row[c] for c in CATEGORICAL]),
                'numerical': torch.tensor([math.log1p(row[c]) for c in NUMERICAL]),
                'label': torch.tensor(float(row['clicked'])),
            }


class CrossLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x0, x):
        return x0 * self.linear(x) + x


class DCN(nn.Module):
    def __init__(self, cardinalities, num_numerical, config):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, config['embedding_dim']) for n in cardinalities)
        dim = len(cardinalities) * config['embedding_dim'] + num_numerical
        self.cross = nn.ModuleList(CrossLayer(dim) for _ in range(config['cross_layers']))
        layers, width = [], dim
        for h in config['hidden']:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.deep = nn.Sequential(*layers)
        self.head = nn.Linear(dim + width, 1)

    def forward(self, categorical, numerical):
        embedded = [table(categorical[:, i]) for i, table in enumerate(self.embeddings)]
        x0 = torch.cat(embedded + [numerical], dim=1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.head(torch.cat([x, self.deep(x0)], dim=1)).squeeze(1)


def build_loader(config):
    dataset = ClickStream(config['data'], config['shuffle_buffer'])
    return DataLoader(dataset, batch_size=config['batch_size'], num_workers=config['num_workers'])


def build_optimizer(model, config):
    return torch.optim.Adam(model.parameters(), lr=config['lr'])


def train(config):
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    model = DCN(CARDINALITIES, len(NUMERICAL), config).to(device)
    optimizer = build_optimizer(model, config)
    criterion = nn.BCEWithLogitsLoss()
    loader = build_loader(config)
    rows, started = 0, time.time()
    running = torch.zeros((), device=device)
    for step, batch in enumerate(loader, 1):
        categorical = batch['categorical'].to(device)
        numerical = batch['numerical'].to(device)
        label = batch['label'].to(device)
        loss = criterion(model(categorical, numerical), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += label.size(0)
        running += loss.detach()
        if step % config['log_every'] == 0:
            logger.info('step %d loss %.4f (%.0f rows/s)', step, running.item() / config['log_every'],
                        rows / (time.time() - started))
            running.zero_()
    return model, loss.item(), rows


model, last_loss, rows_trained = train(CONFIG)
torch.save(model.state_dict(), 'dcn.pt')
"""

_ROWS = CELL[CELL.index("    def _rows(self):\n") : CELL.index("\n\nclass CrossLayer")]
_WHOLE = """    def __iter__(self):
        for path in self._my_files():
            for record_batch in pq.ParquetFile(path).iter_batches(batch_size=self.shuffle_buffer):
                columns = {name: torch.from_numpy(record_batch[name].to_numpy(zero_copy_only=False).copy())
                           for name in record_batch.schema.names}
                categorical = torch.stack([columns[c] for c in CATEGORICAL], 1)
                numerical = torch.stack([columns[c] for c in NUMERICAL], 1).log1p()
                label = columns['clicked'].float()
                for index in torch.randperm(len(label)).split(CONFIG['batch_size']):
                    yield {'categorical': categorical[index], 'numerical': numerical[index], 'label': label[index]}
"""

CHANGES = (
    Change(
        "columns to tensors, shuffled by row group",
        "batch_whole",
        edits={
            _ROWS: _WHOLE,
            "DataLoader(dataset, batch_size=config['batch_size'],": "DataLoader(dataset, batch_size=None,",
        },
    ),
    Change("two workers", "num_workers", edits={"'num_workers': 0,": "'num_workers': 2,"}),
    Change(
        "one tensor per kind in the collate function",
        "vectorize_items",
        edits={
            """            yield {
                'categorical': torch.tensor([row[c] for c in CATEGORICAL]),
                'numerical': torch.tensor([math.log1p(row[c]) for c in NUMERICAL]),
                'label': torch.tensor(float(row['clicked'])),
            }
""": """            yield row

    @staticmethod
    def collate(rows):
        return {
            'categorical': torch.tensor([[row[c] for c in CATEGORICAL] for row in rows]),
            'numerical': torch.tensor([[row[c] for c in NUMERICAL] for row in rows]).log1p(),
            'label': torch.tensor([float(row['clicked']) for row in rows]),
        }
""",
            "num_workers=config['num_workers'])": "num_workers=config['num_workers'], collate_fn=ClickStream.collate)",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=config['lr'])": "lr=config['lr'], fused=True)"}),
    Change("batches of 2048", "larger_batch", edits={"'batch_size': 512,": "'batch_size': 2048,"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        loss = criterion(model(categorical, numerical), label)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            logits = model(categorical, numerical)\n"
            "        loss = criterion(logits.float(), label)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="rows_trained", loss="last_loss", seconds=10)
