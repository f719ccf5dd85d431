"""CycleGAN of horses and zebras: batches of one, three optimizers, buffers of earlier images, as in PyTorch-GAN."""

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Two folders of small JPEG files: spots of two kinds of colours."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:72, 0:72] / 72
    count = scaled(96, scale, 4)
    for folder, tint in (("A", (0.8, 0.5, 0.3)), ("B", (0.9, 0.9, 0.9))):
        Path(f"horse2zebra/train/{folder}").mkdir(parents=True)
        for index in range(count):
            waves = np.sin(rng.uniform(5, 30) * x + rng.uniform(5, 30) * y + rng.uniform(0, 6))
            picture = 128 + 90 * waves[..., None] * np.array(tint) + rng.normal(0, 8, (72, 72, 3))
            image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
            image.save(f"horse2zebra/train/{folder}/{index:04d}.jpg")
    return {}


CELL = """
import glob
import itertools
import os
import random
import sys

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class opt:
    n_epochs = 1
    dataset_name = 'horse2zebra'
    batch_size = 1
    lr = 0.0002
    b1, b2 = 0.5, 0.999
    n_cpu = 0
    img_size = 64
    n_residual_blocks = 3
    lambda_cyc, lambda_id = 10.0, 5.0

class ImageDataset(Dataset):
    def __init__(self, root, unaligned=True, mode='train'):
        self.unaligned = unaligned
        self.files_A = sorted(glob.glob(os.path.join(root, '%s/A' % mode) + '/*.*'))
        self.files_B = sorted(glob.glob(os.path.join(root, '%s/B' % mode) + '/*.*'))

    def transform(self, image):
        size = int(opt.img_size * 1.12)
        image = image.resize((size, size), Image.BICUBIC)
        left, top = random.randint(0, size - opt.img_size), random.randint(0, size - opt.img_size)
        image = image.crop((left, top, left + opt.img_size, top + opt.img_size))
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return (x - 0.5) / 0.5

    def __getitem__(self, index):
        image_A = Image.open(self.files_A[index % len(self.files_A)]).convert('RGB')
        if self.unaligned:
            image_B = Image.open(self.files_B[random.randint(0, len(self.files_B) - 1)]).convert('RGB')
        else:
            image_B = Image.open(self.files_B[index % len(self.files_B)]).convert('RGB')
        return {'A': self.transform(image_A), 'B': self.transform(image_B)}

    def __len__(self):
        return max(len(self.files_A), len(self.files_B))

class ResidualBlock(nn.Module):
    def __init__(self, in_features):
        super(ResidualBlock, self).__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(in_features, in_features, 3), nn.InstanceNorm2d(in_features),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1), nn.Conv2d(in_features, in_features, 3), nn.InstanceNorm2d(in_features))

    def forward(self, x):
        return x + self.block(x)

class GeneratorResNet(nn.Module):
    def __init__(self, channels, num_residual_blocks, out_features=16):
        super(GeneratorResNet, self).__init__()
        model = [nn.ReflectionPad2d(3), nn.Conv2d(channels, out_features, 7), nn.InstanceNorm2d(out_features),
                 nn.ReLU(inplace=True)]
        in_features = out_features
        # Downsampling
        for _ in range(2):
            out_features *= 2
            model += [nn.Conv2d(in_features, out_features, 3, stride=2, padding=1), nn.InstanceNorm2d(out_features),
                      nn.ReLU(inplace=True)]
            in_features = out_features
        # Residual blocks
        for _ in range(num_residual_blocks):
            model += [ResidualBlock(out_features)]
        # Upsampling
        for _ in range(2):
            out_features //= 2
            model += [nn.Upsample(scale_factor=2), nn.Conv2d(in_features, out_features, 3, stride=1, padding=1),
                      nn.InstanceNorm2d(out_features), nn.ReLU(inplace=True)]
            in_features = out_features
        # Output layer
        model += [nn.ReflectionPad2d(3), nn.Conv2d(out_features, channels, 7), nn.Tanh()]
        self.model = nn.Sequential(*model)

    def forward(self, x):
        return self.model(x)

class Discriminator(nn.Module):
    def __init__(self, channels, size):
        super(Discriminator, self).__init__()
        self.output_shape = (1, size // 2 ** 3, size // 2 ** 3)

        def discriminator_block(in_filters, out_filters, normalize=True):
            layers = [nn.Conv2d(in_filters, out_filters, 4, stride=2, padding=1)]
            if normalize:
                layers.append(nn.InstanceNorm2d(out_filters))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *discriminator_block(channels, 32, normalize=False),
            *discriminator_block(32, 64),
            *discriminator_block(64, 128),
            nn.ZeroPad2d((1, 0, 1, 0)), nn.Conv2d(128, 1, 4, padding=1))

    def forward(self, img):
        return self.model(img)

class ReplayBuffer:
    def __init__(self, max_size=50):
        self.max_size = max_size
        self.data = []

    def push_and_pop(self, data):
        to_return = []
        for element in data.data:
            element = torch.unsqueeze(element, 0)
            if len(self.data) < self.max_size:
                self.data.append(element)
                to_return.append(element)
            else:
                if random.uniform(0, 1) > 0.5:
                    i = random.randint(0, self.max_size - 1)
                    to_return.append(self.data[i].clone())
                    self.data[i] = element
                else:
                    to_return.append(element)
        return torch.cat(to_return)

device = 'cuda' if torch.cuda.is_available() else 'cpu'

# Losses
criterion_GAN = torch.nn.MSELoss()
criterion_cycle = torch.nn.L1Loss()
criterion_identity = torch.nn.L1Loss()

# Initialize generator and discriminator
G_AB = GeneratorResNet(3, opt.n_residual_blocks).to(device)
G_BA = GeneratorResNet(3, opt.n_residual_blocks).to(device)
D_A = Discriminator(3, opt.img_size).to(device)
D_B = Discriminator(3, opt.img_size).to(device)

# Optimizers
optimizer_G = torch.optim.Adam(itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=opt.lr, betas=(opt.b1, opt.b2))
optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))
optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))

# Buffers of previously generated samples
fake_A_buffer = ReplayBuffer()
fake_B_buffer = ReplayBuffer()

dataloader = DataLoader(ImageDataset(opt.dataset_name), batch_size=opt.batch_size, shuffle=True, num_workers=opt.n_cpu)

n_images = 0
for epoch in range(opt.n_epochs):
    for i, batch in enumerate(dataloader):
        real_A = batch['A'].to(device)
        real_B = batch['B'].to(device)

        # Adversarial ground truths
        valid = torch.ones((real_A.size(0), *D_A.output_shape), device=device)
        fake = torch.zeros((real_A.size(0), *D_A.output_shape), device=device)

        # ------------------
        #  Train Generators
        # ------------------
        optimizer_G.zero_grad()

        # Identity loss
        loss_id_A = criterion_identity(G_BA(real_A), real_A)
        loss_id_B = criterion_identity(G_AB(real_B), real_B)
        loss_identity = (loss_id_A + loss_id_B) / 2

        # GAN loss
        fake_B = G_AB(real_A)
        loss_GAN_AB = criterion_GAN(D_B(fake_B), valid)
        fake_A = G_BA(real_B)
        loss_GAN_BA = criterion_GAN(D_A(fake_A), valid)
        loss_GAN = (loss_GAN_AB + loss_GAN_BA) / 2

        # Cycle loss
        recov_A = G_BA(fake_B)
        loss_cycle_A = criterion_cycle(recov_A, real_A)
        recov_B = G_AB(fake_A)
        loss_cycle_B = criterion_cycle(recov_B, real_B)
        loss_cycle = (loss_cycle_A + loss_cycle_B) / 2

        # Total loss
        loss_G = loss_GAN + opt.lambda_cyc * loss_cycle + opt.lambda_id * loss_identity
        loss_G.backward()
        optimizer_G.step()

        # -----------------------
        #  Train Discriminator A
        # -----------------------
        optimizer_D_A.zero_grad()
        loss_real = criterion_GAN(D_A(real_A), valid)
        fake_A_ = fake_A_buffer.push_and_pop(fake_A)
        loss_fake = criterion_GAN(D_A(fake_A_.detach()), fake)
        loss_D_A = (loss_real + loss_fake) / 2
        loss_D_A.backward()
        optimizer_D_A.step()

        # -----------------------
        #  Train Discriminator B
        # -----------------------
        optimizer_D_B.zero_grad()
        loss_real = criterion_GAN(D_B(real_B), valid)
        fake_B_ = fake_B_buffer.push_and_pop(fake_B)
        loss_fake = criterion_GAN(D_B(fake_B_.detach()), fake)
        loss_D_B = (loss_real + loss_fake) / 2
        loss_D_B.backward()
        optimizer_D_B.step()

        loss_D = (loss_D_A + loss_D_B) / 2
        n_images += real_A.size(0)

        # Print log
        sys.stdout.write('\\r[Epoch %d/%d] [Batch %d/%d] [D loss: %f] [G loss: %f, adv: %f, cycle: %f, identity: %f]'
                         % (epoch, opt.n_epochs, i, len(dataloader), loss_D.item(), loss_G.item(), loss_GAN.item(),
                            loss_cycle.item(), loss_identity.item()))
"""

