"""A conditional GAN for census rows: mode-specific normalization, Gumbel softmax per column, gradient penalty, as in CTGAN repositories."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Four thousand adults with seven categories and three numbers that depend on them, in a CSV file."""
    rng = np.random.default_rng(0)
    rows = 4000
    sizes = {"workclass": 7, "education": 14, "marital": 6, "occupation": 13, "relationship": 6, "sex": 2}
    wealth = rng.normal(0, 1, rows)
    columns = {}
    for name, size in sizes.items():
        taste = rng.normal(0, 1, size)
        scores = np.outer(wealth, taste) - np.log(np.arange(1, size + 1)) + rng.gumbel(0, 1, (rows, size))
        names = np.array([f"{name}-{index}" for index in range(size)])
        columns[name] = names[scores.argmax(1)]
    age = np.where(rng.random(rows) < 0.7, rng.normal(36, 9, rows), rng.normal(61, 7, rows)) + 2 * wealth
    gain = np.where(rng.random(rows) < 0.85, 0, np.exp(rng.normal(8, 1, rows) + 0.4 * wealth))
    hours = np.where(rng.random(rows) < 0.6, 40, rng.normal(43, 11, rows))
    columns |= {
        "age": age.clip(17, 90).round(),
        "capital_gain": gain.round(),
        "hours": hours.clip(5, 99).round(),
        "income": np.where(wealth + rng.normal(0, 0.7, rows) > 1, ">50K", "<=50K"),
    }
    Path("data").mkdir()
    pd.DataFrame(columns).to_csv("data/adult.csv", index=False)
    return {"epochs": scaled(20, scale)}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
import warnings

warnings.filterwarnings('ignore', category=ConvergenceWarning)

DISCRETE = ['workclass', 'education', 'marital', 'occupation', 'relationship', 'sex', 'income']
BATCH_SIZE = 500
Z_DIM = 128
PAC = 10
LAMBDA = 10
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


class TableEncoder:
    '''Numbers become a scalar and the one-hot mode of a Gaussian mixture, categories one-hot vectors.'''

    def __init__(self, discrete, max_modes=10, min_weight=0.005):
        self.discrete = discrete
        self.max_modes = max_modes
        self.min_weight = min_weight

    def fit(self, df):
        self.meta = []
        for name in df.columns:
            if name in self.discrete:
                self.meta.append({'name': name, 'values': sorted(df[name].unique())})
            else:
                gm = BayesianGaussianMixture(n_components=self.max_modes, weight_concentration_prior=0.001,
                                             max_iter=50, random_state=0)
                gm.fit(df[[name]].values)
                self.meta.append({'name': name, 'gm': gm, 'valid': gm.weights_ > self.min_weight})
        # the output of the generator: (width, activation, is a category)
        self.spans = []
        for m in self.meta:
            if 'gm' in m:
                self.spans.append((1, 'tanh', False))
                self.spans.append((int(m['valid'].sum()), 'softmax', False))
            else:
                self.spans.append((len(m['values']), 'softmax', True))
        self.dim = sum(s[0] for s in self.spans)
        return self

    def transform(self, df):
        parts = []
        for m in self.meta:
            if 'gm' in m:
                x = df[[m['name']]].values
                means = m['gm'].means_.reshape(1, -1)[:, m['valid']]
                stds = np.sqrt(m['gm'].covariances_).reshape(1, -1)[:, m['valid']]
                probs = m['gm'].predict_proba(x)[:, m['valid']] + 1e-6
                probs = probs / probs.sum(1, keepdims=True)
                mode = np.array([np.random.choice(len(p), p=p) for p in probs])
                scalar = (x[:, 0] - means[0, mode]) / (4 * stds[0, mode])
                parts.append(np.clip(scalar, -0.99, 0.99)[:, None])
                parts.append(np.eye(means.shape[1])[mode])
            else:
                codes = df[m['name']].map({v: i for i, v in enumerate(m['values'])}).values
                parts.append(np.eye(len(m['values']))[codes])
        return np.concatenate(parts, 1).astype('float32')

    def inverse(self, data):
        out, st = {}, 0
        for m in self.meta:
            if 'gm' in m:
                k = int(m['valid'].sum())
                mode = data[:, st + 1:st + 1 + k].argmax(1)
                means = m['gm'].means_.reshape(-1)[m['valid']]
                stds = np.sqrt(m['gm'].covariances_).reshape(-1)[m['valid']]
                out[m['name']] = np.clip(data[:, st], -1, 1) * 4 * stds[mode] + means[mode]
                st += 1 + k
            else:
                k = len(m['values'])
                out[m['name']] = np.array(m['values'])[data[:, st:st + k].argmax(1)]
                st += k
        return pd.DataFrame(out)


