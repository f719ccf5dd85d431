"""Next clicks from the graph of each session, its adjacency built in NumPy, as in gated session graph repositories."""

import pickle
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Sessions of clicks that stay within a category and return to earlier items; every prefix is a sample."""
    rng = np.random.default_rng(0)
    items, categories = 1200, 40
    category = np.sort(rng.integers(0, categories, items))
    members = [np.flatnonzero(category == c) + 1 for c in range(categories)]

    def session() -> list[int]:
        length = int(np.clip(2 + rng.geometric(0.24), 2, 30))
        here = int(rng.integers(categories))
        clicks: list[int] = []
        while len(clicks) < length:
            if len(clicks) > 2 and rng.random() < 0.18:
                clicks.append(clicks[int(rng.integers(len(clicks)))])
                continue
            if rng.random() < 0.12:
                here = (here + 1) % categories
            group = members[here]
            clicks.append(int(group[min(int(rng.exponential(len(group) / 4)), len(group) - 1)]))
        return clicks

    def prefixes(count: int) -> tuple[list[list[int]], list[int]]:
        inputs: list[list[int]] = []
        targets: list[int] = []
        while len(inputs) < count:
            clicks = session()
            for end in range(len(clicks) - 1, 0, -1):
                inputs.append(clicks[:end])
                targets.append(clicks[end])
        return inputs[:count], targets[:count]

    folder = Path("datasets/shop")
    folder.mkdir(parents=True)
    (folder / "train.txt").write_bytes(pickle.dumps(prefixes(scaled(6800, scale, 400))))
    (folder / "test.txt").write_bytes(pickle.dumps(prefixes(scaled(1200, scale, 100))))
    return {"n_node": items + 1}


CELL = """
import argparse
import datetime
import math
import pickle
import time
import numpy as np
import torch
from torch import nn
from torch.nn import Module, Parameter
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument('--dataset', default='shop', help='dataset name')
parser.add_argument('--batchSize', type=int, default=100, help='input batch size')
parser.add_argument('--hiddenSize', type=int, default=100, help='hidden state size')
parser.add_argument('--epoch', type=int, default=3, help='the number of epochs to train for')
parser.add_argument('--lr', type=float, default=0.001, help='learning rate')
parser.add_argument('--lr_dc', type=float, default=0.1, help='learning rate decay rate')
parser.add_argument('--lr_dc_step', type=int, default=3, help='the number of steps after which the rate decays')
parser.add_argument('--l2', type=float, default=1e-5, help='l2 penalty')
parser.add_argument('--step', type=int, default=1, help='gnn propagation steps')
parser.add_argument('--patience', type=int, default=10, help='epochs to wait before early stop')
parser.add_argument('--nonhybrid', action='store_true', help='only use the global preference to predict')
opt = parser.parse_args([])
print(opt)


def data_masks(all_usr_pois, item_tail):
    us_lens = [len(upois) for upois in all_usr_pois]
    len_max = max(us_lens)
    us_pois = [upois + item_tail * (len_max - le) for upois, le in zip(all_usr_pois, us_lens)]
    us_msks = [[1] * le + [0] * (len_max - le) for le in us_lens]
    return us_pois, us_msks, len_max