_GENERATORS = CELL[CELL.index("        # Identity loss\n") : CELL.index("        loss_G.backward()\n")]

CHANGES = (
    Change(
        "no gradients of the discriminators in the generators' step",
        "no_grad",
        edits={
            "        optimizer_G.zero_grad()\n": "        optimizer_G.zero_grad()\n"
            "        D_A.requires_grad_(False)\n        D_B.requires_grad_(False)\n",
            "        optimizer_G.step()\n": "        optimizer_G.step()\n"
            "        D_A.requires_grad_(True)\n        D_B.requires_grad_(True)\n",
        },
    ),
    Change(
        "identity and translation in one pass per generator",
        "other",
        edits={
            "        loss_id_A = criterion_identity(G_BA(real_A), real_A)\n": ""
            "        same_A, fake_A = G_BA(torch.cat([real_A, real_B])).chunk(2)\n"
            "        same_B, fake_B = G_AB(torch.cat([real_B, real_A])).chunk(2)\n"
            "        loss_id_A = criterion_identity(same_A, real_A)\n",
            "criterion_identity(G_AB(real_B), real_B)": "criterion_identity(same_B, real_B)",
            "        fake_B = G_AB(real_A)\n": "",
            "        fake_A = G_BA(real_B)\n": "",
        },
    ),
    Change("batches of four", "larger_batch", edits={"batch_size = 1\n": "batch_size = 4\n"}),
    Change("two workers", "num_workers", edits={"n_cpu = 0": "n_cpu = 2"}),
    Change(
        "bfloat16 autocast in the generators' step",
        "precision",
        edits={
            _GENERATORS: "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            + "".join(f"    {line}" if line.strip() else line for line in _GENERATORS.splitlines(keepends=True)),
            "push_and_pop(fake_A)": "push_and_pop(fake_A.float())",
            "push_and_pop(fake_B)": "push_and_pop(fake_B.float())",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "G_BA.parameters()), lr=opt.lr,": "G_BA.parameters()), fused=True, lr=opt.lr,",
            "Adam(D_A.parameters(),": "Adam(D_A.parameters(), fused=True,",
            "Adam(D_B.parameters(),": "Adam(D_B.parameters(), fused=True,",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "        real_A = batch['A'].to(device)\n": "        real_A = batch['A'].to(device, memory_format=torch.channels_last)\n",
            "        real_B = batch['B'].to(device)\n": "        real_B = batch['B'].to(device, memory_format=torch.channels_last)\n",
            "# Optimizers\n": "for net in (G_AB, G_BA, D_A, D_B):\n    net.to(memory_format=torch.channels_last)\n# Optimizers\n",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", loss="loss_G.item()", seconds=12)