class ConditionSampler:
    '''Picks a column and one of its categories by log frequency, and rows that have this category.'''

    def __init__(self, data, spans):
        self.data = data
        sizes, probs, self.rows = [], [], []
        st = 0
        for width, _, is_category in spans:
            if is_category:
                block = data[:, st:st + width]
                freq = np.log(block.sum(0) + 1)
                sizes.append(width)
                probs.append(freq / freq.sum())
                self.rows.append([np.nonzero(block[:, j])[0] for j in range(width)])
            st += width
        self.n_col = len(sizes)
        self.dim = sum(sizes)
        self.offsets = np.cumsum([0] + sizes[:-1])
        self.probs = np.zeros((self.n_col, max(sizes)))
        for i, p in enumerate(probs):
            self.probs[i, :len(p)] = p

    def sample_cond(self, batch):
        vec = np.zeros((batch, self.dim), dtype='float32')
        mask = np.zeros((batch, self.n_col), dtype='float32')
        col = np.random.choice(np.arange(self.n_col), batch)
        r = np.random.rand(batch, 1)
        opt = (self.probs[col].cumsum(axis=1) > r).argmax(axis=1)
        vec[np.arange(batch), self.offsets[col] + opt] = 1
        mask[np.arange(batch), col] = 1
        return vec, mask, col, opt

    def sample_rows(self, col, opt):
        idx = []
        for c, o in zip(col, opt):
            idx.append(np.random.choice(self.rows[c][o]))
        return self.data[idx]


