"""A VQ-VAE with an EMA codebook on CIFAR-like images; every update takes the first batch of a new iterator, as in the well-known notebook."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Soft blobs of colour on a background, 32 by 32 pixels, as bytes."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (10_000, 4, 4, 3)).astype(np.float32)
    images: np.ndarray = coarse.repeat(8, axis=1).repeat(8, axis=2)
    for axis in (1, 2):
        images = (images + np.roll(images, 2, axis) + np.roll(images, 4, axis) + np.roll(images, 6, axis)) / 4
    images += rng.normal(0, 6, (10_000, 32, 32, 1)).astype(np.float32)
    images = images.clip(0, 255).astype(np.uint8)
    return {
        "train_images": images[:9000],
        "val_images": images[9000:],
        "labels": rng.integers(0, 10, 10_000),
        "num_training_updates": scaled(50, scale, 2),
    }


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from PIL import Image
from torch.utils.data import DataLoader, Dataset

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

class CIFAR(Dataset):
    def __init__(self, data, targets, transform=None):
        self.data, self.targets, self.transform = data, targets, transform

    def __getitem__(self, index):
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        if self.transform is not None:
            img = self.transform(img)
        return img, target

    def __len__(self):
        return len(self.data)

def to_tensor(img):
    return torch.from_numpy(np.array(img)).permute(2, 0, 1).contiguous().float().div(255)

def transform(img):
    # Normalize((0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
    return (to_tensor(img) - torch.tensor([0.5, 0.5, 0.5]).view(3, 1, 1)) / torch.tensor([1., 1., 1.]).view(3, 1, 1)

training_data = CIFAR(train_images, labels[:len(train_images)], transform)
validation_data = CIFAR(val_images, labels[len(train_images):], transform)
data_variance = np.var(training_data.data / 255.0)

class VectorQuantizerEMA(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, commitment_cost, decay, epsilon=1e-5):
        super().__init__()
        self._embedding_dim = embedding_dim
        self._num_embeddings = num_embeddings
        self._embedding = nn.Embedding(self._num_embeddings, self._embedding_dim)
        self._embedding.weight.data.normal_()
        self._commitment_cost = commitment_cost
        self.register_buffer('_ema_cluster_size', torch.zeros(num_embeddings))
        self._ema_w = nn.Parameter(torch.Tensor(num_embeddings, self._embedding_dim))
        self._ema_w.data.normal_()
        self._decay = decay
        self._epsilon = epsilon

    def forward(self, inputs):
        # convert inputs from BCHW -> BHWC
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        input_shape = inputs.shape
        flat_input = inputs.view(-1, self._embedding_dim)

        # Calculate distances
        distances = (torch.sum(flat_input**2, dim=1, keepdim=True)
                    + torch.sum(self._embedding.weight**2, dim=1)
                    - 2 * torch.matmul(flat_input, self._embedding.weight.t()))

        # Encoding
        encoding_indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(encoding_indices.shape[0], self._num_embeddings, device=inputs.device)
        encodings.scatter_(1, encoding_indices, 1)

        # Quantize and unflatten
        quantized = torch.matmul(encodings, self._embedding.weight).view(input_shape)

        # Use EMA to update the embedding vectors
        if self.training:
            self._ema_cluster_size = self._ema_cluster_size * self._decay + (1 - self._decay) * torch.sum(encodings, 0)
            # Laplace smoothing of the cluster size
            n = torch.sum(self._ema_cluster_size.data)
            self._ema_cluster_size = (
                (self._ema_cluster_size + self._epsilon) / (n + self._num_embeddings * self._epsilon) * n)
            dw = torch.matmul(encodings.t(), flat_input)
            self._ema_w = nn.Parameter(self._ema_w * self._decay + (1 - self._decay) * dw)
            self._embedding.weight = nn.Parameter(self._ema_w / self._ema_cluster_size.unsqueeze(1))

        # Loss
        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        loss = self._commitment_cost * e_latent_loss

        # Straight Through Estimator
        quantized = inputs + (quantized - inputs).detach()
        avg_probs = torch.mean(encodings, dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        # convert quantized from BHWC -> BCHW
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity, encodings

class Residual(nn.Module):
    def __init__(self, in_channels, num_hiddens, num_residual_hiddens):
        super().__init__()
        self._block = nn.Sequential(
            nn.ReLU(True),
            nn.Conv2d(in_channels, num_residual_hiddens, kernel_size=3, stride=1, padding=1, bias=False),
            nn.ReLU(True),
            nn.Conv2d(num_residual_hiddens, num_hiddens, kernel_size=1, stride=1, bias=False)
        )

    def forward(self, x):
        return x + self._block(x)

class ResidualStack(nn.Module):
    def __init__(self, in_channels, num_hiddens, num_residual_layers, num_residual_hiddens):
        super().__init__()
        self._layers = nn.ModuleList([Residual(in_channels, num_hiddens, num_residual_hiddens)
                                      for _ in range(num_residual_layers)])

    def forward(self, x):
        for layer in self._layers:
            x = layer(x)
        return F.relu(x)

class Encoder(nn.Module):
    def __init__(self, in_channels, num_hiddens, num_residual_layers, num_residual_hiddens):
        super().__init__()
        self._conv_1 = nn.Conv2d(in_channels, num_hiddens // 2, kernel_size=4, stride=2, padding=1)
        self._conv_2 = nn.Conv2d(num_hiddens // 2, num_hiddens, kernel_size=4, stride=2, padding=1)
        self._conv_3 = nn.Conv2d(num_hiddens, num_hiddens, kernel_size=3, stride=1, padding=1)
        self._residual_stack = ResidualStack(num_hiddens, num_hiddens, num_residual_layers, num_residual_hiddens)

    def forward(self, inputs):
        x = F.relu(self._conv_1(inputs))
        x = F.relu(self._conv_2(x))
        return self._residual_stack(self._conv_3(x))

class Decoder(nn.Module):
    def __init__(self, in_channels, num_hiddens, num_residual_layers, num_residual_hiddens):
        super().__init__()
        self._conv_1 = nn.Conv2d(in_channels, num_hiddens, kernel_size=3, stride=1, padding=1)
        self._residual_stack = ResidualStack(num_hiddens, num_hiddens, num_residual_layers, num_residual_hiddens)
        self._conv_trans_1 = nn.ConvTranspose2d(num_hiddens, num_hiddens // 2, kernel_size=4, stride=2, padding=1)
        self._conv_trans_2 = nn.ConvTranspose2d(num_hiddens // 2, 3, kernel_size=4, stride=2, padding=1)

    def forward(self, inputs):
        x = self._residual_stack(self._conv_1(inputs))
        x = F.relu(self._conv_trans_1(x))
        return self._conv_trans_2(x)

batch_size = 32
num_hiddens, num_residual_hiddens, num_residual_layers = 128, 32, 2
embedding_dim, num_embeddings = 64, 512
commitment_cost, decay, learning_rate = 0.25, 0.99, 1e-3

training_loader = DataLoader(training_data, batch_size=batch_size, shuffle=True, pin_memory=torch.cuda.is_available())
validation_loader = DataLoader(validation_data, batch_size=32, shuffle=True)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._encoder = Encoder(3, num_hiddens, num_residual_layers, num_residual_hiddens)
        self._pre_vq_conv = nn.Conv2d(num_hiddens, embedding_dim, kernel_size=1, stride=1)
        self._vq_vae = VectorQuantizerEMA(num_embeddings, embedding_dim, commitment_cost, decay)
        self._decoder = Decoder(embedding_dim, num_hiddens, num_residual_layers, num_residual_hiddens)

    def forward(self, x):
        z = self._pre_vq_conv(self._encoder(x))
        loss, quantized, perplexity, _ = self._vq_vae(z)
        return loss, self._decoder(quantized), perplexity

model = Model().to(device)
optimizer = optim.Adam(model.parameters(), lr=learning_rate, amsgrad=False)

model.train()
train_res_recon_error, train_res_perplexity = [], []
for i in range(num_training_updates):
    (data, _) = next(iter(training_loader))
    data = data.to(device)
    optimizer.zero_grad()

    vq_loss, data_recon, perplexity = model(data)
    recon_error = F.mse_loss(data_recon, data) / data_variance
    loss = recon_error + vq_loss
    loss.backward()
    optimizer.step()

    train_res_recon_error.append(recon_error.item())
    train_res_perplexity.append(perplexity.item())
    if (i + 1) % 10 == 0:
        print('%d iterations' % (i + 1))
        print('recon_error: %.3f' % np.mean(train_res_recon_error[-100:]))
        print('perplexity: %.3f' % np.mean(train_res_perplexity[-100:]))

model.eval()
with torch.no_grad():
    (valid_originals, _) = next(iter(validation_loader))
    _, valid_reconstructions, _ = model(valid_originals.to(device))
print('validation error: %.3f' % F.mse_loss(valid_reconstructions.cpu(), valid_originals).item())
"""

