"""A Siamese network on pairs of small portraits with a contrastive loss, as in the notebooks on one-shot face similarity."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Ten drawn portraits of each of forty persons, in folders s1, s2, ... as PGM files."""
    rng = np.random.default_rng(0)
    for person in range(40):
        folder = Path(f"data/faces/{'training' if person < 37 else 'testing'}/s{person + 1}")
        folder.mkdir(parents=True)
        width, height, eyes, mouth, skin = rng.uniform([24, 34, 8, 8, 120], [34, 46, 16, 18, 210])
        for shot in range(10):
            image = Image.new("L", (92, 110), int(rng.integers(30, 70)))
            draw = ImageDraw.Draw(image)
            x, y = 46 + rng.normal(0, 3), 56 + rng.normal(0, 3)
            draw.ellipse([x - width, y - height, x + width, y + height], fill=int(skin))
            for side in (-1, 1):
                draw.ellipse([x + side * eyes - 4, y - 14, x + side * eyes + 4, y - 8], fill=20)
            draw.arc([x - mouth, y + 8, x + mouth, y + 24], 10, 170, fill=40, width=3)
            pixels = np.asarray(image, dtype=np.float32) + rng.normal(0, 8, (110, 92))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{shot + 1}.pgm")
    return {"num_epochs": scaled(5, scale)}


CELL = """
import os
import random
import numpy as np
from PIL import Image, ImageOps
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset

class Config():
    training_dir = './data/faces/training/'
    testing_dir = './data/faces/testing/'
    train_batch_size = 64
    train_number_epochs = num_epochs

class ImageFolder:
    def __init__(self, root):
        self.classes = sorted(os.listdir(root))
        self.imgs = [(os.path.join(root, c, name), label) for label, c in enumerate(self.classes)
                     for name in sorted(os.listdir(os.path.join(root, c)))]

def transform(img):
    img = img.resize((100, 100))
    return torch.from_numpy(np.array(img, dtype=np.float32) / 255).unsqueeze(0)

class SiameseNetworkDataset(Dataset):
    def __init__(self, imageFolderDataset, transform=None, should_invert=True):
        self.imageFolderDataset = imageFolderDataset
        self.transform = transform
        self.should_invert = should_invert

    def __getitem__(self, index):
        img0_tuple = random.choice(self.imageFolderDataset.imgs)
        # we need to make sure approx 50% of images are in the same class
        should_get_same_class = random.randint(0, 1)
        if should_get_same_class:
            while True:
                # keep looping till the same class image is found
                img1_tuple = random.choice(self.imageFolderDataset.imgs)
                if img0_tuple[1] == img1_tuple[1]:
                    break
        else:
            while True:
                # keep looping till a different class image is found
                img1_tuple = random.choice(self.imageFolderDataset.imgs)
                if img0_tuple[1] != img1_tuple[1]:
                    break

        img0 = self.load(img0_tuple[0])
        img1 = self.load(img1_tuple[0])
        return img0, img1, torch.from_numpy(np.array([int(img1_tuple[1] != img0_tuple[1])], dtype=np.float32))

    def load(self, path):
        img = Image.open(path).convert('L')
        if self.should_invert:
            img = ImageOps.invert(img)
        if self.transform is not None:
            img = self.transform(img)
        return img

    def __len__(self):
        return len(self.imageFolderDataset.imgs)

class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn1 = nn.Sequential(
            nn.Conv2d(1, 96, kernel_size=11, stride=4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),

            nn.Conv2d(96, 256, kernel_size=5, stride=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, stride=2),

            nn.Conv2d(256, 384, kernel_size=3, stride=1),
            nn.ReLU(inplace=True)
        )
        self.fc1 = nn.Sequential(
            nn.Linear(384, 1024),
            nn.ReLU(inplace=True),
            nn.Linear(1024, 256),
            nn.ReLU(inplace=True),
            nn.Linear(256, 2))

    def forward_once(self, x):
        output = self.cnn1(x)
        output = output.view(output.size()[0], -1)
        output = self.fc1(output)
        return output

    def forward(self, input1, input2):
        output1 = self.forward_once(input1)
        output2 = self.forward_once(input2)
        return output1, output2

class ContrastiveLoss(torch.nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, output1, output2, label):
        euclidean_distance = F.pairwise_distance(output1, output2, keepdim=True)
        return torch.mean((1 - label) * torch.pow(euclidean_distance, 2) +
                          (label) * torch.pow(torch.clamp(self.margin - euclidean_distance, min=0.0), 2))

siamese_dataset = SiameseNetworkDataset(ImageFolder(Config.training_dir), transform=transform, should_invert=False)
train_dataloader = DataLoader(siamese_dataset, shuffle=True, num_workers=2, batch_size=Config.train_batch_size)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
net = SiameseNetwork().to(device)
criterion = ContrastiveLoss()
optimizer = optim.Adam(net.parameters(), lr=0.0005)

counter = []
loss_history = []
iteration_number = 0
pairs_seen = 0

for epoch in range(0, Config.train_number_epochs):
    for i, data in enumerate(train_dataloader, 0):
        img0, img1, label = data
        img0, img1, label = img0.to(device), img1.to(device), label.to(device)
        optimizer.zero_grad()
        output1, output2 = net(img0, img1)
        loss_contrastive = criterion(output1, output2, label)
        loss_contrastive.backward()
        optimizer.step()
        pairs_seen += len(label)
        if i % 10 == 0:
            print("Epoch number {}\\n Current loss {}\\n".format(epoch, loss_contrastive.item()))
            iteration_number += 10
            counter.append(iteration_number)
            loss_history.append(loss_contrastive.item())

# Test: one face against ten others
test_dataset = SiameseNetworkDataset(ImageFolder(Config.testing_dir), transform=transform, should_invert=False)
test_dataloader = DataLoader(test_dataset, num_workers=0, batch_size=1, shuffle=True)
net.eval()
dataiter = iter(test_dataloader)
x0, _, _ = next(dataiter)
for i in range(10):
    _, x1, label2 = next(dataiter)
    with torch.no_grad():
        output1, output2 = net(x0.to(device), x1.to(device))
    print('Dissimilarity: {:.2f}'.format(F.pairwise_distance(output1, output2).item()))
"""

CHANGES = (
    Change("fused Adam", "fused_optimizer", edits={"lr=0.0005)": "lr=0.0005, fused=True)"}),
    Change(
        "both images of the pairs in one pass",
        "other",
        edits={
            "        output1 = self.forward_once(input1)\n"
            "        output2 = self.forward_once(input2)\n"
            "        return output1, output2": "        return self.forward_once(torch.cat([input1, input2])).chunk(2)"
        },
    ),
    Change(
        "images decoded once, no workers",
        "cache_items",
        edits={
            "import os\nimport random\n": "import functools\nimport os\nimport random\n",
            "    def load(self, path):": "    @functools.lru_cache(maxsize=None)\n    def load(self, path):",
            "shuffle=True, num_workers=2,": "shuffle=True, num_workers=0,",
        },
    ),
    Change("batches of 128", "larger_batch", edits={"train_batch_size = 64": "train_batch_size = 128"}),
    Change(
        "persistent workers", "persistent_workers", edits={"num_workers=2,": "num_workers=2, persistent_workers=True,"}
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output1, output2 = net(img0, img1)\n"
            "        loss_contrastive = criterion(output1, output2, label)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            output1, output2 = net(img0, img1)\n"
            "        loss_contrastive = criterion(output1.float(), output2.float(), label)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="pairs_seen", loss="loss_contrastive.item()", seconds=8)
