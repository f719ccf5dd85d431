"""A tiny NeRF: rays of one random view per step, positional encoding, volume rendering, a test view now and then."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Views of 80 by 80 pixels from a sphere around coloured blobs, with their camera poses."""
    rng = np.random.default_rng(0)
    poses, views = [], []
    blobs, colours = rng.normal(0, 0.5, (4, 3)), rng.random((4, 3))
    rows, columns = np.meshgrid(np.linspace(-1, 1, 80), np.linspace(-1, 1, 80), indexing="ij")
    for theta in rng.uniform(0, 2 * np.pi, 41):
        back = np.array([np.cos(theta), np.sin(theta), 0.4])
        back /= np.linalg.norm(back)
        right = np.cross([0.0, 0.0, 1.0], back)
        right /= np.linalg.norm(right)
        up = np.cross(back, right)
        pose = np.eye(4)
        pose[:3] = np.stack([right, up, back, 4 * back], 1)
        view = np.zeros((80, 80, 3))
        for blob, colour in zip(blobs, colours, strict=True):
            distance = (columns - blob @ right) ** 2 + (rows + blob @ up) ** 2
            view += np.exp(-8 * distance)[..., None] * colour
        poses.append(pose)
        views.append(np.clip(view, 0, 1))
    return {
        "images": np.array(views, dtype=np.float32),
        "poses": np.array(poses, dtype=np.float32),
        "focal": 110.0,
        "N_iters": scaled(130, scale, 2),
    }


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

# Embedding of positions
class Embedder:
    def __init__(self, num_freqs, input_dims=3):
        self.embed_fns = [lambda x: x]
        for freq in 2. ** torch.linspace(0., num_freqs - 1, steps=num_freqs):
            for p_fn in [torch.sin, torch.cos]:
                self.embed_fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
        self.out_dim = input_dims * len(self.embed_fns)

    def embed(self, inputs):
        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)

class NeRF(nn.Module):
    def __init__(self, D=4, W=96, input_ch=3, skips=[2]):
        super().__init__()
        self.skips = skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)] + [nn.Linear(W, W) if i not in skips else nn.Linear(W + input_ch, W) for i in range(D - 1)])
        self.output_linear = nn.Linear(W, 4)

    def forward(self, x):
        h = x
        for i, l in enumerate(self.pts_linears):
            h = F.relu(l(h))
            if i in self.skips:
                h = torch.cat([x, h], -1)
        return self.output_linear(h)

def get_rays(H, W, focal, c2w):
    i, j = torch.meshgrid(torch.linspace(0, W-1, W), torch.linspace(0, H-1, H), indexing='ij')
    i, j = i.t().to(device), j.t().to(device)
    dirs = torch.stack([(i - W * .5) / focal, -(j - H * .5) / focal, -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d

def batchify(fn, chunk):
    def ret(inputs):
        return torch.cat([fn(inputs[i:i + chunk]) for i in range(0, inputs.shape[0], chunk)], 0)
    return ret

def render_rays(network_fn, rays_o, rays_d, near, far, N_samples, perturb):
    t_vals = torch.linspace(near, far, steps=N_samples, device=device)
    z_vals = t_vals.expand(list(rays_o.shape[:-1]) + [N_samples])
    if perturb:
        z_vals = z_vals + torch.rand(z_vals.shape, device=device) * (far - near) / N_samples
    pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
    flat = embedder.embed(pts.reshape(-1, 3))
    raw = batchify(network_fn, chunk)(flat).reshape(list(pts.shape[:-1]) + [4])
    rgb, sigma = torch.sigmoid(raw[..., :3]), F.relu(raw[..., 3])
    dists = torch.cat([z_vals[..., 1:] - z_vals[..., :-1], torch.full_like(z_vals[..., :1], 1e10)], -1)
    alpha = 1. - torch.exp(-sigma * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1. - alpha + 1e-10], -1), -1)[..., :-1]
    weights = alpha * trans
    return torch.sum(weights[..., None] * rgb, -2), torch.sum(weights * z_vals, -1)

