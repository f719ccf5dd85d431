"""An image as a sum of two-dimensional Gaussians; Adam fits plain tensors to all pixels, as in splatting notebooks."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A picture of 80 by 80 pixels with discs and a gradient."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:80, 0:80] / 80
    image = np.stack([x, y, 1 - x], -1) * 0.5
    for _ in range(25):
        cx, cy, radius = rng.random(3) * (1, 1, 0.18)
        image[(x - cx) ** 2 + (y - cy) ** 2 < radius**2] = rng.random(3)
    return {"image": image.astype(np.float32), "n_iter": scaled(150, scale)}


CELL = """
import numpy as np
import torch
import torch.nn.functional as F

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
target = torch.tensor(image, device=device)
H, W, _ = target.shape
N = 160  # gaussians

torch.manual_seed(3)
xy = torch.rand(N, 2, device=device) * 2 - 1
log_scale = torch.full((N, 2), -2.3, device=device)
rot = torch.rand(N, device=device) * np.pi
color = torch.logit(target[((xy[:, 1] + 1) / 2 * (H - 1)).long(), ((xy[:, 0] + 1) / 2 * (W - 1)).long()].clamp(0.02, 0.98))
alpha = torch.zeros(N, device=device)
for p in (xy, log_scale, rot, color, alpha):
    p.requires_grad_()

optimizer = torch.optim.Adam([
    {'params': [xy], 'lr': 2e-3},
    {'params': [log_scale], 'lr': 1e-2},
    {'params': [rot], 'lr': 1e-2},
    {'params': [color], 'lr': 2e-2},
    {'params': [alpha], 'lr': 2e-2},
])


def covariance(log_scale, rot):
    c, s = torch.cos(rot), torch.sin(rot)
    R = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    S = torch.diag_embed(torch.exp(log_scale))
    RS = R @ S
    return RS @ RS.transpose(1, 2)


def render(xy, log_scale, rot, color, alpha):
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, H, device=device), torch.linspace(-1, 1, W, device=device),
                            indexing='ij')
    grid = torch.stack([xs, ys], -1).reshape(-1, 1, 2)
    inv = torch.inverse(covariance(log_scale, rot))
    d = grid - xy[None]                                             # (H*W, N, 2)
    power = -0.5 * torch.einsum('pni,nij,pnj->pn', d, inv, d)
    w = torch.exp(power) * torch.sigmoid(alpha)
    img = (w @ torch.sigmoid(color)) / (w.sum(-1, keepdim=True) + 1e-4)
    return img.reshape(H, W, 3)


psnrs, pixels = [], 0
for it in range(n_iter):
    out = render(xy, log_scale, rot, color, alpha)
    l1 = (out - target).abs().mean()
    loss = 0.8 * l1 + 0.2 * F.mse_loss(out, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pixels += H * W
    psnrs.append(-10 * torch.log10(F.mse_loss(out, target)).item())
    if it % 20 == 0:
        print(f'{it:4d} loss {loss.item():.4f} psnr {psnrs[-1]:.2f}')
"""

_POWER = "    power = -0.5 * torch.einsum('pni,nij,pnj->pn', d, inv, d)\n"

CHANGES = (
    Change(
        "quadratic form by components",
        "other",
        edits={
            _POWER: "    dx, dy = d.unbind(-1)\n"
            "    a, b, c = inv[:, 0, 0], inv[:, 0, 1], inv[:, 1, 1]\n"
            "    power = -0.5 * (a * dx * dx + 2 * b * dx * dy + c * dy * dy)\n"
        },
    ),
    Change(
        "quadratic form as one product of matrices",
        "other",
        edits={
            "    d = grid - xy[None]                                             # (H*W, N, 2)\n": "",
            _POWER: "    px, py = grid[:, 0].unbind(-1)\n"
            "    pixel = torch.stack([px * px, px * py, py * py, px, py, torch.ones_like(px)], -1)\n"
            "    a, b, c = inv[:, 0, 0], inv[:, 0, 1], inv[:, 1, 1]\n"
            "    mx, my = xy.unbind(-1)\n"
            "    coefficients = torch.stack([a, 2 * b, c, -2 * (a * mx + b * my), -2 * (b * mx + c * my),\n"
            "                                a * mx * mx + 2 * b * mx * my + c * my * my])\n"
            "    power = -0.5 * (pixel @ coefficients)\n",
        },
    ),
    Change(
        "grid of pixels once",
        "remove_python",
        edits={
            """    ys, xs = torch.meshgrid(torch.linspace(-1, 1, H, device=device), torch.linspace(-1, 1, W, device=device),
                            indexing='ij')
    grid = torch.stack([xs, ys], -1).reshape(-1, 1, 2)
""": "",
            "psnrs, pixels = [], 0\n": """ys, xs = torch.meshgrid(torch.linspace(-1, 1, H, device=device), torch.linspace(-1, 1, W, device=device), indexing='ij')
grid = torch.stack([xs, ys], -1).reshape(-1, 1, 2)
psnrs, pixels = [], 0
""",
        },
    ),
    Change(
        "PSNR at every twentieth step",
        "fewer_logs",
        edits={
            "    psnrs.append(-10": "    if it % 20 == 0:\n        psnrs.append(-10",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"    {'params': [alpha], 'lr': 2e-2},\n])": "    {'params': [alpha], 'lr': 2e-2},\n], fused=True)"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    out = render(xy, log_scale, rot, color, alpha)\n": ""
            "    with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "        out = render(xy, log_scale, rot, color, alpha)\n"
        },
    ),
    Change(
        "torch.compile",
        "compile",
        edits={"psnrs, pixels = [], 0\n": "render = torch.compile(render)\npsnrs, pixels = [], 0\n"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="pixels", seconds=10)
