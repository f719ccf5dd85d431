"""Action recognition from skeletons in videos: a small ST-GCN, and a feeder that augments clips of a mapped array."""

import pickle
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Clips of 25 joints of two people in 80 frames; each action is a motion of its own frequency."""
    rng = np.random.default_rng(0)
    count, frames = scaled(320, scale, 32), 80
    labels = rng.integers(20, size=count)
    phase = np.arange(frames)[None] * (0.05 + 0.02 * labels[:, None])
    data = rng.normal(size=(count, 3, 1, 25, 2)) + 0.05 * rng.normal(size=(count, 3, frames, 25, 2))
    data += 0.3 * np.sin(phase)[:, None, :, None, None]
    np.save("train_data.npy", data.astype(np.float32))
    with Path("train_label.pkl").open("wb") as file:
        pickle.dump(([f"S{i:05d}" for i in range(count)], labels.tolist()), file)
    return {}


CELL = """
import pickle
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

num_class, window_size, batch_size, num_epoch, base_lr = 20, 64, 8, 1, 0.01

def random_choose(data_numpy, size):
    C, T, V, M = data_numpy.shape
    begin = random.randint(0, T - size)
    return data_numpy[:, begin:begin + size, :, :]

def random_move(data_numpy, angle_candidate=[-10., -5., 0., 5., 10.], scale_candidate=[0.9, 1.0, 1.1],
                transform_candidate=[-0.2, -0.1, 0.0, 0.1, 0.2], move_time_candidate=[1]):
    C, T, V, M = data_numpy.shape
    move_time = random.choice(move_time_candidate)
    node = np.append(np.arange(0, T, T * 1.0 / move_time).round().astype(int), T)
    num_node = len(node)
    A = np.random.choice(angle_candidate, num_node)
    S = np.random.choice(scale_candidate, num_node)
    T_x = np.random.choice(transform_candidate, num_node)
    T_y = np.random.choice(transform_candidate, num_node)
    a, s, t_x, t_y = np.zeros(T), np.zeros(T), np.zeros(T), np.zeros(T)
    for i in range(num_node - 1):
        a[node[i]:node[i + 1]] = np.linspace(A[i], A[i + 1], node[i + 1] - node[i]) * np.pi / 180
        s[node[i]:node[i + 1]] = np.linspace(S[i], S[i + 1], node[i + 1] - node[i])
        t_x[node[i]:node[i + 1]] = np.linspace(T_x[i], T_x[i + 1], node[i + 1] - node[i])
        t_y[node[i]:node[i + 1]] = np.linspace(T_y[i], T_y[i + 1], node[i + 1] - node[i])
    theta = np.array([[np.cos(a) * s, -np.sin(a) * s], [np.sin(a) * s, np.cos(a) * s]])
    for i_frame in range(T):
        xy = data_numpy[0:2, i_frame, :, :]
        new_xy = np.dot(theta[:, :, i_frame], xy.reshape(2, -1))
        new_xy[0] += t_x[i_frame]
        new_xy[1] += t_y[i_frame]
        data_numpy[0:2, i_frame, :, :] = new_xy.reshape(2, V, M)
    return data_numpy

class Feeder(torch.utils.data.Dataset):
    def __init__(self, data_path, label_path):
        with open(label_path, 'rb') as f:
            self.sample_name, self.label = pickle.load(f)
        self.data = np.load(data_path, mmap_mode='r')

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        data_numpy = np.array(self.data[index])
        data_numpy = random_choose(data_numpy, window_size)
        data_numpy = random_move(data_numpy)
        return data_numpy, self.label[index]

def adjacency():
    pairs = [(1, 2), (2, 21), (3, 21), (4, 3), (5, 21), (6, 5), (7, 6), (8, 7), (9, 21), (10, 9), (11, 10), (12, 11),
             (13, 1), (14, 13), (15, 14), (16, 15), (17, 1), (18, 17), (19, 18), (20, 19), (22, 23), (23, 8), (24, 25),
             (25, 12)]
    A = np.zeros((3, 25, 25))
    A[0] = np.eye(25)
    for i, j in pairs:
        A[1, j - 1, i - 1] = 1
        A[2, i - 1, j - 1] = 1
    A = A / np.maximum(A.sum(1, keepdims=True), 1)
    return torch.tensor(A, dtype=torch.float32)

