"""A masked autoencoder pre-trained on small images, then a linear probe on its frozen encoder, as in small repositories of MAE."""

import pickle
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def pictures(rng: np.random.Generator, count: int) -> tuple[np.ndarray, list[int]]:
    """Images of 32 x 32 pixels: a wavy ground and one of ten kinds of figure in another colour."""
    labels = rng.permutation(np.arange(count) % 10)
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    data = np.empty((count, 3, 32, 32))
    for index, label in enumerate(labels):
        ground, colour = rng.uniform(30, 225, (2, 3))
        waves = np.sin(rng.uniform(2, 8) * (x * rng.normal() + y * rng.normal()) + rng.uniform(0, 6)) * 20
        dx, dy, size = x - rng.uniform(-0.3, 0.3), y - rng.uniform(-0.3, 0.3), rng.uniform(0.3, 0.6)
        radius, angle = np.hypot(dx, dy), np.arctan2(dy, dx) + rng.uniform(0, 6)
        figure = radius < size * (1 + 0.4 * np.cos((label % 5 + 1) * angle))
        figure &= (label < 5) | (radius > size * 0.45)
        data[index] = np.where(figure, colour[:, None, None], ground[:, None, None] + waves)
    data += rng.normal(0, 6, data.shape)
    return data.clip(0, 255).astype(np.uint8).reshape(count, -1), labels.tolist()


def prepare(scale: float) -> Namespace:
    """Pickled batches as those of CIFAR-10."""
    rng = np.random.default_rng(0)
    folder = Path("data/cifar-10-batches-py")
    folder.mkdir(parents=True)
    for name, count in (("data_batch_1", 576), ("data_batch_2", 576), ("test_batch", 256)):
        data, labels = pictures(rng, scaled(count, scale, 64))
        with (folder / name).open("wb") as file:
            pickle.dump({"data": data, "labels": labels}, file)
    return {}


