"""TimeGAN on windows of share prices: five GRU networks in three phases, as in PyTorch ports of the paper."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Opening, highest, lowest, closing and adjusted prices and volumes of 1600 days in stock_data.csv."""
    rng = np.random.default_rng(0)
    days = 1600
    volatility = np.exp(np.convolve(rng.normal(0, 0.35, days + 40), np.ones(40) / 6, mode="valid")[:days]) * 0.015
    close = 60 * np.exp(np.cumsum(rng.standard_t(5, days) * volatility + 0.0008))
    opening = close * np.exp(rng.normal(0, 0.006, days))
    frame = pd.DataFrame(
        {
            "Open": opening,
            "High": np.maximum(opening, close) * np.exp(rng.gamma(1.5, 0.004, days)),
            "Low": np.minimum(opening, close) * np.exp(-rng.gamma(1.5, 0.004, days)),
            "Close": close,
            "Adj_Close": close * 0.98,
            "Volume": np.round(rng.lognormal(14.5, 0.4, days) * (1 + 20 * volatility)),
        }
    )
    Path("data").mkdir()
    frame.round(6).to_csv("data/stock_data.csv", index=False)
    return {"iterations": scaled(16, scale, 2)}


CELL = """
import numpy as np
import torch
import torch.nn as nn

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

parameters = {
    'module': 'gru',
    'hidden_dim': 24,
    'num_layer': 3,
    'iterations': iterations,
    'batch_size': 128,
    'seq_len': 24,
    'gamma': 1,
}

# ---------- data

def MinMaxScaler(data):
    min_val = np.min(np.min(data, axis=0), axis=0)
    data = data - min_val
    max_val = np.max(np.max(data, axis=0), axis=0)
    return data / (max_val + 1e-7), min_val, max_val

def real_data_loading(path, seq_len):
    ori_data = np.loadtxt(path, delimiter=',', skiprows=1)
    numerator = ori_data - np.min(ori_data, 0)
    denominator = np.max(ori_data, 0) - np.min(ori_data, 0)
    ori_data = numerator / (denominator + 1e-7)
    # cut the data by the sequence length, then mix the windows
    temp_data = []
    for i in range(0, len(ori_data) - seq_len):
        temp_data.append(ori_data[i:i + seq_len])
    idx = np.random.permutation(len(temp_data))
    return [temp_data[i] for i in idx]

def extract_time(data):
    time, max_seq_len = [], 0
    for i in range(len(data)):
        max_seq_len = max(max_seq_len, len(data[i][:, 0]))
        time.append(len(data[i][:, 0]))
    return time, max_seq_len

def batch_generator(data, time, batch_size):
    idx = np.random.permutation(len(data))[:batch_size]
    X_mb = [data[i] for i in idx]
    T_mb = [time[i] for i in idx]
    return torch.tensor(np.array(X_mb), dtype=torch.float32, device=device), T_mb

def random_generator(batch_size, z_dim, T_mb, max_seq_len):
    Z_mb = []
    for i in range(batch_size):
        temp = np.zeros([max_seq_len, z_dim])
        temp_Z = np.random.uniform(0., 1., [T_mb[i], z_dim])
        temp[:T_mb[i], :] = temp_Z
        Z_mb.append(temp)
    return torch.tensor(np.array(Z_mb), dtype=torch.float32, device=device)

# ---------- networks

class RecurrentNet(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers, activation=None):
        super().__init__()
        self.rnn = nn.GRU(input_dim, hidden_dim, num_layers, batch_first=True)
        self.fc = nn.Linear(hidden_dim, output_dim)
        self.activation = activation
        for name, p in self.named_parameters():
            if 'weight' in name:
                nn.init.xavier_uniform_(p)
            else:
                nn.init.zeros_(p)

    def forward(self, x):
        h, _ = self.rnn(x)
        out = self.fc(h)
        return self.activation(out) if self.activation is not None else out

def timegan(ori_data, parameters):
    seen = 0
    ori_time, max_seq_len = extract_time(ori_data)
    ori_data, min_val, max_val = MinMaxScaler(np.asarray(ori_data))
    no, seq_len, dim = ori_data.shape
    hidden_dim, num_layers = parameters['hidden_dim'], parameters['num_layer']
    iterations, batch_size, gamma = parameters['iterations'], parameters['batch_size'], parameters['gamma']
    z_dim = dim

    embedder = RecurrentNet(dim, hidden_dim, hidden_dim, num_layers, torch.sigmoid).to(device)
    recovery = RecurrentNet(hidden_dim, hidden_dim, dim, num_layers, torch.sigmoid).to(device)
    generator = RecurrentNet(z_dim, hidden_dim, hidden_dim, num_layers, torch.sigmoid).to(device)
    supervisor = RecurrentNet(hidden_dim, hidden_dim, hidden_dim, num_layers - 1, torch.sigmoid).to(device)
    discriminator = RecurrentNet(hidden_dim, hidden_dim, 1, num_layers).to(device)

    mse, bce = nn.MSELoss(), nn.BCEWithLogitsLoss()
    E0_solver = torch.optim.Adam(list(embedder.parameters()) + list(recovery.parameters()), lr=1e-3)
    E_solver = torch.optim.Adam(list(embedder.parameters()) + list(recovery.parameters()), lr=1e-3)
    GS_solver = torch.optim.Adam(list(generator.parameters()) + list(supervisor.parameters()), lr=1e-3)
    G_solver = torch.optim.Adam(list(generator.parameters()) + list(supervisor.parameters()), lr=1e-3)
    D_solver = torch.optim.Adam(discriminator.parameters(), lr=1e-3)

    def sample_batch():
        X_mb, T_mb = batch_generator(ori_data, ori_time, batch_size)
        Z_mb = random_generator(batch_size, z_dim, T_mb, max_seq_len)
        return X_mb, Z_mb

    # 1. Embedding network training
    print('Start Embedding Network Training')
    for itt in range(iterations):
        X, _ = sample_batch()
        X_tilde = recovery(embedder(X))
        E_loss0 = 10 * torch.sqrt(mse(X, X_tilde))
        E0_solver.zero_grad()
        E_loss0.backward()
        E0_solver.step()
        seen += len(X)
        if itt % 10 == 0:
            print('step: ' + str(itt) + '/' + str(iterations) + ', e_loss: ' + str(np.round(E_loss0.item() / 10, 4)))

    # 2. Training only with supervised loss
    print('Start Training with Supervised Loss Only')
    for itt in range(iterations):
        X, Z = sample_batch()
        H = embedder(X)
        H_hat_supervise = supervisor(H)
        S_loss = mse(H[:, 1:, :], H_hat_supervise[:, :-1, :])
        GS_solver.zero_grad()
        S_loss.backward()
        GS_solver.step()
        seen += len(X)
        if itt % 10 == 0:
            print('step: ' + str(itt) + '/' + str(iterations) + ', s_loss: ' + str(np.round(S_loss.item() ** 0.5, 4)))

    # 3. Joint Training
    print('Start Joint Training')
    for itt in range(iterations):
        # Generator training (twice more than discriminator training)
        for kk in range(2):
            X, Z = sample_batch()
            H = embedder(X)
            H_hat_supervise = supervisor(H)
            E_hat = generator(Z)
            H_hat = supervisor(E_hat)
            X_hat = recovery(H_hat)
            Y_fake = discriminator(H_hat)
            Y_fake_e = discriminator(E_hat)
            G_loss_U = bce(Y_fake, torch.ones_like(Y_fake))
            G_loss_U_e = bce(Y_fake_e, torch.ones_like(Y_fake_e))
            G_loss_S = mse(H[:, 1:, :], H_hat_supervise[:, :-1, :])
            # two moments
            G_loss_V1 = torch.mean(torch.abs(torch.sqrt(X_hat.var(dim=0, unbiased=False) + 1e-6) -
                                             torch.sqrt(X.var(dim=0, unbiased=False) + 1e-6)))
            G_loss_V2 = torch.mean(torch.abs(X_hat.mean(dim=0) - X.mean(dim=0)))
            G_loss_V = G_loss_V1 + G_loss_V2
            G_loss = G_loss_U + gamma * G_loss_U_e + 100 * torch.sqrt(G_loss_S) + 100 * G_loss_V
            G_solver.zero_grad()
            G_loss.backward()
            G_solver.step()

            # Embedder
            H = embedder(X)
            H_hat_supervise = supervisor(H)
            X_tilde = recovery(H)
            E_loss_T0 = mse(X, X_tilde)
            E_loss = 10 * torch.sqrt(E_loss_T0) + 0.1 * mse(H[:, 1:, :], H_hat_supervise[:, :-1, :])
            E_solver.zero_grad()
            E_loss.backward()
            E_solver.step()
            seen += len(X)

        # Discriminator training
        X, Z = sample_batch()
        H = embedder(X)
        E_hat = generator(Z)
        H_hat = supervisor(E_hat)
        Y_real = discriminator(H)
        Y_fake = discriminator(H_hat)
        Y_fake_e = discriminator(E_hat)
        D_loss_real = bce(Y_real, torch.ones_like(Y_real))
        D_loss_fake = bce(Y_fake, torch.zeros_like(Y_fake))
        D_loss_fake_e = bce(Y_fake_e, torch.zeros_like(Y_fake_e))
        D_loss = D_loss_real + D_loss_fake + gamma * D_loss_fake_e
        # only update when the discriminator does not work well
        if D_loss.item() > 0.15:
            D_solver.zero_grad()
            D_loss.backward()
            D_solver.step()
        seen += len(X)

        if itt % 10 == 0:
            print('step: ' + str(itt) + '/' + str(iterations) +
                  ', d_loss: ' + str(np.round(D_loss.item(), 4)) +
                  ', g_loss_u: ' + str(np.round(G_loss_U.item(), 4)) +
                  ', g_loss_s: ' + str(np.round(np.sqrt(G_loss_S.item()), 4)) +
                  ', g_loss_v: ' + str(np.round(G_loss_V.item(), 4)) +
                  ', e_loss_t0: ' + str(np.round(np.sqrt(E_loss_T0.item()), 4)))
    print('Finish Joint Training')

    # Synthetic data generation
    with torch.no_grad():
        Z_mb = random_generator(no, z_dim, ori_time, max_seq_len)
        generated_data_curr = recovery(supervisor(generator(Z_mb))).cpu().numpy()
    generated_data = []
    for i in range(no):
        generated_data.append(generated_data_curr[i, :ori_time[i], :] * max_val + min_val)
    return generated_data, G_loss.item(), seen

ori_data = real_data_loading('data/stock_data.csv', parameters['seq_len'])
generated_data, final_loss, sequences_seen = timegan(ori_data, parameters)
print('real mean', np.mean(ori_data), 'synthetic mean', np.mean(generated_data))
np.save('generated.npy', np.asarray(generated_data))
"""

