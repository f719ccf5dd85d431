"""A transformer tagger with a collate function that pads Python lists; lengths vary much, as in NER repositories."""

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Tagger(nn.Module):
    """A transformer encoder with a tag per token."""

    def __init__(self, vocabulary: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 96, padding_idx=0)
        layer = nn.TransformerEncoderLayer(96, 4, 256, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(96, tags)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Scores per token."""
        scores: Tensor = self.out(self.encoder(self.embedding(ids), src_key_padding_mask=~mask))
        return scores


def prepare(scale: float) -> Namespace:
    """Sentences as lists of ids; most are short and a few are long, as in CoNLL."""
    count = scaled(1600, scale, 16)
    lengths = (torch.empty(count).log_normal_(2.7, 0.8)).clamp(3, 200).int().tolist()
    sentences = [torch.randint(1, 3000, (n,)).tolist() for n in lengths]
    tags = [torch.randint(1, 9, (n,)).tolist() for n in lengths]
    return {"train_sentences": sentences, "train_tags": tags, "Tagger": Tagger}


CELL = """
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

class NERDataset(Dataset):
    def __init__(self, sentences, tags):
        self.sentences = sentences
        self.tags = tags

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, idx):
        return self.sentences[idx], self.tags[idx]

def collate_fn(data):
    max_len = max(len(s) for s, _ in data)
    padded, labels, mask = [], [], []
    for sentence, tag in data:
        pad_len = max_len - len(sentence)
        padded.append(sentence + [0] * pad_len)
        labels.append(tag + [-100] * pad_len)
        mask.append([True] * len(sentence) + [False] * pad_len)
    return torch.tensor(padded), torch.tensor(labels), torch.tensor(mask)

train_data = NERDataset(train_sentences, train_tags)
train_loader = DataLoader(train_data, batch_size=16, shuffle=True, collate_fn=collate_fn)
model = Tagger(3000, 9)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loss_fn = nn.CrossEntropyLoss(ignore_index=-100)

seen = 0
for epoch in range(1):
    losses = []
    for x, y, mask in train_loader:
        logits = model(x, mask)
        loss = loss_fn(logits.view(-1, logits.shape[-1]), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seen += len(x)
    print(epoch, sum(losses) / len(losses))
"""

BUCKETS = """
class LengthSampler:
    def __init__(self, lengths, batch_size):
        noisy = torch.tensor(lengths) + torch.rand(len(lengths)) * 3
        self.batches = list(torch.split(torch.argsort(noisy), batch_size))

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for k in torch.randperm(len(self.batches)).tolist():
            yield self.batches[k].tolist()

sampler = LengthSampler([len(s) for s in train_sentences], 16)
train_loader = DataLoader(train_data, batch_sampler=sampler, collate_fn=collate_fn)
"""

CHANGES = (
    Change(
        "batches of similar length",
        "padding",
        edits={
            "\ntrain_loader = DataLoader(train_data, batch_size=16, shuffle=True, collate_fn=collate_fn)\n": BUCKETS,
        },
    ),
    Change(
        "collate into a tensor",
        "batch_whole",
        edits={
            """    padded, labels, mask = [], [], []
    for sentence, tag in data:
        pad_len = max_len - len(sentence)
        padded.append(sentence + [0] * pad_len)
        labels.append(tag + [-100] * pad_len)
        mask.append([True] * len(sentence) + [False] * pad_len)
    return torch.tensor(padded), torch.tensor(labels), torch.tensor(mask)
""": """    padded = torch.zeros(len(data), max_len, dtype=torch.long)
    labels = torch.full((len(data), max_len), -100)
    for k, (sentence, tag) in enumerate(data):
        padded[k, :len(sentence)] = torch.tensor(sentence)
        labels[k, :len(sentence)] = torch.tensor(tag)
    return padded, labels, padded > 0
"""
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True,": "shuffle=True, num_workers=2,"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=3e-4)": "lr=3e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=5)
