"""News titles classified with an EmbeddingBag over words and word pairs, in the manner of the torchtext tutorial."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Labels and texts of made-up words; a few words depend on the label."""
    rng = np.random.default_rng(0)
    ranks = np.minimum(rng.zipf(1.3, size=(scaled(6400, scale, 64), 24)), 30_000)
    labels = rng.integers(1, 5, len(ranks))
    ranks[:, :3] = 30_000 + 10 * labels[:, None] + rng.integers(0, 10, (len(ranks), 3))
    rows = [(int(label), " ".join(f"Word{rank}" for rank in row)) for label, row in zip(labels, ranks, strict=True)]
    return {"train_rows": rows}


CELL = """
import re, time
import torch
from torch import nn
from torch.utils.data import DataLoader

HASH_SIZE, EMSIZE = 150_000, 64
vocab = {}

def tokenizer(text):
    words = re.sub(r'[^a-z0-9 ]', ' ', text.lower()).split()
    return words + [a + ' ' + b for a, b in zip(words, words[1:])]

def text_pipeline(text):
    return [vocab.setdefault(token, len(vocab) % HASH_SIZE) for token in tokenizer(text)]

def label_pipeline(label):
    return int(label) - 1

def collate_batch(batch):
    label_list, text_list, offsets = [], [], [0]
    for _label, _text in batch:
        label_list.append(label_pipeline(_label))
        processed_text = torch.tensor(text_pipeline(_text), dtype=torch.int64)
        text_list.append(processed_text)
        offsets.append(processed_text.size(0))
    return torch.tensor(label_list), torch.cat(text_list), torch.tensor(offsets[:-1]).cumsum(dim=0)

class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))

EPOCHS, LR, BATCH_SIZE = 2, 5, 64
dataloader = DataLoader(train_rows, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate_batch)
model = TextClassificationModel(HASH_SIZE, EMSIZE, 4)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.1)

n_texts = 0
for epoch in range(1, EPOCHS + 1):
    model.train()
    total_acc, total_count, start_time = 0, 0, time.time()
    for idx, (label, text, offsets) in enumerate(dataloader):
        optimizer.zero_grad()
        predicted_label = model(text, offsets)
        loss = criterion(predicted_label, label)
        loss.backward()
        optimizer.step()
        total_acc += (predicted_label.argmax(1) == label).sum().item()
        total_count += label.size(0)
        n_texts += label.size(0)
        if idx % 50 == 0 and idx > 0:
            print('| epoch {:3d} | {:5d}/{:5d} batches | accuracy {:8.3f} | {:5.2f}s'.format(
                epoch, idx, len(dataloader), total_acc / total_count, time.time() - start_time))
            total_acc, total_count = 0, 0
    scheduler.step()
"""

CHANGES = (
    Change("sparse gradients", "sparse_gradients", edits={"sparse=False": "sparse=True"}),
    Change("fused SGD", "fused_optimizer", edits={"lr=LR)": "lr=LR, fused=True)"}),
    Change(
        "tokenize the texts once",
        "cache_items",
        edits={
            "EPOCHS, LR, BATCH_SIZE = 2, 5, 64\n": "EPOCHS, LR, BATCH_SIZE = 2, 5, 64\n"
            "train_rows = [(label, torch.tensor(text_pipeline(text))) for label, text in train_rows]\n",
            "        processed_text = torch.tensor(text_pipeline(_text), dtype=torch.int64)\n": ""
            "        processed_text = _text\n",
        },
    ),
    Change("keep the gradient's memory", "zero_grad", edits={"zero_grad()": "zero_grad(set_to_none=False)"}),
    Change("batches of 128", "larger_batch", edits={"BATCH_SIZE = 2, 5, 64": "BATCH_SIZE = 2, 5, 128"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_texts", seconds=7)
