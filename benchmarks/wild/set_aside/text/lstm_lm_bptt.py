"""A word language model: an LSTM with truncated backpropagation and a tied bfloat16 softmax, updated by hand."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A corpus as one long tensor of word ids, frequent words first."""
    count = scaled(126_000, scale, 700) + 20
    return {"corpus": (torch.rand(count) ** 3 * 10_000).long()}


CELL = """
import math, time
import torch
import torch.nn as nn

ntokens, emsize, nlayers, bptt, lr, clip, log_interval = 10000, 128, 2, 35, 5.0, 0.25, 20

class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntokens, emsize)
        self.rnn = nn.LSTM(emsize, emsize, nlayers, dropout=0.2)
        self.decoder = nn.Linear(emsize, ntokens)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            decoded = self.decoder(self.drop(output))
        return decoded.view(-1, ntokens), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(nlayers, bsz, emsize), weight.new_zeros(nlayers, bsz, emsize))

def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()

def repackage_hidden(h):
    return tuple(v.detach() for v in h)

def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i:i + seq_len], source[i + 1:i + 1 + seq_len].view(-1)

batch_size = 20
train_data = batchify(corpus, batch_size)
model = RNNModel()
criterion = nn.CrossEntropyLoss()

model.train()
total_loss, words, norms, start_time = 0., 0, [], time.time()
hidden = model.init_hidden(batch_size)
for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
    data, targets = get_batch(train_data, i)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    total_loss += loss.item()
    words += targets.numel()
    if batch % log_interval == 0 and batch > 0:
        cur_loss = total_loss / log_interval
        elapsed = time.time() - start_time
        print(f'| {batch:5d} batches | ms/batch {elapsed * 1000 / log_interval:5.2f} | loss {cur_loss:5.2f} | '
              f'ppl {math.exp(min(cur_loss, 20)):8.2f} | grad norm {sum(norms[-log_interval:]) / log_interval:.3f}')
        total_loss, start_time = 0., time.time()
"""

CHANGES = (
    Change("float32 softmax layer", "precision", edits={"dtype=torch.bfloat16)": "enabled=False)"}),
    Change(
        "norm and loss stay tensors",
        "remove_syncs",
        edits={
            "norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))": "norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip))",
            "+= loss.item()": "+= loss.detach()",
        },
    ),
    Change(
        "one update of all tensors",
        "foreach_optimizer",
        edits={
            "    for p in model.parameters():\n        p.data.add_(p.grad, alpha=-lr)\n": "    with torch.no_grad():\n        params = list(model.parameters())\n"
            "        torch._foreach_add_(params, [p.grad for p in params], alpha=-lr)\n"
        },
    ),
    Change("one thread", "threads", edits={"batch_size = 20\n": "batch_size = 20\ntorch.set_num_threads(1)\n"}),
    Change("collector off", "gc", edits={"import math, time": "import gc, math, time\ngc.disable()"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="words", seconds=5)
