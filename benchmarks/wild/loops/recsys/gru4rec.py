"""GRU4Rec with session-parallel batches from a click log: one-hot inputs, and scores of all items."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A log of clicks with popular items, as a CSV file, and the catalogue."""
    rng = np.random.default_rng(0)
    n_items, catalogue = 8000, np.arange(8000) * 7 + 100001
    pd.DataFrame({"ItemID": catalogue}).to_csv("items.csv", index=False)
    for name, sessions in (("train", 60 + scaled(2200, scale)), ("valid", 60 + scaled(60, scale))):
        lengths = 2 + rng.geometric(0.2, sessions)
        session = np.repeat(np.arange(sessions), lengths)
        start = rng.integers(0, n_items, sessions)
        items = (start[session] * (rng.random(len(session)) < 0.5) + n_items * rng.random(len(session)) ** 3) % n_items
        clicks = {"SessionID": session, "ItemID": catalogue[items.astype(int)], "Time": rng.random(len(session))}
        pd.DataFrame(clicks).to_csv(f"{name}.csv", index=False)
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

batch_size, hidden_size, n_epochs, lr = 50, 100, 1, 0.05

class Dataset:
    def __init__(self, path, itemmap, session_key='SessionID', item_key='ItemID', time_key='Time'):
        self.df = pd.read_csv(path, dtype={session_key: int, item_key: int, time_key: float})
        self.session_key = session_key
        self.df = pd.merge(self.df, itemmap, on=item_key, how='inner')
        self.df.sort_values([session_key, time_key], inplace=True)
        self.click_offsets = self.get_click_offset()
        self.session_idx_arr = np.arange(self.df[session_key].nunique())

    def get_click_offset(self):
        offsets = np.zeros(self.df[self.session_key].nunique() + 1, dtype=np.int64)
        offsets[1:] = self.df.groupby(self.session_key).size().cumsum()
        return offsets

class DataLoader:
    '''Session-parallel mini-batches'''
    def __init__(self, dataset, batch_size):
        self.dataset = dataset
        self.batch_size = batch_size

    def __iter__(self):
        df = self.dataset.df
        click_offsets = self.dataset.click_offsets
        session_idx_arr = self.dataset.session_idx_arr
        iters = np.arange(self.batch_size)
        maxiter = iters.max()
        start = click_offsets[session_idx_arr[iters]]
        end = click_offsets[session_idx_arr[iters] + 1]
        mask = []  # indicator for the sessions to be terminated
        finished = False
        while not finished:
            minlen = (end - start).min()
            idx_target = df.item_idx.values[start]
            for i in range(minlen - 1):
                idx_input = idx_target
                idx_target = df.item_idx.values[start + i + 1]
                input = torch.LongTensor(idx_input)
                target = torch.LongTensor(idx_target)
                yield input, target, mask
                mask = []
            start = start + (minlen - 1)
            mask = np.arange(len(iters))[(end - start) <= 1]
            for idx in mask:
                maxiter += 1
                if maxiter >= len(click_offsets) - 1:
                    finished = True
                    break
                iters[idx] = maxiter
                start[idx] = click_offsets[session_idx_arr[maxiter]]
                end[idx] = click_offsets[session_idx_arr[maxiter] + 1]

class GRU4REC(nn.Module):
    def __init__(self, input_size, hidden_size, output_size, num_layers=1, batch_size=50):
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_size = batch_size
        self.onehot_buffer = torch.zeros(batch_size, input_size)
        self.gru = nn.GRU(input_size, hidden_size, num_layers)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.final_activation = nn.Tanh()

    def onehot_encode(self, input):
        self.onehot_buffer.zero_()
        index = input.view(-1, 1)
        return self.onehot_buffer.scatter_(1, index, 1).clone()

    def forward(self, input, hidden):
        embedded = self.onehot_encode(input).unsqueeze(0)
        output, hidden = self.gru(embedded, hidden)
        output = output.view(-1, output.size(-1))
        logit = self.final_activation(self.h2o(output))
        return logit, hidden

    def init_hidden(self):
        return torch.zeros(self.num_layers, self.batch_size, self.hidden_size)

def bpr_max(logit):
    logit_softmax = F.softmax(logit, dim=1)
    diff = logit.diag().view(-1, 1).expand_as(logit) - logit
    return -torch.log(torch.mean(logit_softmax * torch.sigmoid(diff)))

def reset_hidden(hidden, mask):
    if len(mask) != 0:
        hidden[:, mask, :] = 0
    return hidden

