"""BERT4Rec on click sessions: the scores of all items at every position, though the loss needs the masked ones."""

import random

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The items of each user, popular items first, as a dictionary of lists."""
    random.seed(0)
    users = scaled(2048, scale, 64)
    return {
        "user2items": {
            user: [1 + int(6000 * random.random() ** 2) for _ in range(random.randint(30, 60))] for user in range(users)
        }
    }


CELL = """
import random
import torch
import torch.nn as nn
import torch.utils.data as data_utils

num_items, max_len, mask_prob, hidden, heads, layers = 6000, 40, 0.15, 64, 2, 2
CLOZE_MASK_TOKEN = num_items + 1
train_batch_size = 16

class BertTrainDataset(data_utils.Dataset):
    def __init__(self, u2seq):
        self.u2seq = u2seq
        self.users = sorted(u2seq.keys())
        self.rng = random.Random(42)

    def __len__(self):
        return len(self.users)

    def __getitem__(self, index):
        seq = self.u2seq[self.users[index]]
        tokens, labels = [], []
        for s in seq:
            prob = self.rng.random()
            if prob < mask_prob:
                prob /= mask_prob
                if prob < 0.8:
                    tokens.append(CLOZE_MASK_TOKEN)
                elif prob < 0.9:
                    tokens.append(self.rng.randint(1, num_items))
                else:
                    tokens.append(s)
                labels.append(s)
            else:
                tokens.append(s)
                labels.append(0)
        tokens, labels = tokens[-max_len:], labels[-max_len:]
        mask_len = max_len - len(tokens)
        tokens, labels = [0] * mask_len + tokens, [0] * mask_len + labels
        return torch.LongTensor(tokens), torch.LongTensor(labels)

class BERTModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(num_items + 2, hidden, padding_idx=0)
        self.position = nn.Embedding(max_len, hidden)
        self.norm, self.dropout = nn.LayerNorm(hidden), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(hidden, heads, hidden * 4, 0.1, 'gelu', batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(hidden, num_items + 1)

    def bert(self, x):
        h = self.token(x) + self.position(torch.arange(x.size(1), device=x.device))
        return self.encoder(self.dropout(self.norm(h)), src_key_padding_mask=x == 0)

    def forward(self, x):
        return self.out(self.bert(x))

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_loader = data_utils.DataLoader(BertTrainDataset(user2items), batch_size=train_batch_size, shuffle=True)
model = BERTModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
ce = nn.CrossEntropyLoss(ignore_index=0)

n_sequences = 0
for epoch in range(1):
    model.train()
    average_loss = 0.
    for batch_idx, (seqs, labels) in enumerate(train_loader):
        seqs, labels = seqs.to(device), labels.to(device)
        optimizer.zero_grad()
        logits = model(seqs)  # B x T x V
        logits = logits.view(-1, logits.size(-1))
        labels = labels.view(-1)
        loss = ce(logits, labels)
        loss.backward()
        optimizer.step()
        average_loss += loss.item()
        n_sequences += seqs.size(0)
        if batch_idx % 20 == 0:
            print('Epoch {}, loss {:.3f} '.format(epoch + 1, average_loss / (batch_idx + 1)))
"""

CHANGES = (
    Change(
        "scores of masked positions",
        "selected_positions",
        edits={
            "        logits = model(seqs)  # B x T x V\n        logits = logits.view(-1, logits.size(-1))\n"
            "        labels = labels.view(-1)\n": "        masked = labels > 0\n"
            "        logits, labels = model.out(model.bert(seqs)[masked]), labels[masked]\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 64", "larger_batch", edits={"train_batch_size = 16": "train_batch_size = 64"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits = model(seqs)  # B x T x V\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            logits = model(seqs)  # B x T x V\n"
        },
    ),
    Change(
        "sum of losses as a tensor",
        "remove_syncs",
        edits={"average_loss += loss.item()": "average_loss += loss.detach()"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_sequences", seconds=6)
