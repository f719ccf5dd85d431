"""DeepAR whose recurrent network advances hour by hour in Python, with a likelihood per hour, as in DeepAR repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Windows of the consumption of many customers, with calendar covariates, in NumPy files."""
    rng = np.random.default_rng(0)
    windows, hours = scaled(3584, scale, 256), 72
    start = rng.integers(0, 168, (windows, 1))
    time = start + np.arange(hours + 1)
    load = 1 + 0.5 * np.sin(2 * np.pi * time / 24) + 0.1 * rng.normal(size=time.shape)
    covariates = np.stack([time % 24 / 23, time // 24 % 7 / 6, np.arange(hours + 1) / hours + 0 * time], 2)
    x = np.concatenate([load[:, :-1, None], covariates[:, 1:]], 2).astype(np.float32)
    np.save("train_data_elect.npy", x)
    np.save("train_series_elect.npy", rng.integers(0, 370, windows))
    np.save("train_label_elect.npy", load[:, 1:].astype(np.float32))
    return {}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader

batch_size, train_window, num_class, cov_dim, embedding_dim, lstm_hidden_dim, lstm_layers = 64, 72, 370, 3, 20, 40, 2

class TrainDataset(Dataset):
    def __init__(self, data_name):
        self.data = np.load(f'train_data_{data_name}.npy')
        self.series = np.load(f'train_series_{data_name}.npy')
        self.label = np.load(f'train_label_{data_name}.npy')

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], int(self.series[index]), self.label[index]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(num_class, embedding_dim)
        self.lstm = nn.LSTM(1 + cov_dim + embedding_dim, lstm_hidden_dim, lstm_layers, dropout=0.1)
        self.distribution_mu = nn.Linear(lstm_hidden_dim * lstm_layers, 1)
        self.distribution_presigma = nn.Linear(lstm_hidden_dim * lstm_layers, 1)
        self.distribution_sigma = nn.Softplus()

    def forward(self, x, idx, hidden, cell):
        onehot_embed = self.embedding(idx)
        lstm_input = torch.cat((x, onehot_embed), dim=2)
        output, (hidden, cell) = self.lstm(lstm_input, (hidden, cell))
        hidden_permute = hidden.permute(1, 2, 0).contiguous().view(hidden.shape[1], -1)
        pre_sigma = self.distribution_presigma(hidden_permute)
        mu = self.distribution_mu(hidden_permute)
        sigma = self.distribution_sigma(pre_sigma)
        return torch.squeeze(mu), torch.squeeze(sigma), hidden, cell

    def init_hidden(self, input_size):
        return torch.zeros(lstm_layers, input_size, lstm_hidden_dim)

def loss_fn(mu, sigma, labels):
    zero_index = (labels != 0)
    distribution = torch.distributions.normal.Normal(mu[zero_index], sigma[zero_index])
    likelihood = distribution.log_prob(labels[zero_index])
    return -torch.mean(likelihood)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_loader = DataLoader(TrainDataset('elect'), batch_size=batch_size, shuffle=True)
model = Net().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)

n_windows = 0
for epoch in range(1):
    model.train()
    loss_epoch = np.zeros(len(train_loader))
    for i, (train_batch, idx, labels_batch) in enumerate(train_loader):
        optimizer.zero_grad()
        batch_len = train_batch.shape[0]
        train_batch = train_batch.permute(1, 0, 2).to(torch.float32).to(device)
        labels_batch = labels_batch.permute(1, 0).to(torch.float32).to(device)
        idx = idx.unsqueeze(0).to(device)
        loss = torch.zeros(1, device=device)
        hidden = model.init_hidden(batch_len).to(device)
        cell = model.init_hidden(batch_len).to(device)
        for t in range(train_window):
            mu, sigma, hidden, cell = model(train_batch[t].unsqueeze_(0).clone(), idx, hidden, cell)
            loss += loss_fn(mu, sigma, labels_batch[t])
        loss.backward()
        optimizer.step()
        loss = loss.item() / train_window
        loss_epoch[i] = loss
        n_windows += batch_len
        if i % 10 == 0:
            print(f'epoch {epoch} train_loss: {loss:.4f}')
"""

_STEPS = """        for t in range(train_window):
            mu, sigma, hidden, cell = model(train_batch[t].unsqueeze_(0).clone(), idx, hidden, cell)
            loss += loss_fn(mu, sigma, labels_batch[t])
"""

CHANGES = (
    Change(
        "a layer of the window at once",
        "remove_python",
        edits={
            "        self.lstm = nn.LSTM(1 + cov_dim + embedding_dim, lstm_hidden_dim, lstm_layers, dropout=0.1)\n": ""
            "        self.lstms = nn.ModuleList([nn.LSTM(1 + cov_dim + embedding_dim, lstm_hidden_dim), "
            "nn.LSTM(lstm_hidden_dim, lstm_hidden_dim)])\n        self.dropout = nn.Dropout(0.1)\n",
            """        onehot_embed = self.embedding(idx)
        lstm_input = torch.cat((x, onehot_embed), dim=2)
        output, (hidden, cell) = self.lstm(lstm_input, (hidden, cell))
        hidden_permute = hidden.permute(1, 2, 0).contiguous().view(hidden.shape[1], -1)
""": """        onehot_embed = self.embedding(idx).expand(x.shape[0], -1, -1)
        first, _ = self.lstms[0](torch.cat((x, onehot_embed), dim=2))
        second, _ = self.lstms[1](self.dropout(first))
        hidden_permute = torch.stack((first, second), dim=3).flatten(2)
""",
            _STEPS: """        mu, sigma, hidden, cell = model(train_batch, idx, hidden, cell)
        loss = loss_fn(mu, sigma, labels_batch) * train_window
""",
        },
    ),
    Change(
        "likelihood once per batch",
        "remove_python",
        edits={
            _STEPS: """        mus, sigmas = [], []
        for t in range(train_window):
            mu, sigma, hidden, cell = model(train_batch[t].unsqueeze_(0).clone(), idx, hidden, cell)
            mus.append(mu)
            sigmas.append(sigma)
        loss = loss_fn(torch.stack(mus), torch.stack(sigmas), labels_batch) * train_window
"""
        },
    ),
    Change("batches of 256", "larger_batch", edits={"lstm_layers = 64, 72": "lstm_layers = 256, 72"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("one thread", "threads", edits={"n_windows = 0\n": "n_windows = 0\ntorch.set_num_threads(1)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_windows", loss="float(loss)", seconds=6)
