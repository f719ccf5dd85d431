"""Clouds in satellite patches of four 16-bit band files: a residual U-Net with NumPy transforms in the manner of albumentations."""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SIZE = 160


def patch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Four bands of ground with clouds above it, and the mask of the clouds."""
    ground = np.stack([ndimage.gaussian_filter(rng.normal(0, 1, (SIZE, SIZE)), 3) for _ in range(4)])
    cover = ndimage.gaussian_filter(rng.normal(0, 1, (SIZE, SIZE)), 10) * 30 + rng.normal(0, 0.7)
    opacity = 1 / (1 + np.exp(-4 * cover))
    bands = 7000 + 5000 * ground + 3000 * rng.random((4, 1, 1))
    bands = bands * (1 - opacity) + opacity * (22000 + 4000 * ground[:1])
    bands += rng.normal(0, 300, bands.shape)
    return bands.clip(0, 65535).astype(np.uint16), (cover > 0).astype(np.uint8) * 255


def prepare(scale: float) -> Namespace:
    """Patches as TIFF files, one folder per band and one for the masks, and a CSV file of their names."""
    rng = np.random.default_rng(0)
    root = Path("cloud_data")
    for split, count in (("train", scaled(96, scale, 16)), ("val", scaled(24, scale, 4))):
        for band in ("red", "green", "blue", "nir", "gt"):
            (root / f"{split}_{band}").mkdir(parents=True)
        names = []
        for index in range(count):
            names.append(f"patch_{index + 1}_{rng.integers(1, 400)}_by_{rng.integers(1, 24)}_LC08")
            bands, mask = patch(rng)
            for band, pixels in zip(("red", "green", "blue", "nir"), bands, strict=True):
                path = root / f"{split}_{band}" / f"{band}_{names[-1]}.TIF"
                Image.fromarray(pixels).save(path, compression="tiff_lzw")
            Image.fromarray(mask).save(root / f"{split}_gt" / f"gt_{names[-1]}.TIF", compression="tiff_lzw")
        (root / f"{split}_patches.csv").write_text("name\n" + "\n".join(names) + "\n")
    return {}


CELL = """
import os
import random
import time
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from torch.utils.data import Dataset, DataLoader

DATA_DIR = 'cloud_data'
BANDS = ['red', 'green', 'blue', 'nir']
CROP = 96
BATCH_SIZE = 8
EPOCHS = 6
LR = 2e-3
NUM_WORKERS = 2
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


# ---------------------------------------------------------------- transforms (H, W, C) and (H, W)
class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image, mask):
        for t in self.transforms:
            image, mask = t(image, mask)
        return image, mask

class HorizontalFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image, mask):
        if random.random() < self.p:
            image, mask = image[:, ::-1], mask[:, ::-1]
        return image, mask

class VerticalFlip(HorizontalFlip):
    def __call__(self, image, mask):
        if random.random() < self.p:
            image, mask = image[::-1], mask[::-1]
        return image, mask

class RandomRotate90:
    def __call__(self, image, mask):
        k = random.randint(0, 3)
        return np.rot90(image, k), np.rot90(mask, k)

class ShiftScaleRotate:
    def __init__(self, shift_limit=0.06, scale_limit=0.15, rotate_limit=30, p=0.5):
        self.shift_limit, self.scale_limit, self.rotate_limit, self.p = shift_limit, scale_limit, rotate_limit, p

    def __call__(self, image, mask):
        if random.random() >= self.p:
            return image, mask
        h, w = mask.shape
        angle = np.deg2rad(random.uniform(-self.rotate_limit, self.rotate_limit))
        scale = 1 + random.uniform(-self.scale_limit, self.scale_limit)
        shift = np.array([random.uniform(-self.shift_limit, self.shift_limit) * h,
                          random.uniform(-self.shift_limit, self.shift_limit) * w])
        matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
        center = np.array([(h - 1) / 2, (w - 1) / 2])
        offset = center - matrix @ (center + shift)
        image = np.stack([ndimage.affine_transform(image[..., c], matrix, offset, order=1, mode='reflect')
                          for c in range(image.shape[-1])], axis=-1)
        mask = ndimage.affine_transform(mask, matrix, offset, order=0, mode='reflect')
        return image, mask

class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image, mask):
        y = random.randint(0, mask.shape[0] - self.size)
        x = random.randint(0, mask.shape[1] - self.size)
        return image[y:y + self.size, x:x + self.size], mask[y:y + self.size, x:x + self.size]

