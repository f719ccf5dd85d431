"""An energy-based model of digits; every step runs twenty Langevin steps on a batch from a buffer of samples."""

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Drawings of 28 by 28 pixels with two strokes, as bytes."""
    rng = np.random.default_rng(0)
    count = scaled(5120, scale, 256)
    y, x = np.mgrid[0:28, 0:28]
    digits = np.zeros((count, 28, 28), dtype=np.uint8)
    for digit in digits:
        cx, cy, radius = rng.uniform(9, 19), rng.uniform(9, 19), rng.uniform(4, 8)
        ring = np.abs(np.hypot(x - cx, y - cy) - radius) < 1.5
        stroke = np.abs(x - cx - (y - cy) * rng.uniform(-1, 1)) < 1.5
        digit[ring | (stroke & (y > cy))] = 255
    return {"train_images": torch.from_numpy(digits)}


CELL = """
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data as data

device = torch.device('cuda:0') if torch.cuda.is_available() else torch.device('cpu')

class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)

class CNNModel(nn.Module):

    def __init__(self, hidden_features=32, out_dim=1):
        super().__init__()
        c_hid1 = hidden_features // 2
        c_hid2 = hidden_features
        c_hid3 = hidden_features * 2
        self.cnn_layers = nn.Sequential(
            nn.Conv2d(1, c_hid1, kernel_size=5, stride=2, padding=4),  # [16x16] - larger padding to get 32x32 image
            Swish(),
            nn.Conv2d(c_hid1, c_hid2, kernel_size=3, stride=2, padding=1),  # [8x8]
            Swish(),
            nn.Conv2d(c_hid2, c_hid3, kernel_size=3, stride=2, padding=1),  # [4x4]
            Swish(),
            nn.Conv2d(c_hid3, c_hid3, kernel_size=3, stride=2, padding=1),  # [2x2]
            Swish(),
            nn.Flatten(),
            nn.Linear(c_hid3 * 4, c_hid3),
            Swish(),
            nn.Linear(c_hid3, out_dim))

    def forward(self, x):
        return self.cnn_layers(x).squeeze(dim=-1)

class Sampler:

    def __init__(self, model, img_shape, sample_size, max_len=8192):
        self.model = model
        self.img_shape = img_shape
        self.sample_size = sample_size
        self.max_len = max_len
        self.examples = [(torch.rand((1,) + img_shape) * 2 - 1) for _ in range(self.sample_size)]

    def sample_new_exmps(self, steps=60, step_size=10):
        # Choose 95% of the batch from the buffer, 5% generate from scratch
        n_new = np.random.binomial(self.sample_size, 0.05)
        rand_imgs = torch.rand((n_new,) + self.img_shape) * 2 - 1
        old_imgs = torch.cat(random.choices(self.examples, k=self.sample_size - n_new), dim=0)
        inp_imgs = torch.cat([rand_imgs, old_imgs], dim=0).detach().to(device)

        # Perform MCMC sampling
        inp_imgs = Sampler.generate_samples(self.model, inp_imgs, steps=steps, step_size=step_size)

        # Add new images to the buffer and remove old ones if needed
        self.examples = list(inp_imgs.to(torch.device('cpu')).chunk(self.sample_size, dim=0)) + self.examples
        self.examples = self.examples[:self.max_len]
        return inp_imgs

    @staticmethod
    def generate_samples(model, inp_imgs, steps=60, step_size=10):
        is_training = model.training
        model.eval()
        for p in model.parameters():
            p.requires_grad = False
        inp_imgs.requires_grad = True

        # Buffer tensor in which we generate noise each loop iteration
        noise = torch.randn(inp_imgs.shape, device=inp_imgs.device)

        for _ in range(steps):
            # Part 1: Add noise to the input.
            noise.normal_(0, 0.005)
            inp_imgs.data.add_(noise.data)
            inp_imgs.data.clamp_(min=-1.0, max=1.0)

            # Part 2: calculate gradients for the current input.
            out_imgs = -model(inp_imgs)
            out_imgs.sum().backward()
            inp_imgs.grad.data.clamp_(-0.03, 0.03)

            # Apply gradients to our current samples
            inp_imgs.data.add_(-step_size * inp_imgs.grad.data)
            inp_imgs.grad.detach_()
            inp_imgs.grad.zero_()
            inp_imgs.data.clamp_(min=-1.0, max=1.0)

        for p in model.parameters():
            p.requires_grad = True
        inp_imgs.requires_grad = False
        model.train(is_training)
        return inp_imgs.detach()

batch_size, alpha, lr, beta1 = 64, 0.1, 1e-4, 0.0

images = train_images.unsqueeze(1).float() / 127.5 - 1
train_loader = data.DataLoader(data.TensorDataset(images), batch_size=batch_size, shuffle=True, drop_last=True)

cnn = CNNModel().to(device)
sampler = Sampler(cnn, img_shape=(1, 28, 28), sample_size=batch_size)
# Energy models can have issues with momentum as the loss surface changes with its parameters.
optimizer = torch.optim.Adam(cnn.parameters(), lr=lr, betas=(beta1, 0.999))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.97)

n_real = 0
for epoch in range(1):
    history = []
    for real_imgs, in train_loader:
        # We add minimal noise to the original images to prevent the model from focusing on purely "clean" inputs
        small_noise = torch.randn_like(real_imgs) * 0.005
        real_imgs.add_(small_noise).clamp_(min=-1.0, max=1.0)
        real_imgs = real_imgs.to(device)

        # Obtain samples
        fake_imgs = sampler.sample_new_exmps(steps=20, step_size=10)

        # Predict energy score for all images
        inp_imgs = torch.cat([real_imgs, fake_imgs], dim=0)
        real_out, fake_out = cnn(inp_imgs).chunk(2, dim=0)

        # Calculate losses
        reg_loss = alpha * (real_out ** 2 + fake_out ** 2).mean()
        cdiv_loss = fake_out.mean() - real_out.mean()
        loss = reg_loss + cdiv_loss

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(cnn.parameters(), 0.1)
        optimizer.step()
        n_real += len(real_imgs)
        history.append((loss.item(), reg_loss.item(), cdiv_loss.item()))
    scheduler.step()
    print(f'epoch {epoch}: loss, regularization, contrastive divergence', np.mean(history, axis=0).round(4))
"""

CHANGES = (
    Change("batches of 256", "larger_batch", edits={"alpha, lr, beta1 = 64,": "alpha, lr, beta1 = 256,"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        return self.cnn_layers(x).squeeze(dim=-1)\n": ""
            "        with torch.autocast(x.device.type, dtype=torch.bfloat16):\n"
            "            return self.cnn_layers(x).squeeze(dim=-1).float()\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "cnn = CNNModel().to(device)\n": "cnn = CNNModel().to(device, memory_format=torch.channels_last)\n",
        },
    ),
    Change(
        "nn.SiLU in place of x * sigmoid(x)",
        "other",
        edits={"        return x * torch.sigmoid(x)\n": "        return F.silu(x)\n"},
    ),
    Change("one thread", "threads", edits={"n_real = 0\n": "n_real = 0\ntorch.set_num_threads(1)\n"}),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"betas=(beta1, 0.999))": "betas=(beta1, 0.999), fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_real", seconds=10)