images = torch.from_numpy(images).to(device)
poses = torch.from_numpy(poses).to(device)
testimg, testpose = images[-1], poses[-1]
images, poses = images[:-1], poses[:-1]
H, W = images.shape[1:3]

embedder = Embedder(6)
model = NeRF(input_ch=embedder.out_dim).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

N_samples = 48
N_rand = 512
chunk = 1024 * 8
i_plot = 65
total_rays = N_iters * 512
psnrs, iternums, n_rays = [], [], 0

for i in range(total_rays // N_rand):
    img_i = np.random.randint(images.shape[0])
    target = images[img_i]
    rays_o, rays_d = get_rays(H, W, focal, poses[img_i])
    coords = torch.stack(torch.meshgrid(torch.linspace(0, H-1, H), torch.linspace(0, W-1, W), indexing='ij'), -1)
    coords = torch.reshape(coords, [-1, 2])
    select_inds = np.random.choice(coords.shape[0], size=[N_rand], replace=False)
    select_coords = coords[select_inds].long()
    rays_o = rays_o[select_coords[:, 0], select_coords[:, 1]]
    rays_d = rays_d[select_coords[:, 0], select_coords[:, 1]]
    target_s = target[select_coords[:, 0], select_coords[:, 1]]

    rgb, depth = render_rays(model, rays_o, rays_d, near=2., far=6., N_samples=N_samples, perturb=True)
    loss = torch.mean((rgb - target_s) ** 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    n_rays += len(rgb)

    if (i + 1) % i_plot == 0:
        with torch.no_grad():
            rays_o, rays_d = get_rays(H, W, focal, testpose)
            rgb, depth = render_rays(model, rays_o.reshape(-1, 3), rays_d.reshape(-1, 3), near=2., far=6., N_samples=N_samples, perturb=False)
            test_loss = torch.mean((rgb.reshape(H, W, 3) - testimg) ** 2)
            psnr = -10. * torch.log10(test_loss)
        psnrs.append(psnr.item())
        iternums.append(i)
        print(i, 'loss', loss.item(), 'psnr', psnr.item())
"""

_RAW = "    raw = batchify(network_fn, chunk)(flat).reshape(list(pts.shape[:-1]) + [4])\n"
_EMBED = "        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)\n"

CHANGES = (
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            _RAW: "    with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "        raw = batchify(network_fn, chunk)(flat).float().reshape(list(pts.shape[:-1]) + [4])\n"
        },
    ),
    Change(
        "rays of all views computed once",
        "cache_items",
        edits={
            "psnrs, iternums, n_rays = [], [], 0\n": "psnrs, iternums, n_rays = [], [], 0\n"
            "all_rays = [get_rays(H, W, focal, pose) for pose in poses]\n",
            "    rays_o, rays_d = get_rays(H, W, focal, poses[img_i])\n": "    rays_o, rays_d = all_rays[img_i]\n",
        },
    ),
    Change(
        "one sine and one cosine of all frequencies",
        "remove_python",
        edits={
            _EMBED: "        angles = (inputs[..., None, :] * self.freqs[:, None]).flatten(-2)\n"
            "        return torch.cat([inputs, angles.sin(), angles.cos()], -1)\n",
            "        self.embed_fns = [lambda x: x]\n": "        self.embed_fns = [lambda x: x]\n"
            "        self.freqs = 2. ** torch.linspace(0., num_freqs - 1, steps=num_freqs)\n",
        },
    ),
    Change("no chunks in training", "other", edits={"chunk = 1024 * 8": "chunk = 1024 * 32"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=5e-4)": "lr=5e-4, fused=True)"}),
    Change("1024 rays per step", "larger_batch", edits={"N_rand = 512": "N_rand = 1024"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_rays", seconds=11)
