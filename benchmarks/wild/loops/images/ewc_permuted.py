"""Elastic weight consolidation on permuted digits: Fisher matrices image by image, a penalty that loops over parameters, as in ewc.pytorch."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Blurred patterns, one per class, shifted and noisy, as bytes of 28 by 28 pixels."""
    rng = np.random.default_rng(0)
    patterns = rng.uniform(0, 1, (10, 9, 9)).repeat(4, 1).repeat(4, 2) > 0.65
    count, test = scaled(4096, scale, 128), scaled(1000, scale, 100)
    labels = rng.integers(0, 10, count + test)
    shifts = rng.integers(0, 9, (count + test, 2))
    digits = [patterns[c, i : i + 28, j : j + 28] for c, (i, j) in zip(labels, shifts, strict=True)]
    images = np.clip(np.stack(digits) * 200 + rng.normal(20, 30, (count + test, 28, 28)), 0, 255).astype(np.uint8)
    return {"train_x": images[:count], "train_y": labels[:count], "test_x": images[count:], "test_y": labels[count:]}


CELL = """
import random
from copy import deepcopy
import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

epochs = 2
lr = 1e-2
batch_size = 64
sample_size = 200
hidden_size = 400
num_task = 3
importance = 40

class PermutedMNIST(Dataset):
    def __init__(self, images, labels, permute_idx):
        self.data = torch.stack([torch.from_numpy(img).float().view(-1)[permute_idx] / 255 for img in images])
        self.targets = torch.from_numpy(labels)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        img, target = self.data[index], self.targets[index]
        return img, target

    def get_sample(self, sample_size):
        sample_idx = random.sample(range(len(self)), min(sample_size, len(self)))
        return [img for img in self.data[sample_idx]]

def get_permute_mnist():
    train_loader, test_loader = {}, {}
    idx = list(range(28 * 28))
    for i in range(num_task):
        train_loader[i] = DataLoader(PermutedMNIST(train_x, train_y, idx), batch_size=batch_size, shuffle=True)
        test_loader[i] = DataLoader(PermutedMNIST(test_x, test_y, idx), batch_size=batch_size)
        random.shuffle(idx)
    return train_loader, test_loader

class MLP(nn.Module):
    def __init__(self, hidden_size=400):
        super().__init__()
        self.fc1 = nn.Linear(28 * 28, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)
        self.fc3 = nn.Linear(hidden_size, hidden_size)
        self.fc4 = nn.Linear(hidden_size, 10)

    def forward(self, input):
        x = F.relu(self.fc1(input))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        return self.fc4(x)

class EWC:
    def __init__(self, model, dataset):
        self.model = model
        self.dataset = dataset
        self.params = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._means = {}
        self._precision_matrices = self._diag_fisher()
        for n, p in deepcopy(self.params).items():
            self._means[n] = p.data

    def _diag_fisher(self):
        precision_matrices = {}
        for n, p in deepcopy(self.params).items():
            p.data.zero_()
            precision_matrices[n] = p.data
        self.model.eval()
        for input in self.dataset:
            self.model.zero_grad()
            input = input.to(device)
            output = self.model(input.view(1, -1))
            label = output.max(1)[1].view(-1)
            loss = F.nll_loss(F.log_softmax(output, dim=1), label)
            loss.backward()
            for n, p in self.model.named_parameters():
                precision_matrices[n].data += p.grad.data ** 2 / len(self.dataset)
        return {n: p for n, p in precision_matrices.items()}

    def penalty(self, model):
        loss = 0
        for n, p in model.named_parameters():
            _loss = self._precision_matrices[n] * (p - self._means[n]) ** 2
            loss += _loss.sum()
        return loss

def ewc_train(model, optimizer, data_loader, ewc, importance):
    global seen
    model.train()
    epoch_loss = 0
    for input, target in data_loader:
        input, target = input.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(input)
        loss = F.cross_entropy(output, target)
        if ewc is not None:
            loss = loss + importance * ewc.penalty(model)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        seen += len(input)
    return epoch_loss / len(data_loader)

def test(model, data_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for input, target in data_loader:
            input, target = input.to(device), target.to(device)
            output = model(input)
            correct += (F.softmax(output, dim=1).max(dim=1)[1] == target).data.sum()
    return correct.item() / len(data_loader.dataset)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_loader, test_loader = get_permute_mnist()
model = MLP(hidden_size).to(device)
optimizer = optim.SGD(params=model.parameters(), lr=lr)

seen = 0
loss, acc, ewc = {}, {}, {}
for task in range(num_task):
    loss[task] = []
    acc[task] = []
    if task == 0:
        old = None
    else:
        old_tasks = []
        for sub_task in range(task):
            old_tasks = old_tasks + train_loader[sub_task].dataset.get_sample(sample_size)
        old_tasks = random.sample(old_tasks, k=min(sample_size, len(old_tasks)))
        old = EWC(model, old_tasks)
    for _ in range(epochs):
        loss[task].append(ewc_train(model, optimizer, train_loader[task], old, importance))
        for sub_task in range(task + 1):
            acc[sub_task].append(test(model, test_loader[sub_task]))
        print(f'task {task}: loss {loss[task][-1]:.4f}, accuracies',
              ', '.join(f'{acc[t][-1]:.3f}' for t in range(task + 1)))
"""

