"""A DCGAN with two optimizers, statistics every iteration and a grid of samples now and then, as in the DCGAN tutorial."""

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Generator(nn.Module):
    """Transposed convolutions from noise to images of 32 by 32 pixels."""

    def __init__(self, nz: int, ngf: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Images."""
        images: Tensor = self.main(noise)
        return images


class Discriminator(nn.Module):
    """Convolutions from images to a probability."""

    def __init__(self, ndf: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities that the images are real."""
        probabilities: Tensor = self.main(images)
        return probabilities


def prepare(scale: float) -> Namespace:
    """Faces resized to 32 by 32."""
    images = torch.rand(scaled(3200, scale, 64), 3, 32, 32) * 2 - 1
    return {"dataset": torch.utils.data.TensorDataset(images), "Generator": Generator, "Discriminator": Discriminator}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from PIL import Image

nz, ngf, ndf, batch_size, num_epochs = 100, 32, 32, 64, 1
device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
dataloader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=0)

def weights_init(m):
    classname = m.__class__.__name__
    if classname.find('Conv') != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find('BatchNorm') != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)

netG, netD = Generator(nz, ngf).to(device), Discriminator(ndf).to(device)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

G_losses, D_losses, iters, real_seen = [], [], 0, 0
for epoch in range(num_epochs):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real_cpu = data[0].to(device)
        b_size = real_cpu.size(0)
        label = torch.full((b_size,), 1., dtype=torch.float, device=device)
        output = netD(real_cpu).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()

        noise = torch.randn(b_size, nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(0.)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        errD = errD_real + errD_fake
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1.)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()

        real_seen += b_size
        if i % 5 == 0:
            print(f'[{epoch}/{num_epochs}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f} '
                  f'D(x): {D_x:.4f} D(G(z)): {D_G_z1:.4f}')
        G_losses.append(errG.item())
        D_losses.append(errD.item())
        if iters % 10 == 0:
            with torch.no_grad():
                fake = netG(fixed_noise).detach().cpu()
            grid = fake.view(8, 8, 3, 32, 32).permute(0, 3, 1, 4, 2).reshape(256, 256, 3)
            Image.fromarray(((grid + 1) * 127.5).numpy().astype(np.uint8)).save(f'fake_{iters:04d}.png')
        iters += 1
"""

CHANGES = (
    Change(
        "channels last",
        "channels_last",
        edits={
            "Generator(nz, ngf).to(device)": "Generator(nz, ngf).to(device, memory_format=torch.channels_last)",
            "Discriminator(ndf).to(device)": "Discriminator(ndf).to(device, memory_format=torch.channels_last)",
            "data[0].to(device)": "data[0].to(device, memory_format=torch.channels_last)",
        },
    ),
    Change(
        "bf16 autocast of the networks",
        "precision",
        edits={
            "netG.apply(weights_init)\n": """netG.apply(weights_init)
for net in (netG, netD):
    forward = net.main.forward
    def autocast_forward(x, forward=forward):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = forward(x)
        return out.float()
    net.main.forward = autocast_forward
"""
        },
    ),
    Change("samples at the end only", "fewer_logs", edits={"iters % 10 == 0": "iters % 1000 == 999"}),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "netD.parameters(), lr=0.0002,": "netD.parameters(), fused=True, lr=0.0002,",
            "netG.parameters(), lr=0.0002,": "netG.parameters(), fused=True, lr=0.0002,",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="real_seen", loss="errG.item() + errD.item()", seconds=6)