class RandomBrightnessContrast:
    def __init__(self, limit=0.2, p=0.5):
        self.limit, self.p = limit, p

    def __call__(self, image, mask):
        if random.random() < self.p:
            alpha = 1 + random.uniform(-self.limit, self.limit)
            beta = random.uniform(-self.limit, self.limit)
            image = image * alpha + beta * image.mean()
        return image, mask

class GaussNoise:
    def __init__(self, sigma=0.01, p=0.3):
        self.sigma, self.p = sigma, p

    def __call__(self, image, mask):
        if random.random() < self.p:
            image = image + np.random.normal(0, self.sigma, image.shape)
        return image, mask

class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = np.array(mean), np.array(std)

    def __call__(self, image, mask):
        return (image - self.mean) / self.std, mask

class ToTensor:
    def __call__(self, image, mask):
        image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float()
        mask = torch.from_numpy(np.ascontiguousarray(mask)).float().unsqueeze(0)
        return image, mask


MEAN, STD = [0.2, 0.2, 0.2, 0.22], [0.11, 0.11, 0.11, 0.12]
train_tf = Compose([HorizontalFlip(), VerticalFlip(), RandomRotate90(), ShiftScaleRotate(), RandomCrop(CROP),
                    RandomBrightnessContrast(), GaussNoise(), Normalize(MEAN, STD), ToTensor()])
val_tf = Compose([Normalize(MEAN, STD), ToTensor()])


class CloudDataset(Dataset):
    def __init__(self, split, transform):
        self.split = split
        self.names = pd.read_csv(os.path.join(DATA_DIR, f'{split}_patches.csv'))['name'].tolist()
        self.transform = transform

    def __len__(self):
        return len(self.names)

    def open_band(self, band, name):
        return np.array(Image.open(os.path.join(DATA_DIR, f'{self.split}_{band}', f'{band}_{name}.TIF')))

    def load(self, name):
        image = np.stack([self.open_band(band, name) for band in BANDS], axis=-1)
        image = image.astype(np.float32) / np.iinfo(np.uint16).max
        mask = np.where(self.open_band('gt', name) == 255, 1, 0).astype(np.uint8)
        return image, mask

    def __getitem__(self, idx):
        image, mask = self.load(self.names[idx])
        return self.transform(image, mask)


# ---------------------------------------------------------------- model
class ResBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = None
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        identity = x if self.skip is None else self.skip(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)) + identity, inplace=True)

class UpBlock(nn.Module):
    def __init__(self, cin, cskip, cout):
        super().__init__()
        self.conv = ResBlock(cin + cskip, cout)

    def forward(self, x, skip=None):
        x = F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        return self.conv(x)

class ResUNet(nn.Module):
    def __init__(self, in_ch=4, base=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_ch, base, 7, 2, 3, bias=False), nn.BatchNorm2d(base),
                                  nn.ReLU(inplace=True))
        self.enc1 = ResBlock(base, base * 2, 2)
        self.enc2 = ResBlock(base * 2, base * 4, 2)
        self.enc3 = ResBlock(base * 4, base * 8, 2)
        self.up3 = UpBlock(base * 8, base * 4, base * 4)
        self.up2 = UpBlock(base * 4, base * 2, base * 2)
        self.up1 = UpBlock(base * 2, base, base)
        self.up0 = UpBlock(base, 0, base // 2)
        self.head = nn.Conv2d(base // 2, 1, 1)

    def forward(self, x):
        s0 = self.stem(x)
        s1 = self.enc1(s0)
        s2 = self.enc2(s1)
        s3 = self.enc3(s2)
        x = self.up3(s3, s2)
        x = self.up2(x, s1)
        x = self.up1(x, s0)
        return self.head(self.up0(x))


class BCEDiceLoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.bce = nn.BCEWithLogitsLoss()
        self.smooth = smooth

    def forward(self, logits, target):
        prob = torch.sigmoid(logits)
        inter = (prob * target).sum(dim=(1, 2, 3))
        union = prob.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3))
        dice = (2 * inter + self.smooth) / (union + self.smooth)
        return 0.5 * self.bce(logits, target) + 1 - dice.mean()

def iou_score(pred, target):
    inter = np.logical_and(pred, target).sum()
    union = np.logical_or(pred, target).sum()
    return (inter + 1e-7) / (union + 1e-7)

