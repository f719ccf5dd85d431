"""WGAN-GP of linear layers; the critic's steps run backward through the generator too, as in PyTorch-GAN."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Digits between -1 and 1 in memory."""
    return {"digits": torch.rand(scaled(19200, scale, 640), 1, 28, 28) * 2 - 1}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.autograd as autograd
from torch.utils.data import DataLoader, TensorDataset

latent_dim, img_shape, batch_size, n_critic, lambda_gp = 100, (1, 28, 28), 64, 5, 10
cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor

class Generator(nn.Module):
    def __init__(self):
        super().__init__()

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *block(latent_dim, 128, normalize=False), *block(128, 256), *block(256, 512), *block(512, 1024),
            nn.Linear(1024, int(np.prod(img_shape))), nn.Tanh())

    def forward(self, z):
        img = self.model(z)
        return img.view(img.shape[0], *img_shape)

class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(int(np.prod(img_shape)), 512), nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(512, 256), nn.LeakyReLU(0.2, inplace=True), nn.Linear(256, 1))

    def forward(self, img):
        return self.model(img.view(img.shape[0], -1))

def compute_gradient_penalty(D, real_samples, fake_samples):
    alpha = Tensor(np.random.random((real_samples.size(0), 1, 1, 1)))
    interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = Tensor(real_samples.shape[0], 1).fill_(1.0)
    gradients = autograd.grad(outputs=d_interpolates, inputs=interpolates, grad_outputs=fake,
                              create_graph=True, retain_graph=True, only_inputs=True)[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()

generator, discriminator = Generator(), Discriminator()
if cuda:
    generator.cuda()
    discriminator.cuda()
dataloader = DataLoader(TensorDataset(digits), batch_size=batch_size, shuffle=True)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))

n_real = 0
for epoch in range(1):
    for i, (imgs,) in enumerate(dataloader):
        real_imgs = imgs.type(Tensor)
        n_real += len(imgs)

        # ---- Train Discriminator
        optimizer_D.zero_grad()
        z = Tensor(np.random.normal(0, 1, (imgs.shape[0], latent_dim)))
        fake_imgs = generator(z)
        real_validity = discriminator(real_imgs)
        fake_validity = discriminator(fake_imgs)
        gradient_penalty = compute_gradient_penalty(discriminator, real_imgs.data, fake_imgs.data)
        d_loss = -torch.mean(real_validity) + torch.mean(fake_validity) + lambda_gp * gradient_penalty
        d_loss.backward()
        optimizer_D.step()
        optimizer_G.zero_grad()

        # ---- Train Generator every n_critic steps
        if i % n_critic == 0:
            fake_imgs = generator(z)
            fake_validity = discriminator(fake_imgs)
            g_loss = -torch.mean(fake_validity)
            g_loss.backward()
            optimizer_G.step()
            print('[Epoch %d] [Batch %d/%d] [D loss: %f] [G loss: %f]'
                  % (epoch, i, len(dataloader), d_loss.item(), g_loss.item()))
"""

CHANGES = (
    Change(
        "fakes without graph",
        "no_grad",
        edits={
            "        fake_imgs = generator(z)\n        real_validity": "        with torch.no_grad():\n"
            "            fake_imgs = generator(z)\n        real_validity"
        },
    ),
    Change(
        "critic without gradients in the generator's step",
        "no_grad",
        edits={
            "            g_loss.backward()\n": "            for p, g in zip(generator.parameters(), "
            "autograd.grad(g_loss, list(generator.parameters()))):\n                p.grad = g\n"
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "Adam(generator.parameters(),": "Adam(generator.parameters(), fused=True,",
            "Adam(discriminator.parameters(),": "Adam(discriminator.parameters(), fused=True,",
        },
    ),
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "dataloader = DataLoader(TensorDataset(digits), batch_size=batch_size, shuffle=True)": ""
            "sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(digits), batch_size, False)\n"
            "dataloader = DataLoader(TensorDataset(digits), sampler=sampler, batch_size=None)"
        },
    ),
    Change("batches of 128", "larger_batch", edits={"(1, 28, 28), 64, 5, 10": "(1, 28, 28), 128, 5, 10"}),
    Change("print less", "fewer_logs", edits={"            print('[Epoch": "            if i == 0: print('[Epoch"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_real", loss="d_loss.item()", seconds=6)