ENCODED = """        E_hat = generator(Z)
        H_hat = supervisor(E_hat)
        Y_real = discriminator(H)
"""
REAL_AND_FAKE = CELL[CELL.index("        Y_real = discriminator(H)\n") : CELL.index("        D_loss_real = bce(")]
TWO_FAKES = CELL[CELL.index("            Y_fake = discriminator(H_hat)\n") : CELL.index("            G_loss_U = bce(")]
SUPERVISED = "        H = embedder(X)\n        H_hat_supervise = supervisor(H)\n        S_loss ="
GENERATOR = (
    "            H = embedder(X)\n            H_hat_supervise = supervisor(H)\n            E_hat = generator(Z)\n"
)
FUSED = {
    f"{line}, lr=1e-3)\n": f"{line}, lr=1e-3, fused=True)\n"
    for line in (
        "E0_solver = torch.optim.Adam(list(embedder.parameters()) + list(recovery.parameters())",
        "E_solver = torch.optim.Adam(list(embedder.parameters()) + list(recovery.parameters())",
        "GS_solver = torch.optim.Adam(list(generator.parameters()) + list(supervisor.parameters())",
        "G_solver = torch.optim.Adam(list(generator.parameters()) + list(supervisor.parameters())",
        "D_solver = torch.optim.Adam(discriminator.parameters()",
    )
}