class Data():
    def __init__(self, data, shuffle=False):
        inputs, mask, len_max = data_masks(data[0], [0])
        self.inputs = np.asarray(inputs)
        self.mask = np.asarray(mask)
        self.len_max = len_max
        self.targets = np.asarray(data[1])
        self.length = len(self.inputs)
        self.shuffle = shuffle

    def generate_batch(self, batch_size):
        if self.shuffle:
            shuffled_arg = np.arange(self.length)
            np.random.shuffle(shuffled_arg)
            self.inputs = self.inputs[shuffled_arg]
            self.mask = self.mask[shuffled_arg]
            self.targets = self.targets[shuffled_arg]
        n_batch = int(math.ceil(self.length / batch_size))
        return np.array_split(np.arange(self.length), n_batch)

    def get_slice(self, i):
        inputs, mask, targets = self.inputs[i], self.mask[i], self.targets[i]
        items, n_node, A, alias_inputs = [], [], [], []
        for u_input in inputs:
            n_node.append(len(np.unique(u_input)))
        max_n_node = np.max(n_node)
        for u_input in inputs:
            node = np.unique(u_input)
            items.append(node.tolist() + (max_n_node - len(node)) * [0])
            u_A = np.zeros((max_n_node, max_n_node))
            for j in np.arange(len(u_input) - 1):
                if u_input[j + 1] == 0:
                    break
                u = np.where(node == u_input[j])[0][0]
                v = np.where(node == u_input[j + 1])[0][0]
                u_A[u][v] = 1
            u_sum_in = np.sum(u_A, 0)
            u_sum_in[np.where(u_sum_in == 0)] = 1
            u_A_in = np.divide(u_A, u_sum_in)
            u_sum_out = np.sum(u_A, 1)
            u_sum_out[np.where(u_sum_out == 0)] = 1
            u_A_out = np.divide(u_A.transpose(), u_sum_out)
            A.append(np.concatenate([u_A_in, u_A_out]).transpose())
            alias_inputs.append([np.where(node == j)[0][0] for j in u_input])
        return alias_inputs, A, items, mask, targets


class GNN(Module):
    def __init__(self, hidden_size, step=1):
        super(GNN, self).__init__()
        self.step = step
        self.hidden_size = hidden_size
        self.input_size = hidden_size * 2
        self.gate_size = 3 * hidden_size
        self.w_ih = Parameter(torch.Tensor(self.gate_size, self.input_size))
        self.w_hh = Parameter(torch.Tensor(self.gate_size, self.hidden_size))
        self.b_ih = Parameter(torch.Tensor(self.gate_size))
        self.b_hh = Parameter(torch.Tensor(self.gate_size))
        self.b_iah = Parameter(torch.Tensor(self.hidden_size))
        self.b_oah = Parameter(torch.Tensor(self.hidden_size))
        self.linear_edge_in = nn.Linear(self.hidden_size, self.hidden_size, bias=True)
        self.linear_edge_out = nn.Linear(self.hidden_size, self.hidden_size, bias=True)

    def GNNCell(self, A, hidden):
        n = A.shape[1]
        input_in = torch.matmul(A[:, :, :n], self.linear_edge_in(hidden)) + self.b_iah
        input_out = torch.matmul(A[:, :, n:2 * n], self.linear_edge_out(hidden)) + self.b_oah
        inputs = torch.cat([input_in, input_out], 2)
        gi = F.linear(inputs, self.w_ih, self.b_ih)
        gh = F.linear(hidden, self.w_hh, self.b_hh)
        i_r, i_i, i_n = gi.chunk(3, 2)
        h_r, h_i, h_n = gh.chunk(3, 2)
        resetgate = torch.sigmoid(i_r + h_r)
        inputgate = torch.sigmoid(i_i + h_i)
        newgate = torch.tanh(i_n + resetgate * h_n)
        return newgate + inputgate * (hidden - newgate)

    def forward(self, A, hidden):
        for i in range(self.step):
            hidden = self.GNNCell(A, hidden)
        return hidden


