"""Labels of satellite images from a CSV with tags and a folder of JPEG files, as in notebooks on the Planet competition."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

WEATHER = ("clear", "partly_cloudy", "cloudy", "haze")
GROUND = ("primary", "agriculture", "road", "water", "habitation", "cultivation", "bare_ground", "selective_logging")
RARE = ("artisinal_mine", "blooming", "slash_burn", "blow_down", "conventional_mine")


def prepare(scale: float) -> Namespace:
    """Chips of 256 x 256 pixels whose colours and stripes depend on their tags, and the table of tags."""
    rng = np.random.default_rng(0)
    folder = Path("input/train-jpg")
    folder.mkdir(parents=True)
    tags = (*WEATHER, *GROUND, *RARE)
    colours = rng.uniform(40, 200, (len(tags), 3))
    rows = []
    for index in range(scaled(160, scale, 40)):
        present = [int(rng.integers(4)), 4]
        present += [i for i in range(5, 17) if rng.random() < (0.3 if i < 12 else 0.05)]
        coarse = rng.normal(0, 20, (16, 16, 3)) + colours[present].mean(0)
        for tag in present[2:]:
            place = rng.integers(0, 14, 2)
            coarse[place[0] : place[0] + 3, place[1] : place[1] + 3] = colours[tag]
        image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize((256, 256), Image.Resampling.BICUBIC)
        image.save(folder / f"train_{index}.jpg", quality=92)
        rows.append((f"train_{index}", " ".join(tags[i] for i in present)))
    pd.DataFrame(rows, columns=["image_name", "tags"]).to_csv("input/train_v2.csv", index=False)
    return {}


CELL = """
import os
import random
import time
import numpy as np
import pandas as pd
from PIL import Image
from sklearn.metrics import fbeta_score
from sklearn.model_selection import train_test_split
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

IMG_DIR = 'input/train-jpg'
IMG_SIZE = 64
BATCH_SIZE = 16
EPOCHS = 4
LR = 1e-3
THRESHOLD = 0.2
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

def seed_everything(seed):
    random.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

seed_everything(42)
df = pd.read_csv('input/train_v2.csv')
labels = sorted(set(t for tags in df['tags'] for t in tags.split(' ')))
label_map = {l: i for i, l in enumerate(labels)}
print(df.head(), len(labels))
train_df, valid_df = train_test_split(df, test_size=0.2, random_state=42)

class PlanetDataset(Dataset):
    def __init__(self, df, img_dir, augment=False):
        self.df = df.reset_index(drop=True)
        self.img_dir = img_dir
        self.augment = augment

    def __len__(self):
        return len(self.df)

    def load_image(self, name):
        img = Image.open(os.path.join(self.img_dir, name + '.jpg')).convert('RGB')
        return img.resize((IMG_SIZE, IMG_SIZE), Image.BILINEAR)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        img = self.load_image(row['image_name'])
        if self.augment:
            if random.random() < 0.5:
                img = img.transpose(Image.FLIP_LEFT_RIGHT)
            if random.random() < 0.5:
                img = img.transpose(Image.FLIP_TOP_BOTTOM)
            img = img.rotate(90 * random.randint(0, 3))
        img = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255
        img = (img - MEAN) / STD
        target = torch.zeros(len(label_map))
        for tag in row['tags'].split(' '):
            target[label_map[tag]] = 1.
        return img, target

class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or in_planes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)

class ResNet18(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1))
        layers, in_planes = [], 64
        for planes, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [BasicBlock(in_planes, planes, stride), BasicBlock(planes, planes)]
            in_planes = planes
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

train_loader = DataLoader(PlanetDataset(train_df, IMG_DIR, augment=True), batch_size=BATCH_SIZE, shuffle=True,
                          num_workers=2)
valid_loader = DataLoader(PlanetDataset(valid_df, IMG_DIR), batch_size=BATCH_SIZE, shuffle=False, num_workers=2)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = ResNet18(len(labels)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
criterion = nn.BCEWithLogitsLoss()

def train_one_epoch(epoch):
    model.train()
    running_loss, seen = 0.0, 0
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(data)
        seen += len(data)
        if batch_idx % 10 == 0:
            print('Train Epoch: {} [{}/{}]\\tLoss: {:.6f}'.format(epoch, seen, len(train_loader.dataset), loss.item()))
    return running_loss / seen, seen

def validate():
    model.eval()
    val_loss, preds, targets = 0.0, [], []
    with torch.no_grad():
        for data, target in valid_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            val_loss += criterion(output, target).item() * len(data)
            preds.append(torch.sigmoid(output).cpu().numpy())
            targets.append(target.cpu().numpy())
    preds, targets = np.concatenate(preds), np.concatenate(targets)
    f2 = fbeta_score(targets, preds > THRESHOLD, beta=2, average='samples', zero_division=0)
    return val_loss / len(valid_loader.dataset), f2

best_f2, total_seen = 0.0, 0
for epoch in range(1, EPOCHS + 1):
    start = time.time()
    train_loss, seen = train_one_epoch(epoch)
    val_loss, f2 = validate()
    scheduler.step()
    total_seen += seen
    print(f'Epoch {epoch}: train {train_loss:.4f} valid {val_loss:.4f} F2 {f2:.4f} time {time.time() - start:.1f}s')
    if f2 > best_f2:
        best_f2 = f2
        torch.save(model.state_dict(), 'best_model.pth')
"""

WORKERS = "augment=True), batch_size=BATCH_SIZE, shuffle=True,\n                          num_workers=2)"
VALID_WORKERS = "shuffle=False, num_workers=2)"

CHANGES = (
    Change(
        "images resized once, before the workers start",
        "cache_items",
        edits={
            "        self.augment = augment\n": ""
            "        self.augment = augment\n"
            "        self.images = {name: self.load_image(name) for name in self.df['image_name']}\n",
            "img = self.load_image(row['image_name'])": "img = self.images[row['image_name']]",
        },
    ),
    Change(
        "JPEG files decoded at a quarter of their size",
        "vectorize_items",
        edits={
            "        img = Image.open(os.path.join(self.img_dir, name + '.jpg')).convert('RGB')\n": ""
            "        img = Image.open(os.path.join(self.img_dir, name + '.jpg'))\n"
            "        img.draft('RGB', (IMG_SIZE, IMG_SIZE))\n"
            "        img = img.convert('RGB')\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output = model(data)\n        loss = criterion(output, target)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            output = model(data)\n"
            "            loss = criterion(output, target)\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "ResNet18(len(labels)).to(device)": "ResNet18(len(labels)).to(device, memory_format=torch.channels_last)",
            "data, target = data.to(device), target.to(device)\n        optimizer": ""
            "data, target = data.to(device, memory_format=torch.channels_last), target.to(device)\n        optimizer",
        },
    ),
    Change("batches of 32", "larger_batch", edits={"BATCH_SIZE = 16": "BATCH_SIZE = 32"}),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={
            WORKERS: WORKERS.replace("num_workers=2)", "num_workers=2, persistent_workers=True)"),
            VALID_WORKERS: "shuffle=False, num_workers=2, persistent_workers=True)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total_seen", loss="train_loss", seconds=8)
