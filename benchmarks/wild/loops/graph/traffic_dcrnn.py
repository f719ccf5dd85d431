"""Traffic speeds of road sensors by a diffusion convolutional seq2seq GRU, in the style of a paper's repository."""

import pickle
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Speeds of 32 sensors every five minutes as train.npz, val.npz and test.npz, and adj_mx.pkl."""
    rng = np.random.default_rng(0)
    nodes, window = 32, 12
    counts = {"train": scaled(1280, scale, 64), "val": scaled(384, scale, 64), "test": 128}
    place = np.cumsum(rng.normal(0, 1, (nodes, 2)), axis=0)
    distance = np.linalg.norm(place[:, None] - place[None], axis=-1) * rng.uniform(0.8, 1.3, (nodes, nodes))
    adjacency = np.exp(-((distance / distance.std()) ** 2)).astype(np.float32)
    adjacency[adjacency < 0.1] = 0
    ids = [str(717400 + 3 * node) for node in range(nodes)]
    Path("data/sensor_graph").mkdir(parents=True)
    with Path("data/sensor_graph/adj_mx.pkl").open("wb") as file:
        pickle.dump([ids, {name: index for index, name in enumerate(ids)}, adjacency], file)

    steps = sum(counts.values()) + 2 * window
    mixing = adjacency / adjacency.sum(1, keepdims=True)
    time = (np.arange(steps) % 288) / 288
    rush = np.exp(-(((time - 0.33) / 0.05) ** 2)) + np.exp(-(((time - 0.73) / 0.07) ** 2))
    speed, state = np.zeros((steps, nodes)), np.zeros(nodes)
    weight = rng.uniform(10, 35, nodes)
    for step in range(steps):
        state = 0.92 * (mixing @ state) + rng.normal(0, 1.5, nodes)
        speed[step] = 62 - weight * rush[step] + state
    speed[rng.random(speed.shape) < 0.02] = 0  # a missing reading
    features = np.stack([speed, np.repeat(time[:, None], nodes, 1)], axis=-1)
    start = 0
    Path("data/METR").mkdir()
    for split, count in counts.items():
        rows = start + np.arange(count)[:, None] + np.arange(window)[None]
        np.savez_compressed(f"data/METR/{split}.npz", x=features[rows], y=features[rows + window])
        start += count
    return {}


CELL = '''
import logging
import pickle
import sys
import time

import numpy as np
import torch
import torch.nn as nn

device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')

config = {
    'data': {'dataset_dir': 'data/METR', 'graph_pkl_filename': 'data/sensor_graph/adj_mx.pkl', 'batch_size': 32,
             'test_batch_size': 64, 'val_batch_size': 64},
    'model': {'cl_decay_steps': 2000, 'filter_type': 'dual_random_walk', 'horizon': 12, 'input_dim': 2,
              'max_diffusion_step': 2, 'num_nodes': 32, 'num_rnn_layers': 1, 'output_dim': 1, 'rnn_units': 16,
              'seq_len': 12},
    'train': {'base_lr': 0.01, 'epochs': 2, 'epsilon': 1.0e-3, 'lr_decay_ratio': 0.1, 'max_grad_norm': 5,
              'steps': [20, 30, 40, 50], 'log_every': 1, 'patience': 50},
}


def get_logger(name):
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter('%(asctime)s - %(levelname)s - %(message)s'))
        logger.addHandler(handler)
    return logger


class StandardScaler:
    def __init__(self, mean, std):
        self.mean = mean
        self.std = std

    def transform(self, data):
        return (data - self.mean) / self.std

    def inverse_transform(self, data):
        return data * self.std + self.mean


class DataLoader:
    def __init__(self, xs, ys, batch_size, shuffle=False):
        """Batches of windows; the last sample is repeated until the batches are full."""
        num_padding = (batch_size - len(xs) % batch_size) % batch_size
        if num_padding:
            xs = np.concatenate([xs, np.repeat(xs[-1:], num_padding, axis=0)], axis=0)
            ys = np.concatenate([ys, np.repeat(ys[-1:], num_padding, axis=0)], axis=0)
        if shuffle:
            order = np.random.permutation(len(xs))
            xs, ys = xs[order], ys[order]
        self.xs, self.ys = xs, ys
        self.batch_size = batch_size
        self.num_batch = len(xs) // batch_size

    def get_iterator(self):
        for i in range(self.num_batch):
            yield (self.xs[i * self.batch_size:(i + 1) * self.batch_size],
                   self.ys[i * self.batch_size:(i + 1) * self.batch_size])


def load_dataset(dataset_dir, batch_size, val_batch_size, test_batch_size, **kwargs):
    data = {}
    for category in ['train', 'val', 'test']:
        cat_data = np.load(f'{dataset_dir}/{category}.npz')
        data['x_' + category] = cat_data['x']
        data['y_' + category] = cat_data['y']
    scaler = StandardScaler(mean=data['x_train'][..., 0].mean(), std=data['x_train'][..., 0].std())
    for category in ['train', 'val', 'test']:
        data['x_' + category][..., 0] = scaler.transform(data['x_' + category][..., 0])
        data['y_' + category][..., 0] = scaler.transform(data['y_' + category][..., 0])
    data['train_loader'] = DataLoader(data['x_train'], data['y_train'], batch_size, shuffle=True)
    data['val_loader'] = DataLoader(data['x_val'], data['y_val'], val_batch_size)
    data['test_loader'] = DataLoader(data['x_test'], data['y_test'], test_batch_size)
    data['scaler'] = scaler
    return data


def load_graph_data(pkl_filename):
    with open(pkl_filename, 'rb') as f:
        sensor_ids, sensor_id_to_ind, adj_mx = pickle.load(f)
    return sensor_ids, sensor_id_to_ind, adj_mx


def random_walk_matrix(adj_mx):
    degree = adj_mx.sum(axis=1)
    inverse = np.where(degree > 0, 1.0 / np.maximum(degree, 1e-12), 0.0)
    return (np.diag(inverse) @ adj_mx).astype(np.float32)


def masked_mae_loss(y_pred, y_true):
    mask = (y_true != 0).float()
    mask /= mask.mean()
    loss = torch.abs(y_pred - y_true) * mask
    loss[loss != loss] = 0
    return loss.mean()


class DCGRUCell(nn.Module):
    def __init__(self, input_dim, num_units, adj_mx, max_diffusion_step, num_nodes, filter_type='laplacian'):
        super().__init__()
        self._num_nodes = num_nodes
        self._num_units = num_units
        self._max_diffusion_step = max_diffusion_step
        matrices = [random_walk_matrix(adj_mx).T]
        if filter_type == 'dual_random_walk':
            matrices.append(random_walk_matrix(adj_mx.T).T)
        self._supports = [torch.from_numpy(np.ascontiguousarray(m)).to_sparse().to(device) for m in matrices]
        num_matrices = len(self._supports) * max_diffusion_step + 1
        self.gate = nn.Linear((input_dim + num_units) * num_matrices, 2 * num_units)
        self.candidate = nn.Linear((input_dim + num_units) * num_matrices, num_units)
        nn.init.xavier_normal_(self.gate.weight)
        nn.init.constant_(self.gate.bias, 1.0)
        nn.init.xavier_normal_(self.candidate.weight)
        nn.init.constant_(self.candidate.bias, 0.0)

    def _gconv(self, inputs, state, layer):
        """Diffusion convolution of (batch_size, num_nodes, dim) inputs and states."""
        batch_size = inputs.shape[0]
        x = torch.cat([inputs, state], dim=2)
        input_size = x.size(2)
        x0 = x.permute(1, 2, 0).reshape(self._num_nodes, input_size * batch_size)
        xs = [x0]
        for support in self._supports:
            x_prev, x_k = x0, torch.sparse.mm(support, x0)
            xs.append(x_k)
            for k in range(2, self._max_diffusion_step + 1):
                x_next = 2 * torch.sparse.mm(support, x_k) - x_prev
                xs.append(x_next)
                x_prev, x_k = x_k, x_next
        x = torch.stack(xs, dim=0)
        x = x.reshape(len(xs), self._num_nodes, input_size, batch_size)
        x = x.permute(3, 1, 2, 0).reshape(batch_size * self._num_nodes, input_size * len(xs))
        return layer(x).reshape(batch_size, self._num_nodes, -1)

    def forward(self, inputs, hx):
        value = torch.sigmoid(self._gconv(inputs, hx, self.gate))
        r, u = torch.split(value, self._num_units, dim=-1)
        c = torch.tanh(self._gconv(inputs, r * hx, self.candidate))
        return u * hx + (1.0 - u) * c


class DCRNNModel(nn.Module):
    def __init__(self, adj_mx, logger, **kwargs):
        super().__init__()
        self.num_nodes = kwargs['num_nodes']
        self.num_rnn_layers = kwargs['num_rnn_layers']
        self.rnn_units = kwargs['rnn_units']
        self.seq_len = kwargs['seq_len']
        self.horizon = kwargs['horizon']
        self.output_dim = kwargs['output_dim']
        self.cl_decay_steps = kwargs['cl_decay_steps']
        self._logger = logger
        cell = dict(num_units=self.rnn_units, adj_mx=adj_mx, max_diffusion_step=kwargs['max_diffusion_step'],
                    num_nodes=self.num_nodes, filter_type=kwargs['filter_type'])
        self.encoder = nn.ModuleList([DCGRUCell(kwargs['input_dim'] if i == 0 else self.rnn_units, **cell)
                                      for i in range(self.num_rnn_layers)])
        self.decoder = nn.ModuleList([DCGRUCell(self.output_dim if i == 0 else self.rnn_units, **cell)
                                      for i in range(self.num_rnn_layers)])
        self.projection = nn.Linear(self.rnn_units, self.output_dim)

    def _compute_sampling_threshold(self, batches_seen):
        return self.cl_decay_steps / (self.cl_decay_steps + np.exp(batches_seen / self.cl_decay_steps))

    def forward(self, inputs, labels=None, batches_seen=None):
        """inputs (seq_len, batch_size, num_nodes, input_dim), labels (horizon, batch_size, num_nodes, output_dim)."""
        batch_size = inputs.size(1)
        states = [torch.zeros(batch_size, self.num_nodes, self.rnn_units, device=inputs.device)
                  for _ in range(self.num_rnn_layers)]
        for t in range(self.seq_len):
            x = inputs[t]
            for i, layer in enumerate(self.encoder):
                states[i] = layer(x, states[i])
                x = states[i]

        x = torch.zeros(batch_size, self.num_nodes, self.output_dim, device=inputs.device)
        outputs = []
        for t in range(self.horizon):
            for i, layer in enumerate(self.decoder):
                states[i] = layer(x, states[i])
                x = states[i]
            output = self.projection(x.reshape(-1, self.rnn_units)).view(batch_size, self.num_nodes, self.output_dim)
            outputs.append(output)
            x = output
            if self.training and np.random.uniform(0, 1) < self._compute_sampling_threshold(batches_seen):
                x = labels[t]
        return torch.stack(outputs)


class DCRNNSupervisor:
    def __init__(self, adj_mx, **kwargs):
        self._train_kwargs = kwargs['train']
        self._model_kwargs = kwargs['model']
        self._logger = get_logger('dcrnn')
        self._data = load_dataset(**kwargs['data'])
        self.scaler = self._data['scaler']
        self.model = DCRNNModel(adj_mx, self._logger, **kwargs['model']).to(device)
        self.windows_seen = 0
        self._logger.info('Trainable parameters: %d', sum(p.numel() for p in self.model.parameters()))

    def _prepare_data(self, x, y):
        x = torch.from_numpy(x).float().permute(1, 0, 2, 3)
        y = torch.from_numpy(y).float().permute(1, 0, 2, 3)[..., :self._model_kwargs['output_dim']]
        return x.to(device), y.to(device)

    def _compute_loss(self, y_true, y_predicted):
        y_true = self.scaler.inverse_transform(y_true)
        y_predicted = self.scaler.inverse_transform(y_predicted)
        return masked_mae_loss(y_predicted, y_true)

    def evaluate(self, dataset='val'):
        with torch.no_grad():
            self.model = self.model.eval()
            losses, y_truths, y_preds = [], [], []
            for x, y in self._data[f'{dataset}_loader'].get_iterator():
                x, y = self._prepare_data(x, y)
                output = self.model(x)
                loss = self._compute_loss(y, output)
                losses.append(loss.item())
                y_truths.append(y.cpu())
                y_preds.append(output.cpu())
            y_truths = self.scaler.inverse_transform(np.concatenate(y_truths, axis=1))
            y_preds = self.scaler.inverse_transform(np.concatenate(y_preds, axis=1))
        return np.mean(losses), {'prediction': y_preds, 'truth': y_truths}

    def train(self, base_lr, steps, patience, epochs, lr_decay_ratio, log_every, epsilon, max_grad_norm):
        min_val_loss, wait = float('inf'), 0
        optimizer = torch.optim.Adam(self.model.parameters(), lr=base_lr, eps=epsilon)
        lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=steps, gamma=lr_decay_ratio)
        self._logger.info('Start training ...')
        batches_seen = 0
        for epoch_num in range(epochs):
            self.model = self.model.train()
            losses = []
            start_time = time.time()
            for x, y in self._data['train_loader'].get_iterator():
                optimizer.zero_grad()
                x, y = self._prepare_data(x, y)
                output = self.model(x, y, batches_seen)
                loss = self._compute_loss(y, output)
                losses.append(loss.item())
                self._logger.debug(loss.item())
                batches_seen += 1
                self.windows_seen += x.size(1)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_grad_norm)
                optimizer.step()
            lr_scheduler.step()
            self.train_loss = np.mean(losses)

            val_loss, _ = self.evaluate(dataset='val')
            end_time = time.time()
            if (epoch_num % log_every) == log_every - 1:
                self._logger.info('Epoch [%d/%d] (%d) train_mae: %.4f, val_mae: %.4f, lr: %.6f, %.1fs', epoch_num,
                                  epochs, batches_seen, self.train_loss, val_loss, lr_scheduler.get_last_lr()[0],
                                  end_time - start_time)
            if val_loss < min_val_loss:
                wait, min_val_loss = 0, val_loss
                torch.save({'model_state_dict': self.model.state_dict(), 'epoch': epoch_num}, 'dcrnn_best.tar')
            else:
                wait += 1
                if wait == patience:
                    self._logger.warning('Early stopping at epoch: %d', epoch_num)
                    break

        _, outputs = self.evaluate(dataset='test')
        for horizon in (2, 5, 11):
            prediction, truth = outputs['prediction'][horizon], outputs['truth'][horizon]
            mask = truth > 1e-3
            error = np.abs(prediction - truth)[mask]
            self._logger.info('Horizon %d: mae %.3f, rmse %.3f, mape %.3f', horizon + 1, error.mean(),
                              np.sqrt((error ** 2).mean()), (error / truth[mask]).mean())


sensor_ids, sensor_id_to_ind, adj_mx = load_graph_data(config['data']['graph_pkl_filename'])
supervisor = DCRNNSupervisor(adj_mx=adj_mx, **config)
supervisor.train(**config['train'])
'''

DIFFUSION = CELL[CELL.index("        xs = [x0]\n") : CELL.index("        x = x.permute(3, 1, 2, 0).reshape(")]
SUPPORTS = (
    "        self._supports = [torch.from_numpy(np.ascontiguousarray(m)).to_sparse().to(device) for m in matrices]\n"
)
DENSE = {
    SUPPORTS: SUPPORTS.replace(".to_sparse()", ""),
    "x_prev, x_k = x0, torch.sparse.mm(support, x0)": "x_prev, x_k = x0, support @ x0",
    "x_next = 2 * torch.sparse.mm(support, x_k) - x_prev": "x_next = 2 * (support @ x_k) - x_prev",
}

CHANGES = (
    Change(
        "all diffusion steps in one dense product",
        "other",
        edits={
            SUPPORTS: f"""{SUPPORTS.replace(".to_sparse()", "")}\
        powers = [torch.eye(num_nodes, device=device)]
        for support in self._supports:
            previous, power = powers[0], support
            powers.append(power)
            for k in range(2, max_diffusion_step + 1):
                previous, power = power, 2 * support @ power - previous
                powers.append(power)
        self._diffusion = torch.cat(powers)
