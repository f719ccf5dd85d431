"""A variational autoencoder on digits that a transform converts one by one, in the manner of pytorch/examples."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Digits as an array of bytes, as in the MNIST files."""
    images = (np.random.random((scaled(20_480, scale, 128), 28, 28)) ** 4 * 255).astype(np.uint8)
    np.save("train-images.npy", images)
    return {}


CELL = """
import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import Dataset, DataLoader

class ToTensor:
    def __call__(self, pic):
        img = torch.from_numpy(np.array(pic, np.uint8, copy=True))
        img = img.view(pic.size[1], pic.size[0], 1).permute((2, 0, 1)).contiguous()
        return img.to(dtype=torch.get_default_dtype()).div(255)

class MNIST(Dataset):
    def __init__(self, path, transform):
        self.data = torch.from_numpy(np.load(path))
        self.targets = torch.zeros(len(self.data), dtype=torch.long)
        self.transform = transform

    def __getitem__(self, index):
        img, target = self.data[index], int(self.targets[index])
        img = Image.fromarray(img.numpy())
        return self.transform(img), target

    def __len__(self):
        return len(self.data)

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def forward(self, x):
        h1 = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar

def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction='sum')
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD

batch_size, log_interval = 128, 10
train_loader = DataLoader(MNIST('train-images.npy', ToTensor()), batch_size=batch_size, shuffle=True)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(1, 3):
    model.train()
    train_loss, digits = 0, 0
    for batch_idx, (data, _) in enumerate(train_loader):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        digits += len(data)
        if batch_idx % log_interval == 0:
            print(f'Train Epoch: {epoch} [{digits}/{len(train_loader.dataset)}] Loss: {loss.item() / len(data):.6f}')
    print(f'====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}')
"""

CHANGES = (
    Change(
        "convert the data set once, index whole batches",
        "batch_whole",
        edits={
            "torch.from_numpy(np.load(path))\n": "torch.from_numpy(np.load(path)).unsqueeze(1).float().div(255)\n",
            """        img, target = self.data[index], int(self.targets[index])
        img = Image.fromarray(img.numpy())
        return self.transform(img), target
""": "        return self.data[index], self.targets[index]\n",
            "train_loader = DataLoader(MNIST('train-images.npy', ToTensor()), batch_size=batch_size, shuffle=True)": ""
            "train_set = MNIST('train-images.npy', ToTensor())\n"
            "sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(train_set), batch_size, False)\n"
            "train_loader = DataLoader(train_set, sampler=sampler, batch_size=None)",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "no PIL image between",
        "vectorize_items",
        edits={
            """        img = Image.fromarray(img.numpy())
        return self.transform(img), target
""": "        return img.unsqueeze(0).float().div(255), target\n",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("log every hundredth batch", "fewer_logs", edits={"log_interval = 128, 10": "log_interval = 128, 100"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="digits * 2", seconds=6)
