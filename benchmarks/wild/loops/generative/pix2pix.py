"""A pix2pix network that turns label maps into facades, with the discriminator's step written as in student reports."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Pairs of label maps and images in memory."""
    count = scaled(256, scale, 8)
    maps = torch.nn.functional.interpolate(torch.rand(count, 3, 8, 8), size=(64, 64)) * 2 - 1
    photos = (maps.flip(1) + 0.2 * torch.randn(count, 3, 64, 64)).clamp(-1, 1)
    return {"facades_A": maps, "facades_B": photos}


CELL = """
import itertools
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

def down(cin, cout, norm=True):
    layers = [nn.Conv2d(cin, cout, 4, 2, 1, bias=not norm)]
    if norm:
        layers.append(nn.BatchNorm2d(cout))
    return nn.Sequential(*layers, nn.LeakyReLU(0.2))

def up(cin, cout):
    return nn.Sequential(nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())

class Generator(nn.Module):
    def __init__(self, f=48):
        super().__init__()
        self.d1, self.d2, self.d3, self.d4 = down(3, f, False), down(f, 2 * f), down(2 * f, 4 * f), down(4 * f, 4 * f)
        self.u1, self.u2, self.u3 = up(4 * f, 4 * f), up(8 * f, 2 * f), up(4 * f, f)
        self.out = nn.Sequential(nn.ConvTranspose2d(2 * f, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        e1 = self.d1(x); e2 = self.d2(e1); e3 = self.d3(e2)
        y = self.u1(self.d4(e3))
        y = self.u2(torch.cat([y, e3], 1))
        y = self.u3(torch.cat([y, e2], 1))
        return self.out(torch.cat([y, e1], 1))

netG = Generator()
netD = nn.Sequential(down(6, 32, False), down(32, 64), nn.Conv2d(64, 1, 4, 1, 1))
BCE, L1 = nn.BCEWithLogitsLoss(), nn.L1Loss()
opt_G = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
loader = DataLoader(TensorDataset(facades_A, facades_B), batch_size=8, shuffle=True)

n_images = 0
for epoch in range(2):
    for i, (real_A, real_B) in enumerate(loader):
        fake_B = netG(real_A)

        # Update D
        opt_D.zero_grad()
        pred_real = netD(torch.cat([real_A, real_B], 1))
        pred_fake = netD(torch.cat([real_A, fake_B], 1))
        loss_D = 0.5 * (BCE(pred_real, torch.ones_like(pred_real)) + BCE(pred_fake, torch.zeros_like(pred_fake)))
        loss_D.backward(retain_graph=True)
        opt_D.step()

        # Update G
        opt_G.zero_grad()
        pred_fake = netD(torch.cat([real_A, fake_B], 1))
        loss_GAN = BCE(pred_fake, torch.ones_like(pred_fake))
        loss_G = loss_GAN + 100 * L1(fake_B, real_B)
        loss_G.backward()
        opt_G.step()
        n_images += real_A.size(0)
        if i % 8 == 0:
            print(f'[{epoch}][{i}/{len(loader)}] D {loss_D.item():.4f} G {loss_G.item():.4f}')
"""

DETACHED = {
    "        pred_fake = netD(torch.cat([real_A, fake_B], 1))\n        loss_D = ": ""
    "        pred_fake = netD(torch.cat([real_A, fake_B.detach()], 1))\n        loss_D = ",
    "loss_D.backward(retain_graph=True)": "loss_D.backward()",
}

CHANGES = (
    Change(
        "detach in D's step, D without gradients in G's step",
        "no_grad",
        edits={
            **DETACHED,
            "        opt_G.zero_grad()\n": "        opt_G.zero_grad()\n        netD.requires_grad_(False)\n",
            "        opt_D.zero_grad()\n": "        netD.requires_grad_(True)\n        opt_D.zero_grad()\n",
        },
    ),
    Change(
        "bfloat16 generator and discriminator",
        "precision",
        edits={
            "BCE, L1 = ": "netG.forward = torch.autocast('cpu', dtype=torch.bfloat16)(netG.forward)\n"
            "netD.forward = torch.autocast('cpu', dtype=torch.bfloat16)(netD.forward)\nBCE, L1 = "
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "BCE, L1 = ": "netG.to(memory_format=torch.channels_last)\n"
            "netD.to(memory_format=torch.channels_last)\nBCE, L1 = "
        },
    ),
    Change(
        "batches of 16 pairs",
        "larger_batch",
        edits={"batch_size=8": "batch_size=16"},
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "netG.parameters(), lr=2e-4": "netG.parameters(), fused=True, lr=2e-4",
            "netD.parameters(), lr=2e-4": "netD.parameters(), fused=True, lr=2e-4",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", loss="loss_G.item()", seconds=7)
