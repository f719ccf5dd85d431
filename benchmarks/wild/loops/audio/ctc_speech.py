"""A small speech recognizer with CTC, utterances of any length padded batch by batch, in the manner of Deep Speech tutorials."""

import random

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Log-mel features and transcripts; lengths vary as in read speech."""
    count = scaled(160, scale, 32)
    utterances = []
    for _ in range(count + 32):
        frames = int(np.clip(np.random.lognormal(5.3, 0.5), 80, 600))
        text = "".join(random.choices("abcdefghijklmnopqrstuvwxyz '", k=frames // 10))
        utterances.append((np.random.normal(size=(frames, 80)).astype(np.float32), text))
    return {"train_data": utterances[:count], "dev_data": utterances[count:]}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

CHARS = "_'abcdefghijklmnopqrstuvwxyz "
char_map = {c: i for i, c in enumerate(CHARS)}

class SpeechDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        feats, text = self.data[index]
        feats = (feats - feats.mean(axis=0)) / (feats.std(axis=0) + 1e-5)
        return torch.from_numpy(feats), torch.tensor([char_map[c] for c in text])

def collate_fn(batch):
    feats, labels = zip(*batch)
    feat_lengths = torch.tensor([f.shape[0] // 2 for f in feats])
    label_lengths = torch.tensor([len(label) for label in labels])
    feats = nn.utils.rnn.pad_sequence(feats, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(labels, batch_first=True)
    return feats, labels, feat_lengths, label_lengths

class SpeechModel(nn.Module):
    def __init__(self, n_feats=80, hidden=128, n_class=len(CHARS)):
        super().__init__()
        self.conv = nn.Conv1d(n_feats, hidden, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(hidden)
        self.gru = nn.GRU(hidden, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.classifier = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, n_class))

    def forward(self, x):
        x = F.gelu(self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2)))
        x, _ = self.gru(x)
        return self.classifier(x)

train_loader = DataLoader(SpeechDataset(train_data), batch_size=8, shuffle=True, collate_fn=collate_fn)
dev_loader = DataLoader(SpeechDataset(dev_data), batch_size=8, shuffle=False, collate_fn=collate_fn)
model = SpeechModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
criterion = nn.CTCLoss(blank=0, zero_infinity=True)

n_utterances = 0
for epoch in range(2):
    model.train()
    for batch_idx, (feats, labels, feat_lengths, label_lengths) in enumerate(train_loader):
        optimizer.zero_grad()
        output = F.log_softmax(model(feats), dim=2).transpose(0, 1)  # (time, batch, n_class)
        loss = criterion(output, labels, feat_lengths, label_lengths)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        n_utterances += len(feats)
        if batch_idx % 10 == 0:
            print(f'Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}] Loss: {loss.item():.6f}')
    model.eval()
    dev_loss = []
    with torch.no_grad():
        for feats, labels, feat_lengths, label_lengths in dev_loader:
            output = F.log_softmax(model(feats), dim=2).transpose(0, 1)
            dev_loss.append(criterion(output, labels, feat_lengths, label_lengths).item())
    print(f'epoch {epoch} dev loss {np.mean(dev_loss):.4f}')
"""

BUCKETS = """
class BucketSampler:
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = torch.tensor(lengths), batch_size

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self):
        order = torch.argsort(self.lengths + torch.rand(len(self.lengths)) * 10)
        batches = order.split(self.batch_size)
        for k in torch.randperm(len(batches)).tolist():
            yield batches[k].tolist()

train_loader = DataLoader(SpeechDataset(train_data), collate_fn=collate_fn,
                          batch_sampler=BucketSampler([len(f) for f, _ in train_data], 8))
"""

CHANGES = (
    Change(
        "batches of similar length",
        "padding",
        edits={
            "\ntrain_loader = DataLoader(SpeechDataset(train_data), batch_size=8, shuffle=True, collate_fn=collate_fn)\n": BUCKETS
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True,": "shuffle=True, num_workers=2,"}),
    Change("batches of 32", "larger_batch", edits={"batch_size=8, shuffle=True": "batch_size=32, shuffle=True"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output = F.log_softmax(model(feats), dim=2).transpose(0, 1)  # (": ""
            "        with torch.autocast('cpu', dtype=torch.bfloat16):\n            scores = model(feats)\n"
            "        output = F.log_softmax(scores.float(), dim=2).transpose(0, 1)  # ("
        },
    ),
    Change("one thread", "threads", edits={"n_utterances = 0\n": "n_utterances = 0\ntorch.set_num_threads(1)\n"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=5e-4)": "lr=5e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_utterances", seconds=6)