def evaluate(model, dataset, k=20):
    model.eval()
    recalls, mrrs = [], []
    with torch.no_grad():
        hidden = model.init_hidden()
        for input, target, mask in DataLoader(dataset, batch_size):
            hidden = reset_hidden(hidden, mask)
            logit, hidden = model(input, hidden)
            _, indices = torch.topk(logit, k, -1)
            hits = (target.view(-1, 1).expand_as(indices) == indices).nonzero()
            recalls.append(len(hits) / target.size(0))
            mrrs.append((1. / (hits[:, -1] + 1).float()).sum().item() / target.size(0))
    return np.mean(recalls), np.mean(mrrs)

itemmap = pd.read_csv('items.csv')
itemmap['item_idx'] = np.arange(len(itemmap))
train_data, valid_data = Dataset('train.csv', itemmap), Dataset('valid.csv', itemmap)
model = GRU4REC(len(itemmap), hidden_size, len(itemmap), batch_size=batch_size)
optimizer = torch.optim.Adagrad(model.parameters(), lr=lr)

n_clicks = 0
for epoch in range(n_epochs):
    model.train()
    losses = []
    hidden = model.init_hidden()
    for ii, (input, target, mask) in tqdm(enumerate(DataLoader(train_data, batch_size)), miniters=1000):
        optimizer.zero_grad()
        hidden = reset_hidden(hidden, mask).detach()
        logit, hidden = model(input, hidden)
        # output sampling
        logit_sampled = logit[:, target.view(-1)]
        loss = bpr_max(logit_sampled)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        n_clicks += len(input)
    recall, mrr = evaluate(model, valid_data)
    print(f'Epoch: {epoch}, train loss: {np.mean(losses):.4f}, recall: {recall:.4f}, mrr: {mrr:.4f}')
"""

_SELECTED = {
    "    def forward(self, input, hidden):": "    def forward(self, input, hidden, items=None):",
    "        logit = self.final_activation(self.h2o(output))\n": "        if items is None:\n"
    "            logit = self.h2o(output)\n"
    "        else:\n"
    "            logit = F.linear(output, self.h2o.weight[items], self.h2o.bias[items])\n"
    "        logit = self.final_activation(logit)\n",
    "        logit, hidden = model(input, hidden)\n        # output sampling\n"
    "        logit_sampled = logit[:, target.view(-1)]\n": ""
    "        logit_sampled, hidden = model(input, hidden, target)\n",
}
_LOOKUP = {
    "        self.gru = nn.GRU(input_size, hidden_size, num_layers)\n": "        bound = hidden_size ** -0.5\n"
    "        self.gates = nn.Embedding(input_size, 3 * hidden_size)\n"
    "        nn.init.uniform_(self.gates.weight, -bound, bound)\n"
    "        self.gates_bias = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))\n"
    "        self.hh = nn.Linear(hidden_size, 3 * hidden_size)\n",
    "        embedded = self.onehot_encode(input).unsqueeze(0)\n"
    "        output, hidden = self.gru(embedded, hidden)\n"
    "        output = output.view(-1, output.size(-1))\n": ""
    "        r, z, n = (self.gates(input) + self.gates_bias).chunk(3, 1)\n"
    "        r_h, z_h, n_h = self.hh(hidden[0]).chunk(3, 1)\n"
    "        z = torch.sigmoid(z + z_h)\n"
    "        n = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)\n"
    "        output = n + z * (hidden[0] - n)\n"
    "        hidden = output.unsqueeze(0)\n",
}

CHANGES = (
    Change("scores of the sampled items", "selected_positions", edits=_SELECTED),
    Change("rows of the weights instead of one-hot inputs", "other", edits=_LOOKUP),
    Change(
        "rows of both layers, with sparse gradients",
        "sparse_gradients",
        edits={
            old: new.replace(
                "nn.Embedding(input_size, 3 * hidden_size)", "nn.Embedding(input_size, 3 * hidden_size, sparse=True)"
            ).replace("self.h2o.weight[items]", "F.embedding(items, self.h2o.weight, sparse=True)")
            for old, new in {**_LOOKUP, **_SELECTED}.items()
        },
    ),
    Change(
        "fused Adagrad",
        "fused_optimizer",
        edits={"model.parameters(), lr=lr)": "model.parameters(), lr=lr, fused=True)"},
    ),
    Change(
        "foreach Adagrad",
        "foreach_optimizer",
        edits={"model.parameters(), lr=lr)": "model.parameters(), lr=lr, foreach=True)"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logit, hidden = model(input, hidden)\n        # output sampling\n": ""
            "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            logit, hidden = model(input, hidden)\n        logit, hidden = logit.float(), hidden.float()\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_clicks", seconds=6)