CELL = """
import math
import os
import pickle
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

# ---- hyperparameters
seed = 2022
batch_size = 64
base_learning_rate = 1.5e-3
weight_decay = 0.05
mask_ratio = 0.75
total_epoch = 4
warmup_epoch = 1
probe_epoch = 3
probe_batch_size = 64
workers = 2
torch.manual_seed(seed)
np.random.seed(seed)
device = 'cuda' if torch.cuda.is_available() else 'cpu'


# ---- data
class CIFAR(Dataset):
    mean = np.array([0.49, 0.48, 0.45], dtype=np.float32)
    std = np.array([0.25, 0.24, 0.26], dtype=np.float32)

    def __init__(self, root, train=True, augment=False):
        names = ['data_batch_1', 'data_batch_2'] if train else ['test_batch']
        data, self.targets = [], []
        for name in names:
            with open(os.path.join(root, name), 'rb') as f:
                entry = pickle.load(f)
            data.append(entry['data'])
            self.targets.extend(entry['labels'])
        self.data = np.vstack(data).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self.augment = augment

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        img = self.data[index]
        if self.augment:
            img = np.pad(img, ((4, 4), (4, 4), (0, 0)), mode='reflect')
            top, left = torch.randint(0, 9, (2,)).tolist()
            img = img[top:top + 32, left:left + 32]
            if torch.rand(1).item() < 0.5:
                img = img[:, ::-1]
        img = (img.astype(np.float32) / 255.0 - self.mean) / self.std
        return torch.from_numpy(img.transpose(2, 0, 1).copy()), self.targets[index]


# ---- model
class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)

class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

def sincos_2d(dim, size):
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing='ij')).reshape(2, -1).float()
    omega = 1.0 / 10000 ** (torch.arange(dim // 4) / (dim / 4))
    parts = [f(g[:, None] * omega[None]) for g in grid for f in (torch.sin, torch.cos)]
    return torch.cat(parts, dim=1).unsqueeze(0)

class MAE(nn.Module):
    def __init__(self, img_size=32, patch_size=4, dim=96, depth=4, heads=4, dec_dim=64, dec_depth=2, dec_heads=4):
        super().__init__()
        self.p = patch_size
        self.num_patches = (img_size // patch_size) ** 2
        self.patch_embed = nn.Conv2d(3, dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer('pos_embed', sincos_2d(dim, img_size // patch_size))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

        self.decoder_embed = nn.Linear(dim, dec_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dec_dim))
        self.register_buffer('decoder_pos_embed', sincos_2d(dec_dim, img_size // patch_size))
        self.decoder_blocks = nn.ModuleList([Block(dec_dim, dec_heads) for _ in range(dec_depth)])
        self.decoder_norm = nn.LayerNorm(dec_dim)
        self.decoder_pred = nn.Linear(dec_dim, patch_size ** 2 * 3)
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.mask_token, std=0.02)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def patchify(self, imgs):
        h = imgs.shape[2] // self.p
        x = imgs.reshape(imgs.shape[0], 3, h, self.p, h, self.p)
        return torch.einsum('nchpwq->nhwpqc', x).reshape(imgs.shape[0], h * h, self.p ** 2 * 3)

    def random_masking(self, x, mask_ratio):
        N, L, D = x.shape
        len_keep = int(L * (1 - mask_ratio))
        noise = torch.rand(N, L, device=x.device)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :len_keep]
        x_masked = torch.gather(x, dim=1, index=ids_keep.unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L], device=x.device)
        mask[:, :len_keep] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        return x_masked, mask, ids_restore

    def forward_encoder(self, x, mask_ratio):
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        x, mask, ids_restore = self.random_masking(x, mask_ratio)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x), mask, ids_restore

    def forward_decoder(self, x, ids_restore):
        x = self.decoder_embed(x)
        mask_tokens = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] + 1 - x.shape[1], 1)
        x_ = torch.cat([x[:, 1:, :], mask_tokens], dim=1)
        x_ = torch.gather(x_, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, x.shape[2]))
        x = torch.cat([x[:, :1, :], x_ + self.decoder_pos_embed], dim=1)
        for blk in self.decoder_blocks:
            x = blk(x)
        x = self.decoder_pred(self.decoder_norm(x))
        return x[:, 1:, :]

    def forward_loss(self, imgs, pred, mask):
        target = self.patchify(imgs)
        mean = target.mean(dim=-1, keepdim=True)
        var = target.var(dim=-1, keepdim=True)
        target = (target - mean) / (var + 1.0e-6) ** 0.5
        loss = (pred - target) ** 2
        loss = loss.mean(dim=-1)
        return (loss * mask).sum() / mask.sum()

    def forward(self, imgs, mask_ratio=0.75):
        latent, mask, ids_restore = self.forward_encoder(imgs, mask_ratio)
        pred = self.forward_decoder(latent, ids_restore)
        return self.forward_loss(imgs, pred, mask), pred, mask

    def forward_features(self, imgs):
        x = self.patch_embed(imgs).flatten(2).transpose(1, 2) + self.pos_embed
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)[:, 1:].mean(dim=1)


# ---- pre-training
root = 'data/cifar-10-batches-py'
train_dataset = CIFAR(root, train=True, augment=True)
dataloader = DataLoader(train_dataset, batch_size, shuffle=True, num_workers=workers, drop_last=True)
val_dataset = CIFAR(root, train=False)

model = MAE().to(device)
decay = [p for n, p in model.named_parameters() if p.ndim > 1 and 'token' not in n]
no_decay = [p for n, p in model.named_parameters() if p.ndim <= 1 or 'token' in n]
optim = torch.optim.AdamW([{'params': decay, 'weight_decay': weight_decay},
                           {'params': no_decay, 'weight_decay': 0.0}], lr=base_learning_rate, betas=(0.9, 0.95))

def adjust_learning_rate(optimizer, epoch):
    # decay the learning rate with half-cycle cosine after warmup
    if epoch < warmup_epoch:
        lr = base_learning_rate * epoch / warmup_epoch
    else:
        lr = base_learning_rate * 0.5 * (1. + math.cos(math.pi * (epoch - warmup_epoch) / (total_epoch - warmup_epoch)))
    for group in optimizer.param_groups:
        group['lr'] = lr
    return lr

images_seen = 0
for e in range(total_epoch):
    model.train()
    losses = []
    for step, (img, _) in enumerate(dataloader):
        lr = adjust_learning_rate(optim, step / len(dataloader) + e)
        img = img.to(device)
        loss, _, _ = model(img, mask_ratio)
        if not math.isfinite(loss.item()):
            raise RuntimeError('Loss is {}, stopping training'.format(loss.item()))
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
        images_seen += len(img)
    print(f'In epoch {e}, average training loss is {sum(losses) / len(losses):.4f}, lr {lr:.6f}')

    # reconstruct a few validation images
    model.eval()
    with torch.no_grad():
        val_img = torch.stack([val_dataset[i][0] for i in range(16)]).to(device)
        _, pred, mask = model(val_img, mask_ratio)
        target = model.patchify(val_img)
        recon = pred * mask.unsqueeze(-1) + target * (1 - mask.unsqueeze(-1))
        np.save(f'recon_{e:03d}.npy', torch.stack([target, recon]).cpu().numpy())
    torch.save({'model': model.state_dict(), 'optimizer': optim.state_dict(), 'epoch': e}, 'mae.pth')

# ---- linear probing
probe_train = DataLoader(CIFAR(root, train=True), probe_batch_size, shuffle=True, num_workers=workers)
probe_val = DataLoader(val_dataset, probe_batch_size, shuffle=False, num_workers=workers)
model.eval()
for p in model.parameters():
    p.requires_grad = False
head = nn.Sequential(nn.BatchNorm1d(96, affine=False), nn.Linear(96, 10)).to(device)
probe_optim = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
for e in range(probe_epoch):
    head.train()
    for img, label in probe_train:
        img, label = img.to(device), label.to(device)
        with torch.no_grad():
            feature = model.forward_features(img)
        probe_loss = F.cross_entropy(head(feature), label)
        probe_optim.zero_grad()
        probe_loss.backward()
        probe_optim.step()
    head.eval()
    correct = 0
    with torch.no_grad():
        for img, label in probe_val:
            logits = head(model.forward_features(img.to(device)))
            correct += (logits.argmax(1) == label.to(device)).sum().item()
    print(f'Linear probe epoch {e}: train loss {probe_loss.item():.4f}, val acc {correct / len(val_dataset):.4f}')
"""

