"""A character MLP with layers written by hand and plain SGD on a list of tensors, as in lecture notebooks on makemore."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Names drawn from a Markov chain over letters, and the number of steps."""
    rng = np.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    chain = rng.dirichlet(np.full(26, 0.3), 26).cumsum(1)
    names = []
    for length, draws in zip(rng.integers(3, 10, 6000), rng.random((6000, 10)), strict=True):
        state, name = int(26 * draws[9]), ""
        for draw in draws[:length]:
            state = min(int(np.searchsorted(chain[state], draw)), 25)
            name += letters[state]
        names.append(name)
    return {"words": names, "max_steps": scaled(5500, scale, 4)}


CELL = """
import random
import torch
import torch.nn.functional as F

chars = sorted(list(set(''.join(words))))
stoi = {s:i+1 for i,s in enumerate(chars)}
stoi['.'] = 0
itos = {i:s for s,i in stoi.items()}
vocab_size = len(itos)
block_size = 3

def build_dataset(words):
    X, Y = [], []
    for w in words:
        context = [0] * block_size
        for ch in w + '.':
            ix = stoi[ch]
            X.append(context)
            Y.append(ix)
            context = context[1:] + [ix]
    return torch.tensor(X), torch.tensor(Y)

random.seed(42)
random.shuffle(words)
n1 = int(0.8*len(words))
Xtr, Ytr = build_dataset(words[:n1])
Xdev, Ydev = build_dataset(words[n1:])

class Linear:
    def __init__(self, fan_in, fan_out, bias=True):
        self.weight = torch.randn((fan_in, fan_out), generator=g) / fan_in**0.5
        self.bias = torch.zeros(fan_out) if bias else None
    def __call__(self, x):
        self.out = x @ self.weight
        if self.bias is not None:
            self.out += self.bias
        return self.out
    def parameters(self):
        return [self.weight] + ([] if self.bias is None else [self.bias])

class BatchNorm1d:
    def __init__(self, dim, eps=1e-5, momentum=0.1):
        self.eps = eps
        self.momentum = momentum
        self.training = True
        self.gamma = torch.ones(dim)
        self.beta = torch.zeros(dim)
        self.running_mean = torch.zeros(dim)
        self.running_var = torch.ones(dim)
    def __call__(self, x):
        if self.training:
            xmean = x.mean(0, keepdim=True)
            xvar = x.var(0, keepdim=True)
        else:
            xmean = self.running_mean
            xvar = self.running_var
        xhat = (x - xmean) / torch.sqrt(xvar + self.eps)
        self.out = self.gamma * xhat + self.beta
        if self.training:
            with torch.no_grad():
                self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * xmean
                self.running_var = (1 - self.momentum) * self.running_var + self.momentum * xvar
        return self.out
    def parameters(self):
        return [self.gamma, self.beta]

class Tanh:
    def __call__(self, x):
        self.out = torch.tanh(x)
        return self.out
    def parameters(self):
        return []

n_embd = 10
n_hidden = 100
g = torch.Generator().manual_seed(2147483647)

C = torch.randn((vocab_size, n_embd), generator=g)
layers = [
  Linear(n_embd * block_size, n_hidden, bias=False), BatchNorm1d(n_hidden), Tanh(),
  Linear(           n_hidden, n_hidden, bias=False), BatchNorm1d(n_hidden), Tanh(),
  Linear(           n_hidden, n_hidden, bias=False), BatchNorm1d(n_hidden), Tanh(),
  Linear(           n_hidden, n_hidden, bias=False), BatchNorm1d(n_hidden), Tanh(),
  Linear(           n_hidden, vocab_size, bias=False), BatchNorm1d(vocab_size),
]
with torch.no_grad():
    layers[-1].gamma *= 0.1

parameters = [C] + [p for layer in layers for p in layer.parameters()]
print(sum(p.nelement() for p in parameters))
for p in parameters:
    p.requires_grad = True

batch_size = 32
steps = max_steps * 32 // batch_size
lossi = []
ud = []
seen = 0

for i in range(steps):
    # minibatch construct
    ix = torch.randint(0, Xtr.shape[0], (batch_size,), generator=g)
    Xb, Yb = Xtr[ix], Ytr[ix]

    # forward pass
    emb = C[Xb]
    x = emb.view(emb.shape[0], -1)
    for layer in layers:
        x = layer(x)
    loss = F.cross_entropy(x, Yb)

    # backward pass
    for layer in layers:
        layer.out.retain_grad() # AFTER_DEBUG: would take out retain_graph
    for p in parameters:
        p.grad = None
    loss.backward()

    # update
    lr = 0.1 if i < 0.75*steps else 0.01
    for p in parameters:
        p.data += -lr * p.grad

    # track stats
    if i % 1000 == 0:
        print(f'{i:7d}/{steps:7d}: {loss.item():.4f}')
    lossi.append(loss.log10().item())
    with torch.no_grad():
        ud.append([((lr*p.grad).std() / p.data.std()).log10().item() for p in parameters])
    seen += len(ix)

for layer in layers:
    if isinstance(layer, BatchNorm1d):
        layer.training = False
with torch.no_grad():
    x = C[Xdev].view(Xdev.shape[0], -1)
    for layer in layers:
        x = layer(x)
    dev_loss = F.cross_entropy(x, Ydev).item()
print('dev', dev_loss)
"""

_BATCH_NORM = CELL[
    CELL.index("        if self.training:\n            xmean") : CELL.index(
        "    def parameters(self):\n        return [self.gamma"
    )
]

CHANGES = (
    Change(
        "update ratios every hundredth step",
        "fewer_logs",
        edits={
            "    with torch.no_grad():\n        ud.append(": "    if i % 100 == 0:\n      with torch.no_grad():\n        ud.append("
        },
    ),
    Change(
        "no gradients of activations",
        "other",
        edits={
            "    for layer in layers:\n        layer.out.retain_grad() # AFTER_DEBUG: would take out retain_graph\n": ""
        },
    ),
    Change(
        "F.batch_norm",
        "remove_python",
        edits={
            _BATCH_NORM: "        self.out = F.batch_norm(x, self.running_mean, self.running_var, self.gamma, self.beta,\n"
            "                                self.training, self.momentum, self.eps)\n        return self.out\n"
        },
    ),
    Change(
        "update with foreach",
        "foreach_optimizer",
        edits={
            "    for p in parameters:\n        p.data += -lr * p.grad\n": "    with torch.no_grad():\n"
            "        torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-lr)\n"
        },
    ),
    Change("one thread", "threads", edits={"random.seed(42)": "torch.set_num_threads(1)\nrandom.seed(42)"}),
    Change("batches of 128", "larger_batch", edits={"batch_size = 32\n": "batch_size = 128\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="dev_loss", seconds=10)
