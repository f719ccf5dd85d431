"""Translation in the manner of the Annotated Transformer: a sampler with a budget of tokens, label smoothing by KLDivLoss."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Pairs of sentences as token ids, from 5 to 50 long."""
    rng = np.random.default_rng(0)
    count = scaled(2800, scale)
    lengths = np.clip(rng.lognormal(2.9, 0.45, count).astype(int), 5, 50)
    sources = [rng.integers(4, 4000, n).tolist() for n in lengths]
    targets = [
        rng.integers(4, 3000, max(4, n + d)).tolist() for n, d in zip(lengths, rng.integers(-3, 4, count), strict=True)
    ]
    return {"pairs": list(zip(sources, targets, strict=True)), "src_vocab": 4000, "tgt_vocab": 3000}


CELL = """
import copy
import math
import random
import time

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler

PAD, BOS, EOS = 0, 1, 2


class TokenBatchSampler(Sampler):
    # Sentences of similar length, at most max_tokens (padded) per batch
    def __init__(self, pairs, max_tokens, pool=1000):
        self.sizes = [max(len(s), len(t) + 2) for s, t in pairs]
        self.max_tokens, self.pool = max_tokens, pool

    def __iter__(self):
        order = list(range(len(self.sizes)))
        random.shuffle(order)
        batches = []
        for start in range(0, len(order), self.pool):
            batch, longest = [], 0
            for i in sorted(order[start:start + self.pool], key=self.sizes.__getitem__):
                longest = max(longest, self.sizes[i])
                if batch and longest * (len(batch) + 1) > self.max_tokens:
                    batches.append(batch)
                    batch, longest = [], self.sizes[i]
                batch.append(i)
            batches.append(batch)
        random.shuffle(batches)
        return iter(batches)


def subsequent_mask(size):
    return torch.triu(torch.ones((1, size, size)), diagonal=1).type(torch.uint8) == 0


class Batch:
    def __init__(self, src, tgt):
        self.src = src
        self.src_mask = (src != PAD).unsqueeze(-2)
        self.tgt = tgt[:, :-1]
        self.tgt_y = tgt[:, 1:]
        self.tgt_mask = (self.tgt != PAD).unsqueeze(-2) & subsequent_mask(self.tgt.size(-1))
        self.ntokens = (self.tgt_y != PAD).sum()


def collate_batch(examples):
    src = pad_sequence([torch.tensor(s) for s, _ in examples], batch_first=True, padding_value=PAD)
    tgt = pad_sequence([torch.tensor([BOS] + t + [EOS]) for _, t in examples], batch_first=True, padding_value=PAD)
    return src, tgt


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value)


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
                             for lin, x in zip(self.linears, (query, key, value))]
        x = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


def feed_forward(d_model, d_ff, dropout):
    return nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))


class EncoderLayer(nn.Module):
    def __init__(self, size, h, d_ff, dropout):
        super().__init__()
        self.self_attn, self.ff = MultiHeadedAttention(h, size), feed_forward(size, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(size, dropout), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.ff)


class DecoderLayer(nn.Module):
    def __init__(self, size, h, d_ff, dropout):
        super().__init__()
        self.self_attn, self.src_attn = MultiHeadedAttention(h, size), MultiHeadedAttention(h, size)
        self.ff = feed_forward(size, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(size, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.ff)


class EncoderDecoder(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, N=2, d_model=128, d_ff=512, h=4, dropout=0.1, max_len=64):
        super().__init__()
        self.d_model = d_model
        self.src_embed, self.tgt_embed = nn.Embedding(src_vocab, d_model), nn.Embedding(tgt_vocab, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer('pe', pe)
        self.encoder = clones(EncoderLayer(d_model, h, d_ff, dropout), N)
        self.decoder = clones(DecoderLayer(d_model, h, d_ff, dropout), N)
        self.enc_norm, self.dec_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.proj = nn.Linear(d_model, tgt_vocab)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def embed(self, table, ids):
        return self.dropout(table(ids) * math.sqrt(self.d_model) + self.pe[:ids.size(1)])

    def forward(self, src, tgt, src_mask, tgt_mask):
        memory = self.embed(self.src_embed, src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory = self.enc_norm(memory)
        x = self.embed(self.tgt_embed, tgt)
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.dec_norm(x)

    def generator(self, x):
        return torch.log_softmax(self.proj(x), dim=-1)


class LabelSmoothing(nn.Module):
    def __init__(self, size, padding_idx, smoothing=0.0):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction='sum')
        self.padding_idx = padding_idx
        self.confidence = 1.0 - smoothing
        self.smoothing = smoothing
        self.size = size
        self.true_dist = None

    def forward(self, x, target):
        assert x.size(1) == self.size
        true_dist = x.data.clone()
        true_dist.fill_(self.smoothing / (self.size - 2))
        true_dist.scatter_(1, target.data.unsqueeze(1), self.confidence)
        true_dist[:, self.padding_idx] = 0
        mask = torch.nonzero(target.data == self.padding_idx)
        if mask.dim() > 0:
            true_dist.index_fill_(0, mask.squeeze(), 0.0)
        self.true_dist = true_dist
        return self.criterion(x, true_dist.clone().detach())


def rate(step, model_size, factor, warmup):
    step = max(step, 1)
    return factor * (model_size ** (-0.5) * min(step ** (-0.5), step * warmup ** (-1.5)))


def run_epoch(data_iter, model, criterion, optimizer, scheduler):
    start, total_tokens, total_loss, tokens, sentences = time.time(), 0, 0, 0, 0
    for i, batch in enumerate(data_iter):
        out = model.forward(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        x = model.generator(out)
        loss = criterion(x.contiguous().view(-1, x.size(-1)), batch.tgt_y.contiguous().view(-1)) / batch.ntokens
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        total_loss += loss.item() * batch.ntokens.item()
        total_tokens += batch.ntokens.item()
        tokens += batch.ntokens.item()
        sentences += len(batch.src)
        if i % 40 == 1:
            lr = optimizer.param_groups[0]['lr']
            elapsed = time.time() - start
            print(f'Epoch Step: {i:6d} | Loss: {loss.item():6.2f} | Tokens / Sec: {tokens / elapsed:7.1f} | LR: {lr:6.1e}')
            start, tokens = time.time(), 0
    return total_loss / total_tokens, sentences


config = {'max_tokens': 700, 'num_epochs': 1, 'base_lr': 1.0, 'warmup': 400}
dataloader = DataLoader(pairs, batch_sampler=TokenBatchSampler(pairs, config['max_tokens']), collate_fn=collate_batch)
model = EncoderDecoder(src_vocab, tgt_vocab)
criterion = LabelSmoothing(size=tgt_vocab, padding_idx=PAD, smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=config['base_lr'], betas=(0.9, 0.98), eps=1e-9)
lr_scheduler = LambdaLR(optimizer, lr_lambda=lambda step: rate(step, model.d_model, 1.0, config['warmup']))
n_pairs = 0
for epoch in range(config['num_epochs']):
    model.train()
    epoch_loss, n = run_epoch((Batch(s, t) for s, t in dataloader), model, criterion, optimizer, lr_scheduler)
    n_pairs += n
    print(f'Epoch {epoch}: {epoch_loss:.3f}')
"""

