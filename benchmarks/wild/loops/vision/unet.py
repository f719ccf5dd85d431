"""A U-Net with a Dice loss on images in memory, as in Carvana repositories; convolutions take nearly all time."""

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def double_conv(inputs: int, outputs: int) -> nn.Module:
    """Two convolutions with batch normalization."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """A U-Net of three levels."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.inc = double_conv(3, channels)
        self.down1 = double_conv(channels, channels * 2)
        self.down2 = double_conv(channels * 2, channels * 4)
        self.up1 = nn.ConvTranspose2d(channels * 4, channels * 2, 2, 2)
        self.conv1 = double_conv(channels * 4, channels * 2)
        self.up2 = nn.ConvTranspose2d(channels * 2, channels, 2, 2)
        self.conv2 = double_conv(channels * 2, channels)
        self.outc = nn.Conv2d(channels, 1, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Mask logits."""
        x1 = self.inc(x)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        x = self.conv1(torch.cat([x2, self.up1(x3)], dim=1))
        x = self.conv2(torch.cat([x1, self.up2(x)], dim=1))
        logits: Tensor = self.outc(x)
        return logits


def prepare(scale: float) -> Namespace:
    """Images and masks that a script has resized and stored as tensors."""
    count = scaled(80, scale, 4)
    torch.save({"x": torch.rand(count, 3, 96, 96), "y": (torch.rand(count, 1, 96, 96) > 0.7).float()}, "carvana.pt")
    return {"UNet": UNet}


CELL = """
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader, random_split

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
data = torch.load('carvana.pt')
train_set = TensorDataset(data['x'], data['y'])
train_loader = DataLoader(train_set, shuffle=True, batch_size=4, num_workers=0)

def dice_loss(pred, target, smooth=1.):
    pred = torch.sigmoid(pred)
    intersection = (pred * target).sum(dim=(1, 2, 3))
    union = pred.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3))
    return (1 - (2. * intersection + smooth) / (union + smooth)).mean()

model = UNet().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9)
criterion = nn.BCEWithLogitsLoss()
global_step, n_images, epoch_loss = 0, 0, 0

for epoch in range(1, 3):
    model.train()
    for batch in train_loader:
        images, true_masks = batch
        images = images.to(device=device, dtype=torch.float32)
        true_masks = true_masks.to(device=device)
        masks_pred = model(images)
        loss = criterion(masks_pred, true_masks) + dice_loss(masks_pred, true_masks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        global_step += 1
        n_images += images.shape[0]
        epoch_loss += loss.item()
    print('epoch', epoch, 'loss', epoch_loss / global_step)
"""

CHANGES = (
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = UNet().to(device)": "model = UNet().to(device, memory_format=torch.channels_last)",
            "images.to(device=device, dtype=torch.float32)": "images.to(device=device, dtype=torch.float32, "
            "memory_format=torch.channels_last)",
        },
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "masks_pred = model(images)\n": "with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            masks_pred = model(images)\n        masks_pred = masks_pred.float()\n"
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change("batches of 16", "larger_batch", edits={"batch_size=4": "batch_size=16"}),
    Change("compile", "compile", edits={"UNet().to(device)": "torch.compile(UNet().to(device))"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", seconds=6)