CHANGES = (
    Change(
        "no graph of networks that do not step",
        "no_grad",
        edits={
            SUPERVISED: SUPERVISED.replace(
                "        H = embedder(X)\n", "        with torch.no_grad():\n            H = embedder(X)\n"
            ),
            GENERATOR: GENERATOR.replace(
                "            H = embedder(X)\n",
                "            with torch.no_grad():\n                H = embedder(X)\n"
                "            recovery.requires_grad_(False)\n"
                "            discriminator.requires_grad_(False)\n",
            ),
            "            # Embedder\n": ""
            "            # Embedder\n"
            "            recovery.requires_grad_(True)\n"
            "            discriminator.requires_grad_(True)\n"
            "            supervisor.requires_grad_(False)\n",
            "            E_solver.step()\n": ""
            "            E_solver.step()\n            supervisor.requires_grad_(True)\n",
            "        H = embedder(X)\n" + ENCODED: ""
            "        with torch.no_grad():\n"
            "            H = embedder(X)\n"
            "            E_hat = generator(Z)\n"
            "            H_hat = supervisor(E_hat)\n"
            "        Y_real = discriminator(H)\n",
        },
    ),
    Change(
        "the discriminator's sequences in one batch",
        "other",
        edits={
            REAL_AND_FAKE: "        Y_real, Y_fake, Y_fake_e = discriminator(torch.cat([H, H_hat, E_hat])).chunk(3)\n",
            TWO_FAKES: "            Y_fake, Y_fake_e = discriminator(torch.cat([H_hat, E_hat])).chunk(2)\n",
            GENERATOR: "            H = embedder(X)\n"
            "            E_hat = generator(Z)\n"
            "            H_hat_supervise, H_hat = supervisor(torch.cat([H, E_hat])).chunk(2)\n",
            "            H_hat = supervisor(E_hat)\n            X_hat": "            X_hat",
        },
    ),
    Change(
        "batches by indexing tensors",
        "batch_whole",
        edits={
            "        X_mb, T_mb = batch_generator(ori_data, ori_time, batch_size)\n"
            "        Z_mb = random_generator(batch_size, z_dim, T_mb, max_seq_len)\n"
            "        return X_mb, Z_mb\n": ""
            "        X_mb = windows[torch.randperm(no, device=device)[:batch_size]]\n"
            "        return X_mb, torch.rand(batch_size, max_seq_len, z_dim, device=device)\n",
            "    z_dim = dim\n": ""
            "    z_dim = dim\n"
            "    windows = torch.tensor(ori_data, dtype=torch.float32, device=device)\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    def forward(self, x):\n        h, _ = self.rnn(x)\n        out = self.fc(h)\n": ""
            "    @torch.autocast(device.type, dtype=torch.bfloat16)\n"
            "    def forward(self, x):\n        h, _ = self.rnn(x)\n        out = self.fc(h).float()\n"
        },
    ),
    Change(
        "batches of 256, half the iterations",
        "larger_batch",
        edits={"'iterations': iterations,": "'iterations': iterations // 2,", "'batch_size': 128": "'batch_size': 256"},
    ),
    Change(
        "one thread", "threads", edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("}
    ),
    Change("fused Adam", "fused_optimizer", edits=FUSED),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="sequences_seen", loss="final_loss", seconds=7)