@torch.no_grad()
def validate(model, loader, criterion):
    model.eval()
    losses, ious, accs = [], [], []
    for images, masks in loader:
        images, masks = images.to(DEVICE), masks.to(DEVICE)
        logits = model(images)
        losses.append(criterion(logits, masks).item())
        preds = (torch.sigmoid(logits) > 0.5).cpu().numpy()
        gts = masks.cpu().numpy() > 0.5
        for p, g in zip(preds, gts):
            ious.append(iou_score(p, g))
            accs.append((p == g).mean())
    return np.mean(losses), np.mean(ious), np.mean(accs)


train_ds = CloudDataset('train', train_tf)
val_ds = CloudDataset('val', val_tf)
train_dl = DataLoader(train_ds, batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, pin_memory=DEVICE == 'cuda')
val_dl = DataLoader(val_ds, batch_size=4, shuffle=False, num_workers=NUM_WORKERS, pin_memory=DEVICE == 'cuda')
print(f'{len(train_ds)} train / {len(val_ds)} val patches')

model = ResUNet().to(DEVICE)
criterion = BCEDiceLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=EPOCHS, power=0.9)

history, best_iou, total = [], -1, 0
for epoch in range(EPOCHS):
    t0 = time.time()
    model.train()
    running = 0.0
    for images, masks in train_dl:
        images = images.to(DEVICE, non_blocking=True)
        masks = masks.to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        logits = model(images)
        loss = criterion(logits, masks)
        loss.backward()
        optimizer.step()
        running += loss.item() * images.size(0)
        total += images.size(0)
    scheduler.step()
    train_loss = running / len(train_ds)
    val_loss, val_iou, val_acc = validate(model, val_dl, criterion)
    history.append((train_loss, val_loss, val_iou, val_acc))
    print(f'[{epoch + 1:02d}/{EPOCHS}] train {train_loss:.4f}  val {val_loss:.4f}  IoU {val_iou:.4f}  '
          f'acc {val_acc:.4f}  {time.time() - t0:.1f}s')
    if val_iou > best_iou:
        best_iou = val_iou
        torch.save({'epoch': epoch, 'state_dict': model.state_dict(), 'iou': val_iou}, 'best_resunet.pth')
pd.DataFrame(history, columns=['train_loss', 'val_loss', 'val_iou', 'val_acc']).to_csv('history.csv', index=False)
"""

PER_BAND = CELL[
    CELL.index("        image = np.stack([ndimage") : CELL.index("        return image, mask\n\nclass RandomCrop")
]
ONE_GRID = """        # the same map for affine_grid: (x, y) within [-1, 1]
        size = np.array([h, w])
        theta = np.zeros((1, 2, 3))
        theta[0, :, :2] = (matrix * size[None] / size[:, None])[::-1, ::-1]
        theta[0, :, 2] = ((2 * (matrix @ center + offset) + 1) / size - 1)[::-1]
        grid = F.affine_grid(torch.from_numpy(theta).float(), (1, 1, h, w), align_corners=False)
        bands = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]
        bands = F.grid_sample(bands, grid, mode='bilinear', padding_mode='reflection', align_corners=False)
        image = bands[0].permute(1, 2, 0).numpy()
        label = torch.from_numpy(np.ascontiguousarray(mask)).float()[None, None]
        mask = F.grid_sample(label, grid, mode='nearest', padding_mode='reflection', align_corners=False)[0, 0].numpy()
"""

CHANGES = (
    Change(
        "patches read once",
        "cache_items",
        edits={
            "        self.transform = transform\n\n": ""
            "        self.transform = transform\n"
            "        self.patches = [self.load(name) for name in self.names]\n\n",
            "image, mask = self.load(self.names[idx])": "image, mask = self.patches[idx]",
        },
    ),
    Change("one grid_sample of all bands", "vectorize_items", edits={PER_BAND: ONE_GRID}),
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = ResUNet().to(DEVICE)": "model = ResUNet().to(DEVICE, memory_format=torch.channels_last)",
            "images = images.to(DEVICE, non_blocking=True)": ""
            "images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits = model(images)\n        loss = criterion(logits, masks)\n": ""
            "        with torch.autocast(DEVICE, dtype=torch.bfloat16):\n"
            "            logits = model(images)\n"
            "            loss = criterion(logits, masks)\n"
        },
    ),
    Change("batches of 16", "larger_batch", edits={"BATCH_SIZE = 8": "BATCH_SIZE = 16"}),
    Change("no workers", "num_workers", edits={"NUM_WORKERS = 2": "NUM_WORKERS = 0"}),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total", seconds=8)