_FORWARD = "        out = model.forward(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)\n"
_GENERATOR = "        x = model.generator(out)\n"
_LOSS = (
    "        loss = criterion(x.contiguous().view(-1, x.size(-1)), batch.tgt_y.contiguous().view(-1)) / batch.ntokens\n"
)

CHANGES = (
    Change(
        "cross_entropy with label smoothing",
        "other",
        edits={
            _GENERATOR
            + _LOSS: "        loss = nn.functional.cross_entropy(model.proj(out).flatten(0, 1), batch.tgt_y.flatten(),\n"
            "                                           ignore_index=PAD, label_smoothing=0.1)\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            _FORWARD + _GENERATOR: "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            out = model.forward(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)\n"
            "            x = model.generator(out).float()\n"
        },
    ),
    Change(
        "scaled_dot_product_attention",
        "sdpa",
        edits={
            "        x = attention(query, key, value, mask=mask, dropout=self.dropout)\n": ""
            "        x = nn.functional.scaled_dot_product_attention(query, key, value, mask,\n"
            "                                                       self.dropout.p if self.training else 0.0)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"eps=1e-9)": "eps=1e-9, fused=True)"}),
    Change(
        "two workers", "num_workers", edits={"collate_fn=collate_batch)": "collate_fn=collate_batch, num_workers=2)"}
    ),
    Change("batches of 1400 tokens", "larger_batch", edits={"'max_tokens': 700": "'max_tokens': 1400"}),
)

# A DataLoader with workers draws another random number, so that batches of so many tokens come in another order.
LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_pairs", loss="epoch_loss", seconds=12, same_steps=False)
