"""Visual question answering with bottom-up attention: features of regions, one .pt file per image, and soft targets."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Files with 36 regions of 512 values, five questions per image, and up to four answers with a score each."""
    rng = np.random.default_rng(0)
    Path("features").mkdir()
    images = scaled(768, scale, 128)
    for image in range(images):
        torch.save({"features": torch.rand(36, 512), "boxes": torch.rand(36, 4)}, f"features/{image}.pt")
    words = [f"word{k}" for k in range(1500)]
    entries = []
    for image in range(images):
        for _ in range(5):
            length = rng.integers(3, 15)
            question = " ".join(words[k] for k in np.minimum(rng.zipf(1.4, length), 1500) - 1) + "?"
            labels = rng.choice(1000, rng.integers(1, 5), replace=False).tolist()
            scores = [1.0, 0.9, 0.6, 0.3][: len(labels)]
            entries.append({"image_id": image, "question": question, "labels": labels, "scores": scores})
    return {"entries": entries}


CELL = """
import os
import re
import time
import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import Dataset, DataLoader

NUM_ANS = 1000

class Dictionary(object):
    def __init__(self):
        self.word2idx = {}

    @property
    def padding_idx(self):
        return len(self.word2idx)

    def tokenize(self, sentence, add_word):
        sentence = sentence.lower()
        sentence = sentence.replace(',', '').replace('?', '').replace('\\'s', ' \\'s')
        words = sentence.split()
        tokens = []
        for w in words:
            if add_word and w not in self.word2idx:
                self.word2idx[w] = len(self.word2idx)
            tokens.append(self.word2idx.get(w, self.padding_idx - 1))
        return tokens

class VQAFeatureDataset(Dataset):
    def __init__(self, entries, dictionary, dataroot='features'):
        super(VQAFeatureDataset, self).__init__()
        self.entries = entries
        self.dictionary = dictionary
        self.dataroot = dataroot
        self.tokenize()
        self.tensorize()

    def tokenize(self, max_length=14):
        for entry in self.entries:
            tokens = self.dictionary.tokenize(entry['question'], False)
            tokens = tokens[:max_length]
            if len(tokens) < max_length:
                # Note here we pad in front of the sentence
                padding = [self.dictionary.padding_idx] * (max_length - len(tokens))
                tokens = padding + tokens
            entry['q_token'] = tokens

    def tensorize(self):
        for entry in self.entries:
            entry['q_token'] = torch.tensor(entry['q_token'])
            entry['label_t'] = torch.tensor(entry['labels'])
            entry['score_t'] = torch.tensor(entry['scores'])

    def __getitem__(self, index):
        entry = self.entries[index]
        item = torch.load(os.path.join(self.dataroot, '%d.pt' % entry['image_id']))
        features, spatials = item['features'], item['boxes']
        target = torch.zeros(NUM_ANS)
        target.scatter_(0, entry['label_t'], entry['score_t'])
        return features, spatials, entry['q_token'], target

    def __len__(self):
        return len(self.entries)

class FCNet(nn.Module):
    def __init__(self, dims):
        super(FCNet, self).__init__()
        layers = []
        for i in range(len(dims) - 1):
            layers.append(weight_norm(nn.Linear(dims[i], dims[i + 1]), dim=None))
            layers.append(nn.ReLU())
        self.main = nn.Sequential(*layers)

    def forward(self, x):
        return self.main(x)

class NewAttention(nn.Module):
    def __init__(self, v_dim, q_dim, num_hid, dropout=0.2):
        super(NewAttention, self).__init__()
        self.v_proj = FCNet([v_dim, num_hid])
        self.q_proj = FCNet([q_dim, num_hid])
        self.dropout = nn.Dropout(dropout)
        self.linear = weight_norm(nn.Linear(num_hid, 1), dim=None)

    def forward(self, v, q):
        batch, k, _ = v.size()
        v_proj = self.v_proj(v) # [batch, k, qdim]
        q_proj = self.q_proj(q).unsqueeze(1).repeat(1, k, 1)
        joint_repr = self.dropout(v_proj * q_proj)
        return nn.functional.softmax(self.linear(joint_repr), 1)

class BaseModel(nn.Module):
    def __init__(self, ntoken, v_dim=512, num_hid=256):
        super(BaseModel, self).__init__()
        self.w_emb = nn.Embedding(ntoken + 1, 128, padding_idx=ntoken)
        self.q_emb = nn.GRU(128, num_hid, batch_first=True)
        self.v_att = NewAttention(v_dim, num_hid, num_hid)
        self.q_net = FCNet([num_hid, num_hid])
        self.v_net = FCNet([v_dim, num_hid])
        self.classifier = nn.Sequential(weight_norm(nn.Linear(num_hid, 2 * num_hid), dim=None), nn.ReLU(),
                                        nn.Dropout(0.5), weight_norm(nn.Linear(2 * num_hid, NUM_ANS), dim=None))

    def forward(self, v, b, q):
        w_emb = self.w_emb(q)
        q_emb, _ = self.q_emb(w_emb)
        q_emb = q_emb[:, -1]
        att = self.v_att(v, q_emb)
        v_emb = (att * v).sum(1)
        joint_repr = self.q_net(q_emb) * self.v_net(v_emb)
        return self.classifier(joint_repr)

def instance_bce_with_logits(logits, labels):
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
    loss *= labels.size(1)
    return loss

def compute_score_with_logits(logits, labels):
    logits = torch.max(logits, 1)[1].data # argmax
    one_hots = torch.zeros(*labels.size()).to(labels.device)
    one_hots.scatter_(1, logits.view(-1, 1), 1)
    scores = (one_hots * labels)
    return scores

def train(model, train_loader, num_epochs, device):
    global n_questions, last_loss
    optim = torch.optim.Adamax(model.parameters())
    for epoch in range(num_epochs):
        total_loss = 0
        train_score = 0
        t = time.time()
        for i, (v, b, q, a) in enumerate(train_loader):
            v, b, q, a = v.to(device), b.to(device), q.to(device), a.to(device)
            pred = model(v, b, q)
            loss = instance_bce_with_logits(pred, a)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optim.step()
            optim.zero_grad()

            batch_score = compute_score_with_logits(pred, a.data).sum()
            total_loss += loss.item() * v.size(0)
            train_score += batch_score.item()
            n_questions += v.size(0)
            last_loss = loss.item()
        total_loss /= len(train_loader.dataset)
        train_score = 100 * train_score / len(train_loader.dataset)
        print('epoch %d, time: %.2f' % (epoch, time.time() - t))
        print('\\ttrain_loss: %.2f, score: %.2f' % (total_loss, train_score))

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
batch_size = 64
dictionary = Dictionary()
for e in entries:
    dictionary.tokenize(e['question'], True)
train_dset = VQAFeatureDataset(entries, dictionary)
train_loader = DataLoader(train_dset, batch_size, shuffle=True, num_workers=0)
model = BaseModel(dictionary.padding_idx).to(device)
n_questions, last_loss = 0, None
train(model, train_loader, 2, device)
"""

CHANGES = (
    Change(
        "features of all images in memory",
        "cache_items",
        edits={
            "        self.tokenize()\n": "        self.items = {i: torch.load(os.path.join(dataroot, '%d.pt' % i)) for i in {e['image_id'] for e in entries}}\n"
            "        self.tokenize()\n",
            "        item = torch.load(os.path.join(self.dataroot, '%d.pt' % entry['image_id']))\n": ""
            "        item = self.items[entry['image_id']]\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True, num_workers=0": "shuffle=True, num_workers=2"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            pred = model(v, b, q)\n": "            with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "                pred = model(v, b, q)\n            pred = pred.float()\n"
        },
    ),
    Change("batches of 256", "larger_batch", edits={"batch_size = 64": "batch_size = 256"}),
    Change(
        "no score in training",
        "fewer_logs",
        edits={
            "            batch_score = compute_score_with_logits(pred, a.data).sum()\n": "",
            "            train_score += batch_score.item()\n": "",
        },
    ),
    Change(
        "foreach Adamax",
        "foreach_optimizer",
        edits={"torch.optim.Adamax(model.parameters())": "torch.optim.Adamax(model.parameters(), foreach=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_questions", loss="last_loss", seconds=10)