class SessionGraph(Module):
    def __init__(self, opt, n_node):
        super(SessionGraph, self).__init__()
        self.hidden_size = opt.hiddenSize
        self.n_node = n_node
        self.batch_size = opt.batchSize
        self.nonhybrid = opt.nonhybrid
        self.embedding = nn.Embedding(self.n_node, self.hidden_size)
        self.gnn = GNN(self.hidden_size, step=opt.step)
        self.linear_one = nn.Linear(self.hidden_size, self.hidden_size, bias=True)
        self.linear_two = nn.Linear(self.hidden_size, self.hidden_size, bias=True)
        self.linear_three = nn.Linear(self.hidden_size, 1, bias=False)
        self.linear_transform = nn.Linear(self.hidden_size * 2, self.hidden_size, bias=True)
        self.loss_function = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.parameters(), lr=opt.lr, weight_decay=opt.l2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=opt.lr_dc_step, gamma=opt.lr_dc)
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            weight.data.uniform_(-stdv, stdv)

    def compute_scores(self, hidden, mask):
        # the last click of each session
        ht = hidden[torch.arange(mask.shape[0]).long(), torch.sum(mask, 1) - 1]
        q1 = self.linear_one(ht).view(ht.shape[0], 1, ht.shape[1])
        q2 = self.linear_two(hidden)
        alpha = self.linear_three(torch.sigmoid(q1 + q2))
        a = torch.sum(alpha * hidden * mask.view(mask.shape[0], -1, 1).float(), 1)
        if not self.nonhybrid:
            a = self.linear_transform(torch.cat([a, ht], 1))
        b = self.embedding.weight[1:]
        return torch.matmul(a, b.transpose(1, 0))

    def forward(self, inputs, A):
        hidden = self.embedding(inputs)
        return self.gnn(A, hidden)


def trans_to_cuda(variable):
    return variable.cuda() if torch.cuda.is_available() else variable


def trans_to_cpu(variable):
    return variable.cpu() if torch.cuda.is_available() else variable


def forward(model, i, data):
    alias_inputs, A, items, mask, targets = data.get_slice(i)
    alias_inputs = trans_to_cuda(torch.Tensor(alias_inputs).long())
    items = trans_to_cuda(torch.Tensor(items).long())
    A = trans_to_cuda(torch.Tensor(np.array(A)).float())
    mask = trans_to_cuda(torch.Tensor(mask).long())
    hidden = model(items, A)
    get = lambda i: hidden[i][alias_inputs[i]]
    seq_hidden = torch.stack([get(i) for i in torch.arange(len(alias_inputs)).long()])
    return targets, model.compute_scores(seq_hidden, mask)


def train_test(model, train_data, test_data):
    global seen
    print('start training: ', datetime.datetime.now())
    model.train()
    total_loss = 0.0
    slices = train_data.generate_batch(model.batch_size)
    for j, i in enumerate(slices):
        model.optimizer.zero_grad()
        targets, scores = forward(model, i, train_data)
        seen += len(targets)
        targets = trans_to_cuda(torch.Tensor(targets).long())
        loss = model.loss_function(scores, targets - 1)
        loss.backward()
        model.optimizer.step()
        total_loss += loss.item()
        if j % int(len(slices) / 5 + 1) == 0:
            print('[%d/%d] Loss: %.4f' % (j, len(slices), loss.item()))
    print('\\tLoss:\\t%.3f' % total_loss)
    model.scheduler.step()

    print('start predicting: ', datetime.datetime.now())
    model.eval()
    hit, mrr = [], []
    for i in test_data.generate_batch(model.batch_size):
        targets, scores = forward(model, i, test_data)
        sub_scores = scores.topk(20)[1]
        sub_scores = trans_to_cpu(sub_scores).detach().numpy()
        for score, target in zip(sub_scores, targets):
            hit.append(np.isin(target - 1, score))
            if len(np.where(score == target - 1)[0]) == 0:
                mrr.append(0)
            else:
                mrr.append(1 / (np.where(score == target - 1)[0][0] + 1))
    return np.mean(hit) * 100, np.mean(mrr) * 100, total_loss / len(slices)


train_data = Data(pickle.load(open('datasets/' + opt.dataset + '/train.txt', 'rb')), shuffle=True)
test_data = Data(pickle.load(open('datasets/' + opt.dataset + '/test.txt', 'rb')), shuffle=False)
model = trans_to_cuda(SessionGraph(opt, n_node))