class Residual(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.fc = nn.Linear(i, o)
        self.bn = nn.BatchNorm1d(o)
        self.relu = nn.ReLU()

    def forward(self, x):
        return torch.cat([self.relu(self.bn(self.fc(x))), x], dim=1)


class Generator(nn.Module):
    def __init__(self, z_dim, hidden, data_dim):
        super().__init__()
        dim, seq = z_dim, []
        for h in hidden:
            seq.append(Residual(dim, h))
            dim += h
        seq.append(nn.Linear(dim, data_dim))
        self.seq = nn.Sequential(*seq)

    def forward(self, z):
        return self.seq(z)


class Discriminator(nn.Module):
    def __init__(self, input_dim, hidden, pac):
        super().__init__()
        self.pac = pac
        self.pac_dim = input_dim * pac
        dim, seq = self.pac_dim, []
        for h in hidden:
            seq += [nn.Linear(dim, h), nn.LeakyReLU(0.2), nn.Dropout(0.5)]
            dim = h
        seq.append(nn.Linear(dim, 1))
        self.seq = nn.Sequential(*seq)

    def forward(self, x):
        return self.seq(x.view(-1, self.pac_dim))


def apply_activate(logits, spans):
    out, st = [], 0
    for width, activation, _ in spans:
        x = logits[:, st:st + width]
        if activation == 'tanh':
            out.append(torch.tanh(x))
        else:
            out.append(F.gumbel_softmax(x, tau=0.2, hard=False))
        st += width
    return torch.cat(out, dim=1)


def cond_loss(logits, cond, mask, spans):
    losses, st, st_c = [], 0, 0
    for width, activation, is_category in spans:
        if is_category:
            target = torch.argmax(cond[:, st_c:st_c + width], dim=1)
            losses.append(F.cross_entropy(logits[:, st:st + width], target, reduction='none'))
            st_c += width
        st += width
    losses = torch.stack(losses, dim=1)
    return (losses * mask).sum() / logits.size(0)


def gradient_penalty(D, real, fake, pac):
    alpha = torch.rand(real.size(0) // pac, 1, 1, device=real.device).repeat(1, pac, real.size(1))
    alpha = alpha.view(-1, real.size(1))
    inter = (alpha * real + (1 - alpha) * fake).requires_grad_()
    score = D(inter)
    grads = torch.autograd.grad(outputs=score, inputs=inter, grad_outputs=torch.ones_like(score),
                                create_graph=True, retain_graph=True, only_inputs=True)[0]
    norm = grads.view(-1, pac * real.size(1)).norm(2, dim=1)
    return ((norm - 1) ** 2).mean() * LAMBDA


np.random.seed(0)
df = pd.read_csv('data/adult.csv')
encoder = TableEncoder(DISCRETE).fit(df)
train_data = encoder.transform(df)
sampler = ConditionSampler(train_data, encoder.spans)
print(f'{len(train_data)} rows, {encoder.dim} dimensions, {sampler.dim} conditions')

G = Generator(Z_DIM + sampler.dim, (256, 256), encoder.dim).to(device)
D = Discriminator(encoder.dim + sampler.dim, (256, 256), PAC).to(device)
optimizerG = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.9), weight_decay=1e-6)
optimizerD = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.9), weight_decay=1e-6)
steps_per_epoch = max(len(train_data) // BATCH_SIZE, 1)
history, seen = [], 0

for epoch in range(epochs):
    for step in range(steps_per_epoch):
        # ---- discriminator
        z = torch.randn(BATCH_SIZE, Z_DIM, device=device)
        c, m, col, opt = sampler.sample_cond(BATCH_SIZE)
        c = torch.from_numpy(c).to(device)
        perm = np.random.permutation(BATCH_SIZE)
        real = torch.from_numpy(sampler.sample_rows(col[perm], opt[perm])).to(device)
        c_real = c[perm]

        fake = apply_activate(G(torch.cat([z, c], dim=1)), encoder.spans)
        fake_cat = torch.cat([fake, c], dim=1)
        real_cat = torch.cat([real, c_real], dim=1)
        y_fake = D(fake_cat)
        y_real = D(real_cat)
        loss_d = y_fake.mean() - y_real.mean() + gradient_penalty(D, real_cat, fake_cat, PAC)
        optimizerD.zero_grad()
        loss_d.backward()
        optimizerD.step()

        # ---- generator
        z = torch.randn(BATCH_SIZE, Z_DIM, device=device)
        c, m, col, opt = sampler.sample_cond(BATCH_SIZE)
        c, m = torch.from_numpy(c).to(device), torch.from_numpy(m).to(device)
        logits = G(torch.cat([z, c], dim=1))
        fake = apply_activate(logits, encoder.spans)
        y_fake = D(torch.cat([fake, c], dim=1))
        loss_g = -y_fake.mean() + cond_loss(logits, c, m, encoder.spans)
        optimizerG.zero_grad()
        loss_g.backward()
        optimizerG.step()
        seen += BATCH_SIZE

    history.append({'epoch': epoch, 'loss_g': loss_g.item(), 'loss_d': loss_d.item()})
    print(f'Epoch {epoch + 1}, Loss G: {loss_g.item(): .4f}, Loss D: {loss_d.item(): .4f}', flush=True)

# synthetic rows
G.eval()
fakes = []
with torch.no_grad():
    for _ in range(2000 // BATCH_SIZE):
        z = torch.randn(BATCH_SIZE, Z_DIM, device=device)
        c = torch.from_numpy(sampler.sample_cond(BATCH_SIZE)[0]).to(device)
        fakes.append(apply_activate(G(torch.cat([z, c], dim=1)), encoder.spans).cpu().numpy())
synthetic = encoder.inverse(np.concatenate(fakes))
synthetic.to_csv('data/synthetic.csv', index=False)
pd.DataFrame(history).to_csv('loss.csv', index=False)
print(synthetic.describe())
print((synthetic['income'] == '>50K').mean(), (df['income'] == '>50K').mean())
"""

ACTIVATE = CELL[CELL.index("    out, st = [], 0\n    for width, activation, _ in spans:") : CELL.index("def cond_loss")]
ONE_SOFTMAX = """    # every softmax column in one padded tensor: rows, columns, widest column
    if not hasattr(apply_activate, 'tables'):
        widths = torch.tensor([width for width, _, _ in spans])
        starts = torch.cumsum(widths, 0) - widths
        is_tanh = torch.tensor([activation == 'tanh' for _, activation, _ in spans])
        w, s = widths[~is_tanh], starts[~is_tanh]
        inside = torch.arange(int(w.max())) < w[:, None]
        places = (s[:, None] + torch.arange(int(w.max())))
        # where each output column is found: first the tanh columns, then the softmax columns
        source = torch.cat([starts[is_tanh], places[inside]]).argsort()
        apply_activate.tables = [t.to(logits.device) for t in (
            starts[is_tanh], places.clamp(max=int(widths.sum()) - 1), ~inside, inside.flatten().nonzero()[:, 0], source)]
    tanh_places, places, outside, kept, source = apply_activate.tables
    padded = logits[:, places].masked_fill(outside, float('-inf'))
    soft = F.gumbel_softmax(padded, tau=0.2, hard=False, dim=2).flatten(1)[:, kept]
    return torch.cat([torch.tanh(logits[:, tanh_places]), soft], dim=1)[:, source]


"""
COND_LOSS = CELL[CELL.index("    losses, st, st_c = [], 0, 0\n") : CELL.index("def gradient_penalty")]
ONE_LOSS = """    # the mask picks one column per row, and `cond` its category
    if not hasattr(cond_loss, 'tables'):
        starts = np.cumsum([0] + [width for width, _, _ in spans])
        columns = [np.arange(st, st + width) for st, (width, _, cat) in zip(starts, spans) if cat]
        places = np.zeros((len(columns), max(map(len, columns))), dtype='int64')
        outside = np.ones(places.shape, dtype=bool)
        for i, column in enumerate(columns):
            places[i, :len(column)], outside[i, :len(column)] = column, False
        cond_loss.tables = [torch.from_numpy(t).to(logits.device) for t in (places, outside, np.concatenate(columns))]
    places, outside, flat = cond_loss.tables
    sums = logits[:, places].masked_fill(outside, float('-inf')).logsumexp(2)
    return ((sums * mask).sum() - (logits[:, flat] * cond).sum()) / logits.size(0)


"""
ROWS = CELL[CELL.index("        idx = []\n        for c, o in zip") : CELL.index("        return self.data[idx]\n")]
ROWS_AT_ONCE = """        if not hasattr(self, 'flat'):
            groups = [rows for column in self.rows for rows in column]
            self.flat = np.concatenate(groups)
            self.counts = np.array([len(rows) for rows in groups])
            self.starts = np.cumsum(self.counts) - self.counts
        group = self.offsets[col] + opt
        idx = self.flat[self.starts[group] + (np.random.rand(len(group)) * self.counts[group]).astype('int64')]
"""
FAKES = """        fake = apply_activate(G(torch.cat([z, c], dim=1)), encoder.spans)
        fake_cat = torch.cat([fake, c], dim=1)
"""
DISCRIMINATOR = CELL[CELL.index("        y_fake = D(fake_cat)\n") : CELL.index("        optimizerD.zero_grad()\n")]
GENERATOR = CELL[
    CELL.index("        logits = G(torch.cat([z, c], dim=1))\n") : CELL.index("        optimizerG.zero_grad()\n")
]


def autocast(lines: str) -> str:
    """The lines of the training loop under bfloat16 autocast, with the generator's output in float32."""
    lines = lines.replace("G(torch.cat([z, c], dim=1))", "G(torch.cat([z, c], dim=1)).float()")
    indented = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"        with torch.autocast(device.type, dtype=torch.bfloat16):\n{indented}"


CHANGES = (
    Change(
        "fakes for the discriminator without a graph",
        "no_grad",
        edits={
            FAKES: "        with torch.no_grad():\n    " + FAKES,
        },
    ),
    Change("rows sampled by NumPy at once", "remove_python", edits={ROWS: ROWS_AT_ONCE}),
    Change("all columns in one softmax", "other", edits={ACTIVATE: ONE_SOFTMAX, COND_LOSS: ONE_LOSS}),
    Change("batches of 1000", "larger_batch", edits={"BATCH_SIZE = 500": "BATCH_SIZE = 1000"}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            f"optimizer{name} = torch.optim.Adam({name}.parameters(), ": ""
            f"optimizer{name} = torch.optim.Adam({name}.parameters(), fused=True, "
            for name in "GD"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FAKES: autocast(FAKES),
            DISCRIMINATOR: autocast(DISCRIMINATOR),
            GENERATOR: autocast(GENERATOR),
        },
    ),
    Change("one thread", "threads", edits={"PAC = 10\n": "PAC = 10\ntorch.set_num_threads(1)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="loss_g.item()", seconds=7)
