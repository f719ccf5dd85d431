"""Differentially private SGD by hand: a loop over the samples of each batch clips every gradient."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Blurry digits: each class is a fixed random pattern of strokes, shifted and with noise."""
    rng = np.random.default_rng(0)
    patterns = np.zeros((10, 36, 36), dtype=np.float32)
    for pattern in patterns:
        x, y = 18.0, 18.0
        for _ in range(60):
            x, y = np.clip([x + rng.normal(0, 2), y + rng.normal(0, 2)], 8, 27)
            pattern[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2] = 1.0
    count = scaled(3072, scale, 64)
    labels = rng.integers(0, 10, count)
    shifts = rng.integers(0, 9, (count, 2))
    images = np.stack(
        [patterns[c, i : i + 28, j : j + 28] for c, (i, j) in zip(labels, shifts, strict=True)],
    )
    images = np.clip(images * 200 + rng.normal(20, 20, images.shape), 0, 255).astype(np.uint8)
    return {"images": images, "labels": labels}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

class DigitsDataset(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = torch.from_numpy(self.images[i]).float().unsqueeze(0) / 255.
        return (img - 0.1307) / 0.3081, int(self.labels[i])

class SampleConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.tanh(self.conv1(x))  # -> [B, 16, 14, 14]
        x = F.max_pool2d(x, 2, 1)  # -> [B, 16, 13, 13]
        x = torch.tanh(self.conv2(x))  # -> [B, 32, 5, 5]
        x = F.max_pool2d(x, 2, 1)  # -> [B, 32, 4, 4]
        x = x.view(-1, 32 * 4 * 4)
        x = torch.tanh(self.fc1(x))
        return self.fc2(x)

class DPTrainer:
    def __init__(self, model, loader, device, lr=0.15, max_grad_norm=1.0, noise_multiplier=0.7):
        self.model, self.loader, self.device = model.to(device), loader, device
        self.max_grad_norm, self.noise_multiplier = max_grad_norm, noise_multiplier
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.samples, self.last_loss = 0, 0.0

    def train_step(self, x, y):
        params = [p for p in self.model.parameters() if p.requires_grad]
        for p in params:
            p.accumulated_grads = torch.zeros_like(p)
        batch_loss = 0.0
        # Process microbatch of size 1
        for i in range(len(x)):
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x[i:i + 1]), y[i:i + 1])
            loss.backward()
            # Clip each parameter's per-sample gradient
            torch.nn.utils.clip_grad_norm_(params, max_norm=self.max_grad_norm)
            for p in params:
                p.accumulated_grads += p.grad.detach()
            batch_loss += loss.item()

        # Aggregate back and add noise
        self.optimizer.zero_grad()
        for p in params:
            noise = torch.normal(0.0, self.noise_multiplier * self.max_grad_norm, size=p.shape, device=self.device)
            p.grad = (p.accumulated_grads + noise) / len(x)
        self.optimizer.step()
        return batch_loss / len(x)

    def train(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            losses = []
            for x, y in self.loader:
                x, y = x.to(self.device), y.to(self.device)
                losses.append(self.train_step(x, y))
                self.samples += len(x)
            self.last_loss = losses[-1]
            print(f'Train Epoch: {epoch} \\t Loss: {np.mean(losses):.6f}')
            print(f'Train accuracy: {self.evaluate():.2f}')

    def evaluate(self):
        self.model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in self.loader:
                output = self.model(x.to(self.device))
                correct += (output.argmax(1).cpu() == y).sum().item()
        return 100. * correct / len(self.loader.dataset)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_loader = DataLoader(DigitsDataset(images, labels), batch_size=64, shuffle=True)
trainer = DPTrainer(SampleConvNet(), train_loader, device)
trainer.train(epochs=2)
"""

PER_SAMPLE = CELL[CELL.index("        batch_loss = 0.0\n") : CELL.index("        # Aggregate back")]
VMAPPED = """        values = {name: p.detach() for name, p in self.model.named_parameters()}

        def sample_loss(values, image, label):
            output = torch.func.functional_call(self.model, values, (image.unsqueeze(0),))
            return self.criterion(output, label.unsqueeze(0))

        grad_and_loss = torch.func.grad_and_value(sample_loss)
        grads, sample_losses = torch.func.vmap(grad_and_loss, in_dims=(None, 0, 0))(values, x, y)
        grads = list(grads.values())
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
        scale = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        for p, g in zip(params, grads):
            p.accumulated_grads = torch.einsum('b,b...->...', scale, g)
        batch_loss = sample_losses.sum().item()

"""

CLIPPED = CELL[CELL.index("            loss.backward()\n") : CELL.index("            batch_loss += loss.item()")]
FOREACH = """            grads = torch.autograd.grad(loss, params)
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            grads = torch._foreach_mul(grads, (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
            torch._foreach_add_([p.accumulated_grads for p in params], grads)
"""

CHANGES = (
    Change("gradients of all samples by vmap", "remove_python", edits={PER_SAMPLE: VMAPPED}),
    Change(
        "one thread",
        "threads",
        edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("},
    ),
    Change(
        "clipping and sums with foreach",
        "clip_grad",
        edits={CLIPPED: FOREACH},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            loss = self.criterion(self.model(x[i:i + 1]), y[i:i + 1])\n": (
                "            with torch.autocast(self.device.type, dtype=torch.bfloat16):\n"
                "                loss = self.criterion(self.model(x[i:i + 1]), y[i:i + 1])\n"
            )
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "sum of losses as a tensor",
        "remove_syncs",
        edits={
            "            batch_loss += loss.item()\n": "            batch_loss += loss.detach()\n",
            "return batch_loss / len(x)": "return batch_loss.item() / len(x)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="trainer.samples", loss="trainer.last_loss", seconds=6)
