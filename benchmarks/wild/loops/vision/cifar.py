"""A small network on CIFAR-like images with batches of four, in the manner of the PyTorch CIFAR tutorial."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Net(nn.Module):
    """The network of the tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        scores: Tensor = self.fc3(x)
        return scores


def prepare(scale: float) -> Namespace:
    """Images as arrays, as in the pickled batches of CIFAR-10."""
    count = scaled(8000, scale, 64)
    images = np.random.randint(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = np.random.randint(0, 10, count).tolist()
    return {"images": images, "labels": labels, "Net": Net, "Image": Image}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader

class CIFAR(Dataset):
    def __init__(self, images, labels, transform=None):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        img = Image.fromarray(self.images[index])
        if self.transform is not None:
            img = self.transform(img)
        return img, self.labels[index]

def to_tensor(img):
    x = torch.from_numpy(np.array(img)).permute(2, 0, 1).contiguous().float().div(255)
    return (x - 0.5) / 0.5

batch_size = 4
trainset = CIFAR(images, labels, transform=to_tensor)
trainloader = DataLoader(trainset, batch_size=batch_size, shuffle=True, num_workers=2)

net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

seen = 0
for epoch in range(1):
    running_loss = 0.0
    for i, data in enumerate(trainloader, 0):
        inputs, targets = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()

        seen += len(targets)
        running_loss += loss.item()
        if i % 500 == 499:
            print(f'[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 500:.3f}')
            running_loss = 0.0

print('Finished Training')
"""

CHANGES = (
    Change("batches of 64", "larger_batch", edits={"batch_size = 4": "batch_size = 64"}),
    Change("no workers", "num_workers", edits={"num_workers=2": "num_workers=0"}),
    Change("fused SGD", "fused_optimizer", edits={"momentum=0.9)": "momentum=0.9, fused=True)"}),
    Change("compile", "compile", edits={"net = Net()": "net = torch.compile(Net())"}),
    Change(
        "print less", "fewer_logs", edits={"        running_loss += loss.item()\n": "        running_loss += 0.0\n"}
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=5)