start = time.time()
best_result, best_epoch = [0, 0], [0, 0]
bad_counter, seen = 0, 0
for epoch in range(opt.epoch):
    print('-------------------------------------------------------')
    print('epoch: ', epoch)
    hit, mrr, mean_loss = train_test(model, train_data, test_data)
    flag = 0
    if hit >= best_result[0]:
        best_result[0], best_epoch[0], flag = hit, epoch, 1
    if mrr >= best_result[1]:
        best_result[1], best_epoch[1], flag = mrr, epoch, 1
    print('Best Result:')
    print('\\tRecall@20:\\t%.4f\\tMRR@20:\\t%.4f\\tEpoch:\\t%d,\\t%d' % (*best_result, *best_epoch))
    bad_counter += 1 - flag
    if bad_counter >= opt.patience:
        break
print('-------------------------------------------------------')
print('Run time: %f s' % (time.time() - start))
"""

GRAPHS = CELL[CELL.index("        items, n_node, A, alias_inputs = [], [], [], []\n") : CELL.index("\n\nclass GNN(")]
VECTORIZED = """        # the distinct clicks of each row in order: one is new where it differs from its predecessor
        order = np.argsort(inputs, 1, kind='stable')
        ordered = np.take_along_axis(inputs, order, 1)
        rank = np.zeros_like(ordered)
        rank[:, 1:] = np.cumsum(ordered[:, 1:] != ordered[:, :-1], 1)
        alias_inputs = np.empty_like(rank)
        np.put_along_axis(alias_inputs, order, rank, 1)
        max_n_node = rank[:, -1].max() + 1
        items = np.zeros((len(inputs), max_n_node), dtype=np.int64)
        np.put_along_axis(items, rank, ordered, 1)
        edges = np.zeros((len(inputs), max_n_node, max_n_node), dtype=np.float32)
        row, j = np.nonzero(inputs[:, 1:])
        edges[row, alias_inputs[row, j], alias_inputs[row, j + 1]] = 1
        into = edges / np.maximum(edges.sum(1, keepdims=True), 1)
        out = edges.transpose(0, 2, 1) / np.maximum(edges.sum(2), 1)[:, None]
        A = np.concatenate([into, out], 1).transpose(0, 2, 1)
        return alias_inputs, A, items, mask, targets
"""
SLICE = "        inputs, mask, targets = self.inputs[i], self.mask[i], self.targets[i]\n"
GATHER = CELL[CELL.index("    get = lambda i:") : CELL.index("    return targets, model.compute_scores(")]
FORWARD = "        targets, scores = forward(model, i, train_data)\n"
LOSS = "        loss = model.loss_function(scores, targets - 1)\n"

CHANGES = (
    Change("graphs of a batch by NumPy", "remove_python", edits={GRAPHS: VECTORIZED}),
    Change(
        "clicks gathered in one call",
        "other",
        edits={GATHER: "    seq_hidden = hidden[torch.arange(len(hidden))[:, None], alias_inputs]\n"},
    ),
    Change(
        "padding to the longest session of the batch",
        "padding",
        edits={
            SLICE: SLICE + "        longest = mask.sum(1).max()\n"
            "        inputs, mask = inputs[:, :longest], mask[:, :longest]\n"
        },
    ),
    Change(
        "no gradients in the test",
        "no_grad",
        edits={
            "        targets, scores = forward(model, i, test_data)\n": ""
            "        with torch.no_grad():\n            targets, scores = forward(model, i, test_data)\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: "        with torch.autocast('cpu', dtype=torch.bfloat16):\n    " + FORWARD,
            LOSS: "        with torch.autocast('cpu', dtype=torch.bfloat16):\n    " + LOSS,
        },
    ),
    Change(
        "batches of 200",
        "larger_batch",
        edits={"'--batchSize', type=int, default=100": "'--batchSize', type=int, default=200"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=opt.l2)": "weight_decay=opt.l2, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="mean_loss", seconds=7)