ATTENTION = CELL[CELL.index("        attn = (q @ k.transpose") : CELL.index("        return self.proj(x)")]
SDPA = "        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)\n"
PROBE = CELL[CELL.index("for e in range(probe_epoch):") :]
FEATURES = """
def extract(loader):
    with torch.no_grad():
        pairs = [(model.forward_features(img.to(device)), label.to(device)) for img, label in loader]
    return [torch.cat(column) for column in zip(*pairs)]

train_features, val_features = extract(probe_train), extract(probe_val)
"""
CACHED = FEATURES.lstrip("\n") + PROBE.replace(
    "    for img, label in probe_train:\n"
    "        img, label = img.to(device), label.to(device)\n"
    "        with torch.no_grad():\n"
    "            feature = model.forward_features(img)\n",
    "    for index in torch.randperm(len(train_features[0])).split(probe_batch_size):\n"
    "        feature, label = train_features[0][index], train_features[1][index]\n",
).replace("        for img, label in probe_val:\n", "        for feature, label in [val_features]:\n").replace(
    "head(model.forward_features(img.to(device)))", "head(feature)"
)
PRED = "        x = self.decoder_pred(self.decoder_norm(x))\n        return x[:, 1:, :]\n"
LOSS = CELL[
    CELL.index("        target = self.patchify(imgs)\n        mean") : CELL.index(
        "    def forward(self, imgs, mask_ratio=0.75)"
    )
]

CHANGES = (
    Change("features for the probe computed once", "cache_items", edits={PROBE: CACHED}),
    Change("scaled dot product attention", "sdpa", edits={ATTENTION: SDPA}),
    Change(
        "pixels predicted for masked patches only",
        "selected_positions",
        edits={
            PRED: "        return x[:, 1:, :]\n",
            LOSS: "        rows = mask.bool()\n"
            "        target = self.patchify(imgs)[rows]\n"
            "        mean = target.mean(dim=-1, keepdim=True)\n"
            "        var = target.var(dim=-1, keepdim=True)\n"
            "        target = (target - mean) / (var + 1.0e-6) ** 0.5\n"
            "        return ((self.decoder_pred(self.decoder_norm(pred[rows])) - target) ** 2).mean()\n\n",
            "        _, pred, mask = model(val_img, mask_ratio)\n": ""
            "        _, pred, mask = model(val_img, mask_ratio)\n"
            "        pred = model.decoder_pred(model.decoder_norm(pred))\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        loss, _, _ = model(img, mask_ratio)\n": ""
            "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            loss, _, _ = model(img, mask_ratio)\n"
        },
    ),
    Change("batches of 128", "larger_batch", edits={"\nbatch_size = 64": "\nbatch_size = 128"}),
    Change("no workers", "num_workers", edits={"workers = 2\n": "workers = 0\n"}),
    Change("fused AdamW", "fused_optimizer", edits={"betas=(0.9, 0.95))": "betas=(0.9, 0.95), fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images_seen", seconds=8)
