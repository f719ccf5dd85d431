"""A character model with RWKV's recurrence in plain PyTorch on a folder of verses, as in blog posts and small forks."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Lines of made-up verse in input.txt; `epoch_samples` is the number of windows in an epoch."""
    rng = np.random.default_rng(0)
    starts, middles, ends = (
        ["b", "br", "c", "d", "f", "g", "gr", "h", "l", "m", "n", "p", "qu", "r", "s", "sh", "st", "t", "th", "v", "w"],
        "aeiou",
        ["l", "m", "n", "nd", "r", "rd", "s", "t"],
    )
    words = np.array(
        ["".join(rng.choice(starts) + rng.choice(list(middles)) for _ in range(rng.integers(1, 3))) for _ in range(700)]
    )
    words[::2] = [word + str(rng.choice(ends)) for word in words[::2]]
    weights = 1 / np.arange(4, len(words) + 4)
    weights /= weights.sum()
    lines = []
    for number in range(3000):
        line = " ".join(rng.choice(words, rng.integers(4, 9), p=weights)).capitalize()
        lines.append(line + str(rng.choice([",", ",", ".", ";", "?"])) + ("\n" if number % 4 == 3 else ""))
    Path("input.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"epoch_samples": scaled(1280, scale, 128)}


CELL = """
import math
import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import Dataset, DataLoader

# ---------------------------------------------------------------- settings
ctx_len = 32
n_layer = 2
n_embd = 128
batch_size = 32
n_epoch = 2
lr_init, lr_final = 8e-4, 1e-5
warmup_tokens = 10 * batch_size * ctx_len
betas, eps = (0.9, 0.99), 4e-9
grad_norm_clip = 1.0
device = 'cuda' if torch.cuda.is_available() else 'cpu'
torch.manual_seed(42)

# ---------------------------------------------------------------- data
class CharDataset(Dataset):
    def __init__(self, data, ctx_len, epoch_length):
        chars = sorted(list(set(data)))
        print(f'data has {len(data)} tokens, {len(chars)} unique.')
        self.stoi = {ch: i for i, ch in enumerate(chars)}
        self.itos = {i: ch for i, ch in enumerate(chars)}
        self.ctx_len = ctx_len
        self.vocab_size = len(chars)
        self.data = data
        self.epoch_length = epoch_length

    def __len__(self):
        return self.epoch_length

    def __getitem__(self, idx):
        # cheat: pick a random spot in dataset
        i = np.random.randint(0, len(self.data) - (self.ctx_len + 1))
        chunk = self.data[i:i + self.ctx_len + 1]
        dix = [self.stoi[s] for s in chunk]
        x = torch.tensor(dix[:-1], dtype=torch.long)
        y = torch.tensor(dix[1:], dtype=torch.long)
        return x, y

text = open('input.txt', 'r', encoding='utf-8').read()
train_dataset = CharDataset(text, ctx_len, epoch_samples)

# ---------------------------------------------------------------- model
class TimeMix(nn.Module):
    def __init__(self, n_embd, n_layer, layer_id):
        super().__init__()
        ratio_0_to_1 = layer_id / max(1, n_layer - 1)
        ratio_1_to_almost_0 = 1.0 - layer_id / n_layer
        # per-channel decay speeds: some channels remember longer than others
        h = torch.arange(n_embd) / (n_embd - 1)
        self.time_decay = nn.Parameter(-5 + 8 * h ** (0.7 + 1.3 * ratio_0_to_1))
        self.time_first = nn.Parameter(torch.ones(n_embd) * math.log(0.3) + (torch.arange(n_embd) % 3 - 1) * 0.5)
        x = (torch.arange(n_embd) / n_embd).view(1, 1, n_embd)
        self.time_mix_k = nn.Parameter(x ** ratio_1_to_almost_0)
        self.time_mix_v = nn.Parameter(x ** ratio_1_to_almost_0 + 0.3 * ratio_0_to_1)
        self.time_mix_r = nn.Parameter(x ** (0.5 * ratio_1_to_almost_0))
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)
        self.output = nn.Linear(n_embd, n_embd, bias=False)

    def wkv(self, k, v):
        B, T, C = k.shape
        w = -torch.exp(self.time_decay)
        u = self.time_first
        # running numerator, denominator and maximal exponent
        aa = torch.zeros(B, C, device=k.device)
        bb = torch.zeros(B, C, device=k.device)
        pp = torch.full((B, C), -1e38, device=k.device)
        out = []
        for t in range(T):
            kt, vt = k[:, t], v[:, t]
            ww = u + kt
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            out.append((e1 * aa + e2 * vt) / (e1 * bb + e2))
            ww = w + pp
            p = torch.maximum(ww, kt)
            e1, e2 = torch.exp(ww - p), torch.exp(kt - p)
            aa = e1 * aa + e2 * vt
            bb = e1 * bb + e2
            pp = p
        return torch.stack(out, dim=1)

    def forward(self, x):
        xx = self.time_shift(x)
        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)
        xv = x * self.time_mix_v + xx * (1 - self.time_mix_v)
        xr = x * self.time_mix_r + xx * (1 - self.time_mix_r)
        k, v, r = self.key(xk), self.value(xv), self.receptance(xr)
        rwkv = torch.sigmoid(r) * self.wkv(k, v)
        return self.output(rwkv)

class ChannelMix(nn.Module):
    def __init__(self, n_embd, n_layer, layer_id):
        super().__init__()
        ratio_1_to_almost_0 = 1.0 - layer_id / n_layer
        x = (torch.arange(n_embd) / n_embd).view(1, 1, n_embd)
        self.time_mix_k = nn.Parameter(x ** ratio_1_to_almost_0)
        self.time_mix_r = nn.Parameter(x ** ratio_1_to_almost_0)
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        xx = self.time_shift(x)
        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)
        xr = x * self.time_mix_r + xx * (1 - self.time_mix_r)
        k = torch.square(torch.relu(self.key(xk)))
        return torch.sigmoid(self.receptance(xr)) * self.value(k)

class Block(nn.Module):
    def __init__(self, n_embd, n_layer, layer_id):
        super().__init__()
        self.layer_id = layer_id
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)
        if layer_id == 0:
            self.ln0 = nn.LayerNorm(n_embd)
        self.att = TimeMix(n_embd, n_layer, layer_id)
        self.ffn = ChannelMix(n_embd, n_layer, layer_id)

    def forward(self, x):
        if self.layer_id == 0:
            x = self.ln0(x)
        x = x + self.att(self.ln1(x))
        x = x + self.ffn(self.ln2(x))
        return x

class RWKV(nn.Module):
    def __init__(self, vocab_size, n_embd, n_layer):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, n_layer, i) for i in range(n_layer)])
        self.ln_out = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        nn.init.uniform_(self.emb.weight, -1e-2, 1e-2)
        for name, p in self.named_parameters():
            if name.endswith(('att.output.weight', 'ffn.value.weight', 'receptance.weight')):
                nn.init.zeros_(p)
        print('number of parameters: %d' % sum(p.numel() for p in self.parameters()))

    def forward(self, idx, targets=None):
        x = self.blocks(self.emb(idx))
        logits = self.head(self.ln_out(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizers(self, lr):
        # no decay for the parameters of the recurrence, layer norms and embeddings
        decay, no_decay = [], []
        for name, p in self.named_parameters():
            (decay if p.dim() == 2 and 'emb' not in name else no_decay).append(p)
        groups = [{'params': decay, 'weight_decay': 0.01}, {'params': no_decay, 'weight_decay': 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)

@torch.no_grad()
def sample(model, prompt, steps, temperature=1.0, top_p=0.8):
    model.eval()
    ctx = [train_dataset.stoi[c] for c in prompt]
    for _ in range(steps):
        x = torch.tensor(ctx[-ctx_len:], dtype=torch.long, device=device)[None]
        logits, _ = model(x)
        probs = F.softmax(logits[0, -1] / temperature, dim=-1)
        sorted_probs = torch.sort(probs, descending=True)[0].cpu().numpy()
        cutoff = float(sorted_probs[np.argmax(np.cumsum(sorted_probs) > top_p)])
        probs[probs < cutoff] = 0
        ctx.append(torch.multinomial(probs, num_samples=1).item())
    model.train()
    return ''.join(train_dataset.itos[i] for i in ctx)

model = RWKV(train_dataset.vocab_size, n_embd, n_layer).to(device)
optimizer = model.configure_optimizers(lr_init)

# ---------------------------------------------------------------- train
tokens, samples_seen, avg_loss = 0, 0, -1.0
final_tokens = n_epoch * len(train_dataset) * ctx_len
model.train()
for epoch in range(n_epoch):
    loader = DataLoader(train_dataset, shuffle=False, pin_memory=False, batch_size=batch_size, num_workers=0)
    for it, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        _, loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_norm_clip)
        optimizer.step()

        # exponential decay of the learning rate after a warmup
        tokens += (y >= 0).sum().item()
        samples_seen += len(x)
        if tokens < warmup_tokens:
            lr = lr_init * (0.1 + 0.9 * tokens / warmup_tokens)
        else:
            progress = min(1.0, (tokens - warmup_tokens) / max(1, final_tokens - warmup_tokens))
            lr = math.exp(math.log(lr_init) + progress * (math.log(lr_final) - math.log(lr_init)))
        for group in optimizer.param_groups:
            group['lr'] = lr

        now_loss = loss.item()
        avg_loss = now_loss if avg_loss < 0 else avg_loss * 0.95 + now_loss * 0.05
        print(f'epoch {epoch + 1} iter {it}: loss {avg_loss:.4f} ppl {math.exp(avg_loss):.2f} lr {lr:.2e}', end='\\r')
    print()
    print(sample(model, 'The ', 100))
    torch.save(model.state_dict(), f'rwkv-{epoch + 1}.pth')
"""

LOOP_OVER_TIME = CELL[
    CELL.index("        # running numerator,") : CELL.index(
        "    def forward(self, x):\n        xx = self.time_shift(x)\n"
        "        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)\n        xv"
    )
]
DECAYS = """\
        # w_(t-i) as a lower triangular matrix of each channel: all time steps in one batched product
        distance = torch.arange(T, device=k.device)[:, None] - torch.arange(T, device=k.device)[None] - 1
        decay = torch.exp(w[:, None, None] * distance.clamp(min=0)) * (distance >= 0)
        top = k.max(dim=1, keepdim=True)[0].detach()
        ek = torch.exp(k - top)
        sums = decay @ torch.cat([ek * v, ek]).permute(2, 1, 0)
        num, den = sums.permute(2, 1, 0).chunk(2)
        now = torch.exp(u + k - top)
        return (num + now * v) / (den + now)

"""
SAMPLING = CELL[CELL.index("    for _ in range(steps):\n") : CELL.index("        probs = F.softmax(logits[0, -1]")]
STEP = """
def step(model, token, states):
    x = model.emb.weight[token]
    for block, state in zip(model.blocks, states):
        x = block.ln0(x) if block.layer_id == 0 else x
        att, now, last = block.att, block.ln1(x), state['att']
        k, v, r = (layer(now * mix.view(-1) + last * (1 - mix.view(-1))) for layer, mix in (
            (att.key, att.time_mix_k), (att.value, att.time_mix_v), (att.receptance, att.time_mix_r)))
        state['att'], (aa, bb, pp) = now, state['wkv']
        ww = att.time_first + k
        p = torch.maximum(pp, ww)
        e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
        x = x + att.output(torch.sigmoid(r) * (e1 * aa + e2 * v) / (e1 * bb + e2))
        ww = pp - torch.exp(att.time_decay)
        p = torch.maximum(ww, k)
        e1, e2 = torch.exp(ww - p), torch.exp(k - p)
        state['wkv'] = e1 * aa + e2 * v, e1 * bb + e2, p
        ffn, now, last = block.ffn, block.ln2(x), state['ffn']
        k, r = (layer(now * mix.view(-1) + last * (1 - mix.view(-1))) for layer, mix in (
            (ffn.key, ffn.time_mix_k), (ffn.receptance, ffn.time_mix_r)))
        state['ffn'] = now
        x = x + torch.sigmoid(r) * ffn.value(torch.square(torch.relu(k)))
    return model.head(model.ln_out(x))

@torch.no_grad()
def sample("""
STATES = """\
    zeros = torch.zeros(n_embd, device=device)
    states = [{'att': zeros, 'ffn': zeros, 'wkv': (zeros, zeros, zeros - 1e38)} for _ in range(n_layer)]
    for token in ctx[:-1]:
        step(model, token, states)
    for _ in range(steps):
        logits = step(model, ctx[-1], states)[None, None]
"""

CHANGES = (
    Change("the recurrence as a product with decays", "remove_python", edits={LOOP_OVER_TIME: DECAYS}),
    Change(
        "text sampled with the recurrent state",
        "kv_cache",
        edits={"\n@torch.no_grad()\ndef sample(": STEP.rstrip("\n"), SAMPLING: STATES},
    ),
    Change(
        "text encoded once",
        "cache_items",
        edits={
            "        self.data = data\n": "        self.data = torch.tensor([self.stoi[s] for s in data])\n",
            "        dix = [self.stoi[s] for s in chunk]\n"
            "        x = torch.tensor(dix[:-1], dtype=torch.long)\n"
            "        y = torch.tensor(dix[1:], dtype=torch.long)\n"
            "        return x, y\n": "        return chunk[:-1], chunk[1:]\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        _, loss = model(x, y)\n": ""
            "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            _, loss = model(x, y)\n"
        },
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size = 32\n": "batch_size = 128\n"}),
    Change("two workers", "num_workers", edits={"num_workers=0)": "num_workers=2)"}),
    Change("fused AdamW", "fused_optimizer", edits={"betas=betas, eps=eps)": "betas=betas, eps=eps, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples_seen", loss="now_loss", seconds=7)
