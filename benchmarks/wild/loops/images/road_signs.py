"""Class and box of the road sign in photos with VOC annotations, PIL augmentation in a Dataset, as in PyTorch forum posts."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

CLASSES = ("crosswalk", "speedlimit", "stop", "trafficlight")

ANNOTATION = """<annotation>
    <folder>images</folder>
    <filename>{name}.png</filename>
    <size><width>400</width><height>300</height><depth>3</depth></size>
    <segmented>0</segmented>
    <object>
        <name>{label}</name>
        <pose>Unspecified</pose><truncated>0</truncated><occluded>0</occluded><difficult>0</difficult>
        <bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
    </object>
</annotation>
"""


def draw_sign(draw: ImageDraw.ImageDraw, label: str, box: list[int]) -> None:
    """Draw one sign into its box."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    if label == "crosswalk":
        draw.rectangle(box, fill=(30, 70, 190))
        draw.polygon([(left + width // 2, top + 4), (left + 4, bottom - 4), (right - 4, bottom - 4)], fill="white")
    elif label == "speedlimit":
        draw.ellipse(box, fill="white", outline=(200, 20, 20), width=max(3, width // 8))
        draw.text((left + width // 3, top + height // 3), "50", fill="black")
    elif label == "stop":
        x, y = width // 3, height // 3
        corners = [(left + x, top), (right - x, top), (right, top + y), (right, bottom - y)]
        corners += [(right - x, bottom), (left + x, bottom), (left, bottom - y), (left, top + y)]
        draw.polygon(corners, fill=(190, 20, 25), outline="white")
    else:
        draw.rectangle(box, fill=(35, 35, 35))
        for light, colour in enumerate([(220, 30, 30), (220, 190, 40), (40, 200, 70)]):
            middle = top + height * (2 * light + 1) // 6
            radius = height // 9
            x = left + width // 2
            draw.ellipse([x - radius, middle - radius, x + radius, middle + radius], fill=colour)


def prepare(scale: float) -> Namespace:
    """Photos of 400 by 300 with a street, houses and one sign as PNG files, and one XML file for each."""
    rng = np.random.default_rng(0)
    for folder in ("images", "annotations"):
        Path("road_signs", folder).mkdir(parents=True)
    for index in range(scaled(160, scale, 16) + scaled(32, scale, 8)):
        image = Image.new("RGB", (400, 300), tuple(int(v) for v in rng.integers(120, 230, 3)))
        draw = ImageDraw.Draw(image)
        draw.rectangle([0, 190, 400, 300], fill=(90, 90, 95))
        for _ in range(8):
            x, width = int(rng.integers(-30, 390)), int(rng.integers(30, 90))
            colour = tuple(int(v) for v in rng.integers(40, 200, 3))
            draw.rectangle([x, int(rng.integers(40, 170)), x + width, 200], fill=colour)
        label = CLASSES[int(rng.integers(len(CLASSES)))]
        width = int(rng.integers(40, 110))
        height = width * 2 if label == "trafficlight" else width
        left, top = int(rng.integers(4, 396 - width)), int(rng.integers(4, 296 - height))
        box = [left, top, left + width, top + height]
        draw_sign(draw, label, box)
        image = image.filter(ImageFilter.GaussianBlur(1.2))
        pixels = np.asarray(image, dtype=np.float32) + rng.normal(0, 5, (300, 400, 1))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(f"road_signs/images/road{index}.png")
        xml = ANNOTATION.format(name=f"road{index}", label=label, box=box)
        Path(f"road_signs/annotations/road{index}.xml").write_text(xml)
    return {"num_val": scaled(32, scale, 8)}


CELL = """
import os
import random
import time
import xml.etree.ElementTree as ET
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

CLASSES = ['crosswalk', 'speedlimit', 'stop', 'trafficlight']
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


# Transforms of an image and its box (xmin, ymin, xmax, ymax in pixels)

class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img, box):
        for t in self.transforms:
            img, box = t(img, box)
        return img, box

class RandomHorizontalFlip:
    def __call__(self, img, box):
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
            box = [img.width - box[2], box[1], img.width - box[0], box[3]]
        return img, box

class ColorJitter:
    def __init__(self, brightness=0.3, saturation=0.3):
        self.brightness = brightness
        self.saturation = saturation

    def __call__(self, img, box):
        img = ImageEnhance.Brightness(img).enhance(random.uniform(1 - self.brightness, 1 + self.brightness))
        img = ImageEnhance.Color(img).enhance(random.uniform(1 - self.saturation, 1 + self.saturation))
        return img, box

class RandomCropAroundBox:
    def __call__(self, img, box):
        left = random.randint(0, int(box[0] * 0.8))
        top = random.randint(0, int(box[1] * 0.8))
        right = random.randint(int(box[2] + (img.width - box[2]) * 0.2), img.width)
        bottom = random.randint(int(box[3] + (img.height - box[3]) * 0.2), img.height)
        img = img.crop((left, top, right, bottom))
        return img, [box[0] - left, box[1] - top, box[2] - left, box[3] - top]

class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, img, box):
        sx, sy = self.size / img.width, self.size / img.height
        img = img.resize((self.size, self.size), Image.BILINEAR)
        return img, [box[0] * sx, box[1] * sy, box[2] * sx, box[3] * sy]

class ToTensor:
    def __call__(self, img, box):
        size = img.width
        img = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255
        img = (img - MEAN) / STD
        return img, torch.tensor(box, dtype=torch.float32) / size

train_transform = Compose([
    RandomHorizontalFlip(),
    ColorJitter(),
    RandomCropAroundBox(),
    Resize(128),
    ToTensor(),
])
val_transform = Compose([Resize(128), ToTensor()])


class RoadSignDataset(Dataset):
    def __init__(self, root, names, transform=None):
        self.root = root
        self.names = names
        self.transform = transform

    def __len__(self):
        return len(self.names)

    def read(self, name):
        img = Image.open(os.path.join(self.root, 'images', name + '.png')).convert('RGB')
        tree = ET.parse(os.path.join(self.root, 'annotations', name + '.xml'))
        obj = tree.getroot().find('object')
        label = CLASSES.index(obj.find('name').text)
        bndbox = obj.find('bndbox')
        box = [int(bndbox.find(k).text) for k in ('xmin', 'ymin', 'xmax', 'ymax')]
        return img, label, box

    def __getitem__(self, idx):
        img, label, box = self.read(self.names[idx])
        if self.transform is not None:
            img, box = self.transform(img, box)
        return img, label, box


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False),
                nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)

class SignNet(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2)
        )
        self.layers = nn.Sequential(
            BasicBlock(32, 32),
            BasicBlock(32, 64, stride=2),
            BasicBlock(64, 128, stride=2),
        )
        self.classifier = nn.Sequential(nn.BatchNorm1d(128), nn.Linear(128, num_classes))
        self.bb = nn.Sequential(nn.Flatten(), nn.Linear(128 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 4))

    def forward(self, x):
        x = self.layers(self.stem(x))
        pooled = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.classifier(pooled), self.bb(x)


names = sorted(os.path.splitext(f)[0] for f in os.listdir('road_signs/images'))
random.seed(42)
random.shuffle(names)
train_set = RoadSignDataset('road_signs', names[num_val:], train_transform)
val_set = RoadSignDataset('road_signs', names[:num_val], val_transform)
train_loader = DataLoader(train_set, batch_size=8, shuffle=True, num_workers=2, pin_memory=torch.cuda.is_available())
val_loader = DataLoader(val_set, batch_size=8, shuffle=False, num_workers=2)

device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
model = SignNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def box_iou(a, b):
    lt = torch.max(a[:, :2], b[:, :2])
    rb = torch.min(a[:, 2:], b[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area_a = (a[:, 2:] - a[:, :2]).clamp(min=0).prod(1)
    area_b = (b[:, 2:] - b[:, :2]).clamp(min=0).prod(1)
    return inter / (area_a + area_b - inter + 1e-6)

def train(epoch):
    model.train()
    running_loss, total = 0.0, 0
    for i, (images, labels, boxes) in enumerate(train_loader):
        images, labels, boxes = images.to(device), labels.to(device), boxes.to(device)
        optimizer.zero_grad()
        out_class, out_bb = model(images)
        loss_class = F.cross_entropy(out_class, labels)
        loss_bb = F.smooth_l1_loss(out_bb, boxes)
        loss = loss_class + 10 * loss_bb
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * images.size(0)
        total += images.size(0)
        if i % 10 == 0:
            print('Epoch [%d] batch [%d/%d] loss %.4f' % (epoch, i, len(train_loader), loss.item()))
    return running_loss / total, total

def validate():
    model.eval()
    correct, total, iou = 0, 0, 0.0
    with torch.no_grad():
        for images, labels, boxes in val_loader:
            images, labels, boxes = images.to(device), labels.to(device), boxes.to(device)
            out_class, out_bb = model(images)
            _, pred = torch.max(out_class, 1)
            correct += pred.eq(labels).sum().item()
            iou += box_iou(out_bb, boxes).sum().item()
            total += labels.size(0)
    return correct / total, iou / total

num_epochs = 5
images_seen = 0
best_iou = 0.0
for epoch in range(num_epochs):
    start = time.time()
    train_loss, total = train(epoch)
    val_acc, val_iou = validate()
    scheduler.step()
    images_seen += total
    print('Epoch %d: train loss %.4f, val acc %.3f, val IoU %.3f, %.1f s' % (
        epoch, train_loss, val_acc, val_iou, time.time() - start))
    if val_iou > best_iou:
        best_iou = val_iou
        torch.save({'epoch': epoch, 'state_dict': model.state_dict(), 'optimizer': optimizer.state_dict()},
                   'best_signnet.pth')
"""

TRAIN_WORKERS = "batch_size=8, shuffle=True, num_workers=2,"
VAL_WORKERS = "batch_size=8, shuffle=False, num_workers=2"

CHANGES = (
    Change(
        "photos and annotations read once",
        "cache_items",
        edits={
            "        self.transform = transform\n": ""
            "        self.transform = transform\n"
            "        self.items = [self.read(name) for name in names]\n",
            "self.read(self.names[idx])": "self.items[idx]",
        },
    ),
    Change(
        "colours changed after the photo is small",
        "vectorize_items",
        edits={
            "    ColorJitter(),\n    RandomCropAroundBox(),\n    Resize(128),\n": ""
            "    RandomCropAroundBox(),\n    Resize(128),\n    ColorJitter(),\n"
        },
    ),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={
            TRAIN_WORKERS: f"{TRAIN_WORKERS} persistent_workers=True,",
            VAL_WORKERS: f"{VAL_WORKERS}, persistent_workers=True",
        },
    ),
    Change(
        "no workers",
        "num_workers",
        edits={
            TRAIN_WORKERS: TRAIN_WORKERS.replace("num_workers=2", "num_workers=0"),
            VAL_WORKERS: VAL_WORKERS.replace("num_workers=2", "num_workers=0"),
        },
    ),
    Change("batches of 32", "larger_batch", edits={TRAIN_WORKERS: TRAIN_WORKERS.replace("=8", "=32")}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        out_class, out_bb = model(images)\n        loss_class = F.cross_entropy(out_class, labels)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            out_class, out_bb = model(images)\n"
            "        out_class, out_bb = out_class.float(), out_bb.float()\n"
            "        loss_class = F.cross_entropy(out_class, labels)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images_seen", loss="train_loss", seconds=8)
