"""Super-resolution with a perceptual loss; every item opens a PNG of which it needs a small crop, as in SRResNet tutorials."""

import numpy as np
import torch
from PIL import Image
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def narrow_vgg() -> nn.Sequential:
    """The first two stages of a narrow VGG."""
    layers: list[nn.Module] = []
    for inputs, outputs, pool in ((3, 16, False), (16, 16, True), (16, 32, False), (32, 32, False)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        if pool:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def prepare(scale: float) -> Namespace:
    """PNG files with blobs of colour and a little noise, and the weights of a trained network."""
    rng = np.random.default_rng(0)
    for index in range(scaled(64, scale, 16)):
        colours = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        blobs = colours.resize((480, 320), Image.Resampling.BICUBIC)
        pixels = np.asarray(blobs, dtype=np.int16) + rng.integers(-3, 4, (320, 480, 1))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(f"train_{index:03d}.png", compress_level=3)
    torch.save(narrow_vgg().state_dict(), "vgg_truncated.pth")
    return {"narrow_vgg": narrow_vgg}


CELL = """
import glob
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
from PIL import Image

crop_size, scaling_factor = 48, 2
batch_size = 16
epochs = 10
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
imagenet_mean = torch.FloatTensor([0.485, 0.456, 0.406]).view(3, 1, 1)
imagenet_std = torch.FloatTensor([0.229, 0.224, 0.225]).view(3, 1, 1)

class SRDataset(Dataset):
    def __init__(self, pattern):
        self.images = sorted(glob.glob(pattern))

    def __getitem__(self, i):
        img = Image.open(self.images[i], mode='r')
        img = img.convert('RGB')
        left = random.randint(1, img.width - crop_size)
        top = random.randint(1, img.height - crop_size)
        hr_img = img.crop((left, top, left + crop_size, top + crop_size))
        lr_img = hr_img.resize((crop_size // scaling_factor, crop_size // scaling_factor), Image.BICUBIC)
        hr = torch.from_numpy(np.array(hr_img)).permute(2, 0, 1).float() / 255.
        lr = torch.from_numpy(np.array(lr_img)).permute(2, 0, 1).float() / 255.
        return (lr - imagenet_mean) / imagenet_std, (hr - imagenet_mean) / imagenet_std

    def __len__(self):
        return len(self.images)

class ResidualBlock(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.PReLU(),
                                 nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n))

    def forward(self, x):
        return x + self.net(x)

class SRResNet(nn.Module):
    def __init__(self, n=16, n_blocks=3):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, n, 9, padding=4), nn.PReLU())
        self.blocks = nn.Sequential(*[ResidualBlock(n) for _ in range(n_blocks)])
        self.upsample = nn.Sequential(nn.Conv2d(n, 4 * n, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.tail = nn.Conv2d(n, 3, 5, padding=2)

    def forward(self, x):
        x = self.head(x)
        return self.tail(self.upsample(x + self.blocks(x)))

truncated_vgg19 = narrow_vgg()
truncated_vgg19.load_state_dict(torch.load('vgg_truncated.pth'))
truncated_vgg19.eval().to(device)
for p in truncated_vgg19.parameters():
    p.requires_grad = False

train_dataset = SRDataset('train_*.png')
train_loader = DataLoader(train_dataset, batch_size=batch_size, shuffle=True)
model = SRResNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
content_loss_criterion = nn.MSELoss()
beta = 1e-2

n_crops = 0
for epoch in range(epochs):
    model.train()
    losses = []
    for i, (lr_imgs, hr_imgs) in enumerate(train_loader):
        lr_imgs, hr_imgs = lr_imgs.to(device), hr_imgs.to(device)
        sr_imgs = model(lr_imgs)
        sr_features = truncated_vgg19(sr_imgs)
        hr_features = truncated_vgg19(hr_imgs).detach()
        loss = content_loss_criterion(sr_imgs, hr_imgs) + beta * content_loss_criterion(sr_features, hr_features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        n_crops += lr_imgs.size(0)
    print(f'Epoch: [{epoch}/{epochs}]---- Loss {losses[-1]:.4f} ({np.mean(losses):.4f})')
"""

CHANGES = (
    Change(
        "images decoded once",
        "cache_items",
        edits={
            "        self.images = sorted(glob.glob(pattern))\n": "        self.images = [Image.open(path).convert('RGB') "
            "for path in sorted(glob.glob(pattern))]\n",
            "        img = Image.open(self.images[i], mode='r')\n        img = img.convert('RGB')\n": ""
            "        img = self.images[i]\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "two persistent workers",
        "persistent_workers",
        edits={"shuffle=True)": "shuffle=True, num_workers=2, persistent_workers=True)"},
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "SRResNet().to(device)": "SRResNet().to(device, memory_format=torch.channels_last)",
            "truncated_vgg19.eval().to(device)": "truncated_vgg19.eval().to(device, memory_format=torch.channels_last)",
            "lr_imgs.to(device), hr_imgs.to(device)": "lr_imgs.to(device, memory_format=torch.channels_last), "
            "hr_imgs.to(device, memory_format=torch.channels_last)",
        },
    ),
    Change("batches of 32", "larger_batch", edits={"batch_size = 16": "batch_size = 32"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_crops", seconds=6)