CHANGES = (
    Change(
        "rows by index instead of one-hot products",
        "other",
        edits={
            "torch.argmin(distances, dim=1).unsqueeze(1)": "torch.argmin(distances, dim=1)",
            "        encodings = torch.zeros(encoding_indices.shape[0], self._num_embeddings, device=inputs.device)\n": "",
            "        encodings.scatter_(1, encoding_indices, 1)\n": ""
            "        counts = torch.bincount(encoding_indices, minlength=self._num_embeddings).float()\n",
            "torch.matmul(encodings, self._embedding.weight).view(input_shape)": "self._embedding(encoding_indices).view(input_shape)",
            "torch.sum(encodings, 0)\n": "counts\n",
            "dw = torch.matmul(encodings.t(), flat_input)": ""
            "dw = torch.zeros_like(self._ema_w.data).index_add_(0, encoding_indices, flat_input.detach())",
            "avg_probs = torch.mean(encodings, dim=0)": "avg_probs = counts / len(encoding_indices)",
            "contiguous(), perplexity, encodings\n": "contiguous(), perplexity, encoding_indices\n",
        },
    ),
    Change(
        "batches by random indices from a tensor",
        "batch_whole",
        edits={
            "model.train()\n": "train_tensor = torch.from_numpy(train_images).permute(0, 3, 1, 2).contiguous()\nmodel.train()\n",
            "(data, _) = next(iter(training_loader))": "data = train_tensor[torch.randint(len(train_tensor), (batch_size,))].float() / 255 - 0.5",
        },
    ),
    Change(
        "batches of 64",
        "larger_batch",
        edits={
            "batch_size = 32\n": "batch_size = 64\nnum_training_updates = num_training_updates // 2\n",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = Model().to(device)": "model = Model().to(device, memory_format=torch.channels_last)",
            "data = data.to(device)": "data = data.to(device, memory_format=torch.channels_last)",
        },
    ),
    Change(
        "bfloat16 autocast for the convolutions",
        "precision",
        edits={
            "        z = self._pre_vq_conv(self._encoder(x))\n": "        with torch.autocast(x.device.type, dtype=torch.bfloat16):\n"
            "            z = self._pre_vq_conv(self._encoder(x))\n        z = z.float()\n",
            "        return loss, self._decoder(quantized), perplexity\n": ""
            "        with torch.autocast(x.device.type, dtype=torch.bfloat16):\n"
            "            recon = self._decoder(quantized)\n        return loss, recon.float(), perplexity\n",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"amsgrad=False)": "amsgrad=False, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="num_training_updates * batch_size", seconds=7)
