"""Intents of a voice assistant's requests by a packed BiLSTM, with a torch Dataset that tokenizes and a padding collate."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Requests of 3 to 28 words of which some tell the intent, as two frames with the columns text and intent."""
    rng = np.random.default_rng(0)
    syllables = np.array(["ka", "to", "mi", "re", "lu", "shan", "be", "or", "ing", "fel", "da", "no", "wi", "chi"])
    words = np.array(["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(6000)])
    weights = 1 / np.arange(10, len(words) + 10)
    weights /= weights.sum()
    keys = rng.choice(words, (64, 4))

    def frame(count: int) -> pd.DataFrame:
        rows = []
        for intent in rng.permutation(np.arange(count) % 64):
            text = rng.choice(words, int(np.clip(rng.gamma(4, 2.2), 2, 27)), p=weights).tolist()
            text.insert(int(rng.integers(len(text) + 1)), str(rng.choice(keys[intent])))
            rows.append((f"{' '.join(text).capitalize()}{rng.choice(['', '?', '.', ', please'])}", f"intent_{intent}"))
        return pd.DataFrame(rows, columns=["text", "intent"])

    return {"train_df": frame(scaled(2880, scale, 64)), "val_df": frame(scaled(576, scale, 64))}


CELL = """
import re
from collections import Counter
import numpy as np
import torch
import torch.nn as nn
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import LabelEncoder
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence
from torch.utils.data import Dataset, DataLoader

EMBEDDING_DIM = 200
HIDDEN_DIM = 128
NUM_LAYERS = 2
DROPOUT = 0.3
BATCH_SIZE = 32
LEARNING_RATE = 1e-3
NUM_EPOCHS = 3
MIN_FREQ = 1
PAD, UNK = '<pad>', '<unk>'

def tokenize(text):
    text = text.lower()
    text = re.sub(r"[^a-z0-9' ]", ' ', text)
    return text.split()

def build_vocab(texts, min_freq):
    counter = Counter()
    for text in texts:
        counter.update(tokenize(text))
    vocab = {PAD: 0, UNK: 1}
    for word, freq in counter.items():
        if freq >= min_freq:
            vocab[word] = len(vocab)
    return vocab

vocab = build_vocab(train_df['text'], MIN_FREQ)
label_encoder = LabelEncoder()
train_labels = label_encoder.fit_transform(train_df['intent'])
val_labels = label_encoder.transform(val_df['intent'])
print(f'Vocab size: {len(vocab)}, intents: {len(label_encoder.classes_)}')

class IntentDataset(Dataset):
    def __init__(self, texts, labels, vocab):
        self.texts = texts.tolist()
        self.labels = labels
        self.vocab = vocab

    def __len__(self):
        return len(self.texts)

    def encode(self, text):
        return [self.vocab.get(token, self.vocab[UNK]) for token in tokenize(text)]

    def __getitem__(self, idx):
        ids = self.encode(self.texts[idx])
        return torch.tensor(ids, dtype=torch.long), torch.tensor(self.labels[idx], dtype=torch.long)

def collate_fn(batch):
    sequences, labels = zip(*batch)
    lengths = torch.tensor([len(seq) for seq in sequences])
    padded = pad_sequence(sequences, batch_first=True, padding_value=0)
    return padded, lengths, torch.stack(labels)

class BiLSTMClassifier(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_dim, num_classes, num_layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, num_layers=num_layers, bidirectional=True,
                            batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden_dim * 2, num_classes)

    def forward(self, x, lengths):
        embedded = self.dropout(self.embedding(x))
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        hidden = torch.cat((hidden[-2], hidden[-1]), dim=1)
        return self.fc(self.dropout(hidden))

train_dataset = IntentDataset(train_df['text'], train_labels, vocab)
val_dataset = IntentDataset(val_df['text'], val_labels, vocab)
train_loader = DataLoader(train_dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate_fn)
val_loader = DataLoader(val_dataset, batch_size=BATCH_SIZE, shuffle=False, collate_fn=collate_fn)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = BiLSTMClassifier(len(vocab), EMBEDDING_DIM, HIDDEN_DIM, len(label_encoder.classes_), NUM_LAYERS,
                         DROPOUT).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

def train_epoch(model, loader):
    model.train()
    total_loss, correct, total = 0, 0, 0
    for x, lengths, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        logits = model(x, lengths)
        loss = criterion(logits, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total_loss += loss.item()
        correct += (logits.argmax(1) == y).sum().item()
        total += y.size(0)
    return total_loss / len(loader), correct / total, total

def evaluate(model, loader):
    model.eval()
    total_loss, all_preds, all_labels = 0, [], []
    with torch.no_grad():
        for x, lengths, y in loader:
            x, y = x.to(device), y.to(device)
            logits = model(x, lengths)
            total_loss += criterion(logits, y).item()
            all_preds.extend(logits.argmax(1).cpu().numpy())
            all_labels.extend(y.cpu().numpy())
    return (total_loss / len(loader), accuracy_score(all_labels, all_preds),
            f1_score(all_labels, all_preds, average='macro'))

best_f1, seen = -1.0, 0
for epoch in range(NUM_EPOCHS):
    train_loss, train_acc, count = train_epoch(model, train_loader)
    val_loss, val_acc, val_f1 = evaluate(model, val_loader)
    seen += count
    print(f'Epoch {epoch + 1}/{NUM_EPOCHS} | Train Loss: {train_loss:.4f} Acc: {train_acc:.4f} | '
          f'Val Loss: {val_loss:.4f} Acc: {val_acc:.4f} F1: {val_f1:.4f}')
    if val_f1 > best_f1:
        best_f1 = val_f1
        torch.save(model.state_dict(), 'best_intent_model.pt')
"""

SAMPLER = """
class BucketSampler(torch.utils.data.Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = np.array(lengths), batch_size

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self):
        order = np.argsort(self.lengths + np.random.rand(len(self.lengths)), kind='stable')
        batches = [order[i:i + self.batch_size].tolist() for i in range(0, len(order), self.batch_size)]
        np.random.shuffle(batches)
        yield from batches

train_loader = DataLoader(train_dataset, collate_fn=collate_fn, batch_sampler=BucketSampler(
    [len(text.split()) for text in train_dataset.texts], BATCH_SIZE))
"""
LOADER = "train_loader = DataLoader(train_dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate_fn)\n"

CHANGES = (
    Change(
        "texts encoded once",
        "cache_items",
        edits={
            "        self.vocab = vocab\n": ""
            "        self.vocab = vocab\n"
            "        self.ids = [torch.tensor(self.encode(text)) for text in self.texts]\n"
            "        self.targets = torch.as_tensor(labels, dtype=torch.long)\n",
            "        ids = self.encode(self.texts[idx])\n"
            "        return torch.tensor(ids, dtype=torch.long), torch.tensor(self.labels[idx], dtype=torch.long)\n": ""
            "        return self.ids[idx], self.targets[idx]\n",
        },
    ),
    Change("batches of similar length", "padding", edits={LOADER: SAMPLER.lstrip("\n")}),
    Change("batches of 128", "larger_batch", edits={"BATCH_SIZE = 32": "BATCH_SIZE = 128"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=LEARNING_RATE)": "lr=LEARNING_RATE, fused=True)"}),
    Change(
        "one thread", "threads", edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("}
    ),
    Change("two workers", "num_workers", edits={LOADER: LOADER.replace("shuffle=True", "shuffle=True, num_workers=2")}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="train_loss", seconds=8)
