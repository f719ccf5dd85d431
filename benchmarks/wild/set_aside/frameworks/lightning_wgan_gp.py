"""A Wasserstein GAN with gradient penalty as a Lightning module with manual optimization and two optimizers."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Small grey images in memory."""
    count = scaled(16_000, scale, 64)
    return {"real_images": torch.rand(count, 1, 28, 28) * 2 - 1}


CELL = """
import torch
import torch.nn as nn
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

class WGANGP(L.LightningModule):
    def __init__(self, latent_dim=64, lr=2e-4, n_critic=5, lambda_gp=10.):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(latent_dim, 128 * 7 * 7), nn.ReLU(), nn.Unflatten(1, (128, 7, 7)),
            nn.ConvTranspose2d(128, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh())
        self.critic = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 1))
        self.images_seen = 0
        self.last_d_loss = None

    def gradient_penalty(self, real, fake):
        eps = torch.rand(real.size(0), 1, 1, 1, device=self.device)
        x = (eps * real + (1 - eps) * fake).requires_grad_(True)
        grads = torch.autograd.grad(self.critic(x).sum(), x, create_graph=True, retain_graph=True)[0]
        return ((grads.flatten(1).norm(2, dim=1) - 1) ** 2).mean()

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        z = torch.randn(real.size(0), self.hparams.latent_dim, device=self.device)

        # critic
        self.toggle_optimizer(opt_d)
        fake = self.generator(z).detach()
        gp = self.gradient_penalty(real, fake)
        d_loss = self.critic(fake).mean() - self.critic(real).mean() + self.hparams.lambda_gp * gp
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        self.log('d_loss', d_loss, prog_bar=True)
        self.log('gp', gp, prog_bar=True)

        # generator
        if (batch_idx + 1) % self.hparams.n_critic == 0:
            self.toggle_optimizer(opt_g)
            g_loss = -self.critic(self.generator(z)).mean()
            opt_g.zero_grad()
            self.manual_backward(g_loss)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.log('g_loss', g_loss, prog_bar=True)
        self.images_seen += real.size(0)
        self.last_d_loss = d_loss.item()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=(0.0, 0.9))
        opt_d = torch.optim.Adam(self.critic.parameters(), lr=self.hparams.lr, betas=(0.0, 0.9))
        return [opt_g, opt_d], []

train_loader = DataLoader(TensorDataset(real_images), batch_size=64, shuffle=True, drop_last=True)
model = WGANGP()
trainer = L.Trainer(max_epochs=1, accelerator='cpu', logger=False, enable_checkpointing=False, enable_model_summary=False)
trainer.fit(model, train_loader)
"""

CHANGES = (
    Change(
        "fakes without a graph",
        "no_grad",
        edits={
            "        fake = self.generator(z).detach()\n": "        with torch.no_grad():\n            fake = self.generator(z)\n"
        },
    ),
    Change(
        "one critic pass for fake and real",
        "other",
        edits={
            "d_loss = self.critic(fake).mean() - self.critic(real).mean()": "scores_fake, scores_real = self.critic(torch.cat([fake, real])).chunk(2)\n"
            "        d_loss = scores_fake.mean() - scores_real.mean()"
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "self.generator.parameters(), lr=self.hparams.lr,": "self.generator.parameters(), fused=True, lr=self.hparams.lr,",
            "self.critic.parameters(), lr=self.hparams.lr,": "self.critic.parameters(), fused=True, lr=self.hparams.lr,",
        },
    ),
    Change(
        "two workers",
        "num_workers",
        edits={"shuffle=True, drop_last=True)": "shuffle=True, drop_last=True, num_workers=2)"},
    ),
    Change(
        "channels last",
        "channels_last",
        edits={"model = WGANGP()": "model = WGANGP().to(memory_format=torch.channels_last)"},
    ),
    Change(
        "log nothing, no progress bar",
        "fewer_logs",
        edits={
            "        self.log('d_loss', d_loss, prog_bar=True)\n        self.log('gp', gp, prog_bar=True)\n": "",
            "            self.log('g_loss', g_loss, prog_bar=True)\n": "",
            "logger=False,": "logger=False, enable_progress_bar=False,",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.images_seen", loss="model.last_d_loss", seconds=6)
