"""An LSTM on film reviews, tokenized with regular expressions in __getitem__, as in countless IMDB notebooks."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A CSV of reviews with HTML tags, punctuation and capitals."""
    rng = np.random.default_rng(0)
    count = scaled(3200, scale, 32)
    vocabulary = np.array(
        ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), n)) for n in rng.integers(2, 9, 5000)]
    )
    rows = []
    for _ in range(count):
        words = vocabulary[np.minimum(rng.zipf(1.3, rng.integers(60, 240)), 5000) - 1].tolist()
        words[0] = words[0].title()
        words.insert(len(words) // 2, "great!<br /><br />I'd")
        rows.append(", ".join([" ".join(words[:30]), " ".join(words[30:])]) + ".")
    frame = pd.DataFrame({"review": rows, "sentiment": rng.choice(["positive", "negative"], count)})
    frame.to_csv("IMDB Dataset.csv", index=False)
    return {}


CELL = r"""
import re, string
from collections import Counter
import pandas as pd
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, DataLoader

df = pd.read_csv('IMDB Dataset.csv')
stop_words = ['i', 'me', 'my', 'we', 'our', 'you', 'he', 'she', 'it', 'they', 'this', 'that', 'am', 'is', 'are', 'was',
              'be', 'been', 'have', 'has', 'do', 'does', 'a', 'an', 'the', 'and', 'but', 'if', 'or', 'as', 'of', 'at', 'by']

def preprocess(text):
    text = text.lower()
    text = re.sub(r'<.*?>', ' ', text)
    text = re.sub(r'http\S+', '', text)
    text = ''.join([c for c in text if c not in string.punctuation])
    text = re.sub(r'\d+', '', text)
    return [w for w in text.split() if w not in stop_words]

counter = Counter()
for review in df['review']:
    counter.update(preprocess(review))
vocab = {w: i + 2 for i, (w, _) in enumerate(counter.most_common(4000))}

class IMDB(Dataset):
    def __init__(self, df):
        self.df = df

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        tokens = preprocess(row['review'])
        ids = [vocab.get(t, 1) for t in tokens][:100]
        return torch.tensor(ids), torch.tensor(1.0 if row['sentiment'] == 'positive' else 0.0)

def collate(batch):
    texts, labels = zip(*batch)
    return pad_sequence(texts, batch_first=True), torch.stack(labels)

class SentimentLSTM(nn.Module):
    def __init__(self, vocab_size, embed_dim=32, hidden=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)
        self.lstm = nn.LSTM(embed_dim, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(self.embedding(x))
        return self.fc(self.dropout(out[:, -1])).squeeze(1)

train_loader = DataLoader(IMDB(df), batch_size=32, shuffle=True, collate_fn=collate, num_workers=0)
model = SentimentLSTM(len(vocab) + 2)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

n = 0
for epoch in range(2):
    model.train()
    train_acc = 0.0
    for inputs, labels in train_loader:
        model.zero_grad()
        output = model(inputs)
        loss = criterion(output, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        train_acc += ((output > 0) == labels.bool()).sum().item()
        n += len(labels)
    print(f'Epoch {epoch + 1}: train accuracy {train_acc / len(df) * 100:.2f}')
"""

CHANGES = (
    Change(
        "tokenize once",
        "cache_items",
        edits={
            "        self.df = df\n": "        self.items = [(torch.tensor([vocab.get(t, 1) for t in preprocess(r)][:100]), "
            "torch.tensor(float(s == 'positive'))) for r, s in zip(df['review'], df['sentiment'])]\n",
            "len(self.df)\n": "len(self.items)\n",
            """        row = self.df.iloc[idx]
        tokens = preprocess(row['review'])
        ids = [vocab.get(t, 1) for t in tokens][:100]
        return torch.tensor(ids), torch.tensor(1.0 if row['sentiment'] == 'positive' else 0.0)
""": "        return self.items[idx]\n",
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "translate and a set of stop words",
        "vectorize_items",
        edits={
            "text = ''.join([c for c in text if c not in string.punctuation])": "text = text.translate(remove)",
            "def preprocess(text):": "remove = str.maketrans('', '', string.punctuation)\nstop_set = set(stop_words)\n\n"
            "def preprocess(text):",
            "if w not in stop_words]": "if w not in stop_set]",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.001)": "lr=0.001, fused=True)"}),
    Change("one thread", "threads", edits={"df = pd.read_csv": "torch.set_num_threads(1)\ndf = pd.read_csv"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n", seconds=6)