FISHER = CELL[
    CELL.index("        for input in self.dataset:\n") : CELL.index("        return {n: p for n, p in precision")
]
VMAPPED = """        values = {n: p.detach() for n, p in self.model.named_parameters()}

        def sample_loss(values, input):
            output = torch.func.functional_call(self.model, values, (input.view(1, -1),))
            return -F.log_softmax(output, dim=1).max(dim=1)[0].sum()

        for inputs in torch.stack(self.dataset).to(device).split(50):
            grads = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0))(values, inputs)
            for n, g in grads.items():
                precision_matrices[n] += g.square().sum(0) / len(self.dataset)
"""

PENALTY = CELL[CELL.index("        loss = 0\n        for n, p in model") : CELL.index("def ewc_train(")]
IN_GRADIENTS = """        names = self._means.keys()
        params = dict(model.named_parameters())
        means, precisions = [self._means[n] for n in names], [self._precision_matrices[n] for n in names]
        with torch.no_grad():
            differences = torch._foreach_sub([params[n] for n in names], means)
            products = torch._foreach_mul(differences, precisions)
            torch._foreach_add_([params[n].grad for n in names], products, alpha=2 * importance)
            return sum(torch.dot(d.flatten(), p.flatten()) for d, p in zip(differences, products))

"""

CHANGES = (
    Change("Fisher matrices by vmap", "remove_python", edits={FISHER: VMAPPED}),
    Change(
        "penalty added to the gradients without a graph",
        "other",
        edits={
            PENALTY: IN_GRADIENTS,
            "            loss = loss + importance * ewc.penalty(model)\n        epoch_loss += loss.item()\n        loss.backward()\n": ""
            "            loss.backward()\n"
            "            loss = loss.detach() + importance * ewc.penalty(model)\n"
            "        else:\n"
            "            loss.backward()\n"
            "        epoch_loss += loss.item()\n",
        },
    ),
    Change(
        "whole batches by index",
        "batch_whole",
        edits={
            "DataLoader(PermutedMNIST(train_x, train_y, idx), batch_size=batch_size, shuffle=True)": ""
            "whole_batches(PermutedMNIST(train_x, train_y, idx), True)",
            "DataLoader(PermutedMNIST(test_x, test_y, idx), batch_size=batch_size)": ""
            "whole_batches(PermutedMNIST(test_x, test_y, idx), False)",
            "def get_permute_mnist():": """def whole_batches(dataset, shuffle):
    order = torch.utils.data.RandomSampler(dataset) if shuffle else torch.utils.data.SequentialSampler(dataset)
    return DataLoader(dataset, sampler=torch.utils.data.BatchSampler(order, batch_size, False), batch_size=None)

def get_permute_mnist():""",
        },
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size = 64\n": "batch_size = 128\n"}),
    Change("fused SGD", "fused_optimizer", edits={"lr=lr)": "lr=lr, fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output = model(input)\n        loss = F.cross_entropy(output, target)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            output = model(input)\n"
            "        loss = F.cross_entropy(output.float(), target)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="loss[task][-1]", seconds=6)
