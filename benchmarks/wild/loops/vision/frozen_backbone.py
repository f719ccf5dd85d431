"""Transfer learning with a frozen residual network and a new head on images without augmentation, as in Kaggle notebooks."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def small_resnet() -> nn.Sequential:
    """A residual network of four stages with a classifier of 100 classes."""
    stem = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    stages = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2), Residual(128, 256, 2)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


def prepare(scale: float) -> Namespace:
    """Flower photos as arrays, and the weights of a trained network."""
    count = scaled(1728, scale, 96)
    np.save("flowers.npy", np.random.randint(0, 256, (count, 96, 96, 3), dtype=np.uint8))
    torch.save(small_resnet().state_dict(), "resnet_pretrained.pth")
    labels = np.random.randint(0, 5, count).tolist()
    return {"labels": labels, "small_resnet": small_resnet, "Image": Image}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader

BATCH_SIZE = 16
EPOCHS = 4
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

class FlowerDataset(Dataset):
    def __init__(self, path, labels):
        self.images = np.load(path)
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        img = Image.fromarray(self.images[idx]).convert('RGB').resize((64, 64))
        x = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255.0
        return (x - MEAN) / STD, self.labels[idx]

class FlowerClassifier(nn.Module):
    def __init__(self, num_classes=5):
        super().__init__()
        self.backbone = small_resnet()
        self.backbone.load_state_dict(torch.load('resnet_pretrained.pth'))
        self.backbone[-1] = nn.Identity()
        for param in self.backbone.parameters():
            param.requires_grad = False
        self.head = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, num_classes))

    def forward(self, x):
        features = self.backbone(x)
        return self.head(features)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_dataset = FlowerDataset('flowers.npy', labels)
train_loader = DataLoader(train_dataset, batch_size=BATCH_SIZE, shuffle=True)
model = FlowerClassifier().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.head.parameters(), lr=1e-3)

n_images = 0
for epoch in range(EPOCHS):
    model.train()
    model.backbone.eval()  # keep the batch norm statistics of the pretrained model
    running_loss, running_corrects = 0.0, 0
    for images, targets in train_loader:
        images, targets = images.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * images.size(0)
        running_corrects += torch.sum(outputs.argmax(1) == targets).item()
        n_images += images.size(0)
    print(f'Epoch {epoch + 1}/{EPOCHS} loss: {running_loss / len(labels):.4f} acc: {running_corrects / len(labels):.4f}')
"""

CHANGES = (
    Change(
        "features computed once",
        "cache_items",
        edits={
            "        features = self.backbone(x)\n        return self.head(features)\n": "        return self.head(x)\n",
            "n_images = 0\n": """n_images = 0
model.eval()
with torch.no_grad():
    features = torch.cat([model.backbone(x.to(device)).cpu() for x, _ in DataLoader(train_dataset, batch_size=64)])
train_loader = DataLoader(torch.utils.data.TensorDataset(features, torch.tensor(labels)), BATCH_SIZE, shuffle=True)
""",
        },
    ),
    Change(
        "backbone without graph",
        "no_grad",
        edits={
            "        features = self.backbone(x)\n": "        with torch.no_grad():\n            features = self.backbone(x)\n"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 48", "larger_batch", edits={"BATCH_SIZE = 16": "BATCH_SIZE = 48"}),
    Change(
        "channels last",
        "channels_last",
        edits={
            "FlowerClassifier().to(device)": "FlowerClassifier().to(device, memory_format=torch.channels_last)",
            "images.to(device),": "images.to(device, memory_format=torch.channels_last),",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(images)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            outputs = model(images)\n",
            "criterion(outputs, targets)": "criterion(outputs.float(), targets)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", seconds=6)