class st_gcn(nn.Module):
    def __init__(self, in_channels, out_channels, stride=1, dropout=0.1, residual=True):
        super().__init__()
        self.out_channels = out_channels
        self.gcn = nn.Conv2d(in_channels, out_channels * 3, 1)
        self.tcn = nn.Sequential(
            nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, (9, 1), (stride, 1), (4, 0)),
            nn.BatchNorm2d(out_channels), nn.Dropout(dropout, inplace=True))
        if not residual:
            self.residual = lambda x: 0
        elif in_channels == out_channels and stride == 1:
            self.residual = lambda x: x
        else:
            self.residual = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, (stride, 1)),
                                          nn.BatchNorm2d(out_channels))

    def forward(self, x, A):
        res = self.residual(x)
        x = self.gcn(x)
        n, kc, t, v = x.size()
        x = x.view(n, 3, self.out_channels, t, v)
        x = torch.einsum('nkctv,kvw->nctw', (x, A))
        return F.relu(self.tcn(x.contiguous()) + res)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('A', adjacency())
        self.data_bn = nn.BatchNorm1d(3 * 25)
        self.st_gcn_networks = nn.ModuleList((
            st_gcn(3, 16, residual=False), st_gcn(16, 16), st_gcn(16, 16),
            st_gcn(16, 32, stride=2), st_gcn(32, 32), st_gcn(32, 64, stride=2)))
        self.edge_importance = nn.ParameterList([nn.Parameter(torch.ones(3, 25, 25)) for _ in self.st_gcn_networks])
        self.fcn = nn.Conv2d(64, num_class, kernel_size=1)

    def forward(self, x):
        N, C, T, V, M = x.size()
        x = x.permute(0, 4, 3, 1, 2).contiguous().view(N * M, V * C, T)
        x = self.data_bn(x)
        x = x.view(N, M, V, C, T).permute(0, 1, 3, 4, 2).contiguous().view(N * M, C, T, V)
        for gcn, importance in zip(self.st_gcn_networks, self.edge_importance):
            x = gcn(x, self.A * importance)
        x = F.avg_pool2d(x, x.size()[2:])
        x = x.view(N, M, -1, 1, 1).mean(dim=1)
        return self.fcn(x).view(N, -1)

dev = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
loader = torch.utils.data.DataLoader(Feeder('train_data.npy', 'train_label.pkl'), batch_size=batch_size,
                                     shuffle=True, drop_last=True)
model = Model().to(dev)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=base_lr, momentum=0.9, nesterov=True, weight_decay=1e-4)

n_clips, loss_value = 0, []
for epoch in range(num_epoch):
    model.train()
    for data, label in loader:
        data = data.float().to(dev)
        label = label.long().to(dev)
        output = model(data)
        loss = loss_fn(output, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_value.append(loss.data.item())
        n_clips += data.size(0)
        if len(loss_value) % 10 == 0:
            print('Iter {} Done. | loss: {:.4f} | lr: {:.6f}'.format(len(loss_value), loss_value[-1], base_lr))
    print('mean_loss', np.mean(loss_value))
"""

CHANGES = (
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output = model(data)\n": "        with torch.autocast(dev.type, dtype=torch.bfloat16):\n"
            "            output = model(data)\n        output = output.float()\n"
        },
    ),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change(
        "moves without a loop over frames",
        "vectorize_items",
        edits={
            "    for i_frame in range(T):\n        xy = data_numpy[0:2, i_frame, :, :]\n"
            "        new_xy = np.dot(theta[:, :, i_frame], xy.reshape(2, -1))\n"
            "        new_xy[0] += t_x[i_frame]\n        new_xy[1] += t_y[i_frame]\n"
            "        data_numpy[0:2, i_frame, :, :] = new_xy.reshape(2, V, M)\n": "    new_xy = np.einsum("
            "'ijt,jtvm->itvm', theta.astype(np.float32), data_numpy[0:2])\n"
            "    data_numpy[0:2] = new_xy + np.stack([t_x, t_y])[:, :, None, None]\n"
        },
    ),
    Change("batches of 32", "larger_batch", edits={"base_lr = 20, 64, 8, 1,": "base_lr = 20, 64, 32, 1,"}),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = Model().to(dev)": "model = Model().to(dev, memory_format=torch.channels_last)",
            ".contiguous().view(N * M, C, T, V)\n": ".reshape(N * M, C, T, V).contiguous("
            "memory_format=torch.channels_last)\n",
            "        x = x.view(n, 3, self.out_channels, t, v)\n": ""
            "        x = x.unflatten(1, (3, self.out_channels))\n",
            "self.tcn(x.contiguous())": "self.tcn(x.contiguous(memory_format=torch.channels_last))",
            "        x = x.view(N, M, -1, 1, 1).mean(dim=1)\n": "        x = x.reshape(N, M, -1, 1, 1).mean(dim=1)\n",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_clips", seconds=6)