""",
            DIFFUSION: "        xs = range(len(self._diffusion) // self._num_nodes)\n"
            "        x = (self._diffusion @ x0).view(len(xs), self._num_nodes, input_size, batch_size)\n",
        },
    ),
    Change("dense supports", "other", edits=DENSE),
    Change(
        "inputs of the encoder's cells diffused and projected for all steps at once",
        "remove_python",
        edits={
            "    def forward(self, inputs, hx):\n": """\
    def _diffuse(self, x):
        if not hasattr(self, '_powers'):
            powers = [torch.eye(self._num_nodes, device=device)]
            for support in self._supports:
                support = support.to_dense()
                previous, power = powers[0], support
                powers.append(power)
                for k in range(2, self._max_diffusion_step + 1):
                    previous, power = power, 2 * support @ power - previous
                    powers.append(power)
            self._powers = torch.stack(powers)
        x = torch.einsum('mij,bjd->bidm', self._powers, x)
        return x.reshape(-1, x.shape[2] * x.shape[3])

    def sequence(self, inputs, hx):
        steps, batch_size, _, input_dim = inputs.shape
        split = input_dim * (len(self._supports) * self._max_diffusion_step + 1)
        weight = torch.cat([self.gate.weight, self.candidate.weight])
        bias = torch.cat([self.gate.bias, self.candidate.bias])
        projected = nn.functional.linear(self._diffuse(inputs.flatten(0, 1)), weight[:, :split], bias)
        projected = projected.view(steps, batch_size, self._num_nodes, -1)
        units = self._num_units
        outputs = []
        for x in projected:
            value = self._diffuse(hx) @ weight[:2 * units, split:].t()
            value = torch.sigmoid(x[..., :2 * units] + value.view(batch_size, self._num_nodes, -1))
            r, u = torch.split(value, units, dim=-1)
            c = (self._diffuse(r * hx) @ weight[2 * units:, split:].t()).view(batch_size, self._num_nodes, -1)
            hx = u * hx + (1.0 - u) * torch.tanh(x[..., 2 * units:] + c)
            outputs.append(hx)
        return torch.stack(outputs), hx

    def forward(self, inputs, hx):
""",
            "        for t in range(self.seq_len):\n"
            "            x = inputs[t]\n"
            "            for i, layer in enumerate(self.encoder):\n"
            "                states[i] = layer(x, states[i])\n"
            "                x = states[i]\n": ""
            "        x = inputs\n"
            "        for i, layer in enumerate(self.encoder):\n"
            "            x, states[i] = layer.sequence(x, states[i])\n",
        },
    ),
    Change(
        "bfloat16 autocast, dense supports",
        "precision",
        edits={
            **DENSE,
            "                output = self.model(x, y, batches_seen)\n"
            "                loss = self._compute_loss(y, output)\n": ""
            "                with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "                    output = self.model(x, y, batches_seen)\n"
            "                    loss = self._compute_loss(y, output.float())\n",
        },
    ),
    Change("batches of 64", "larger_batch", edits={"'batch_size': 32,\n": "'batch_size': 64,\n"}),
    Change(
        "one thread", "threads", edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("}
    ),
    Change("fused Adam", "fused_optimizer", edits={"eps=epsilon)": "eps=epsilon, fused=True)"}),
)

LOOP = Loop(
    __doc__, prepare, CELL, CHANGES, samples="supervisor.windows_seen", loss="float(supervisor.train_loss)", seconds=6
)
