"""Self-distillation of a small vision transformer with global and local crops, as in DINO's training scripts."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Drawn scenes of eight classes (shape and texture), 64 pixels wide, as PNG files in one folder per class."""
    rng = np.random.default_rng(0)
    ys, xs = np.mgrid[:64, :64] / 64

    def scene(kind: int) -> Image.Image:
        angle, waves = rng.uniform(0, np.pi), 3 + 5 * (kind % 2) + rng.uniform(-0.5, 0.5)
        ground = np.sin(2 * np.pi * waves * (xs * np.cos(angle) + ys * np.sin(angle)))
        pixels = rng.uniform(60, 160, 3) + 35 * ground[..., None] + rng.normal(0, 10, (64, 64, 3))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        draw = ImageDraw.Draw(image)
        x, y, r = rng.uniform([20, 20, 10], [44, 44, 20])
        color = tuple(int(c) for c in rng.integers(0, 256, 3))
        if kind // 2 == 0:
            draw.ellipse([x - r, y - r, x + r, y + r], fill=color)
        elif kind // 2 == 1:
            draw.rectangle([x - r, y - r, x + r, y + r], fill=color)
        elif kind // 2 == 2:
            draw.polygon([(x - r, y + r), (x + r, y + r), (x, y - r)], fill=color)
        else:
            draw.line([x - r, y - r, x + r, y + r], fill=color, width=5)
            draw.line([x - r, y + r, x + r, y - r], fill=color, width=5)
        return image

    for split, count in (("train", scaled(576, scale, 64)), ("val", scaled(160, scale, 16))):
        for index in range(count):
            folder = Path(f"data/scenes/{split}/class_{index % 8}")
            folder.mkdir(parents=True, exist_ok=True)
            scene(index % 8).save(folder / f"{index:05d}.png")
    return {}


CELL = """
import argparse
import datetime
import json
import math
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset


def get_args_parser():
    parser = argparse.ArgumentParser('Self-distillation', add_help=False)
    parser.add_argument('--patch_size', default=8, type=int)
    parser.add_argument('--embed_dim', default=64, type=int)
    parser.add_argument('--depth', default=3, type=int)
    parser.add_argument('--num_heads', default=4, type=int)
    parser.add_argument('--out_dim', default=1024, type=int)
    parser.add_argument('--momentum_teacher', default=0.99, type=float)
    parser.add_argument('--warmup_teacher_temp', default=0.04, type=float)
    parser.add_argument('--teacher_temp', default=0.06, type=float)
    parser.add_argument('--warmup_teacher_temp_epochs', default=2, type=int)
    parser.add_argument('--weight_decay', type=float, default=0.04)
    parser.add_argument('--weight_decay_end', type=float, default=0.4)
    parser.add_argument('--clip_grad', type=float, default=3.0)
    parser.add_argument('--batch_size', default=32, type=int)
    parser.add_argument('--epochs', default=4, type=int)
    parser.add_argument('--freeze_last_layer', default=1, type=int)
    parser.add_argument('--lr', default=0.002, type=float)
    parser.add_argument('--warmup_epochs', default=1, type=int)
    parser.add_argument('--min_lr', type=float, default=1e-6)
    parser.add_argument('--global_crops_scale', type=float, nargs='+', default=(0.4, 1.))
    parser.add_argument('--local_crops_scale', type=float, nargs='+', default=(0.05, 0.4))
    parser.add_argument('--global_size', default=48, type=int)
    parser.add_argument('--local_size', default=24, type=int)
    parser.add_argument('--local_crops_number', type=int, default=4)
    parser.add_argument('--data_path', default='data/scenes', type=str)
    parser.add_argument('--output_dir', default='output', type=str)
    parser.add_argument('--num_workers', default=2, type=int)
    parser.add_argument('--print_freq', default=5, type=int)
    return parser


# ---------------------------------------------------------------- data

class RandomResizedCrop:
    def __init__(self, size, scale, ratio=(3 / 4, 4 / 3)):
        self.size, self.scale, self.ratio = size, scale, ratio

    def __call__(self, img):
        width, height = img.size
        for _ in range(10):
            area = width * height * random.uniform(*self.scale)
            aspect = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                i, j = random.randint(0, height - h), random.randint(0, width - w)
                break
        else:
            w, h = min(width, height), min(width, height)
            i, j = (height - h) // 2, (width - w) // 2
        return img.crop((j, i, j + w, i + h)).resize((self.size, self.size), Image.BICUBIC)


class ColorJitter:
    def __init__(self, brightness, contrast, saturation, p):
        self.ops = [(ImageEnhance.Brightness, brightness), (ImageEnhance.Contrast, contrast),
                    (ImageEnhance.Color, saturation)]
        self.p = p

    def __call__(self, img):
        if random.random() < self.p:
            for enhance, strength in random.sample(self.ops, len(self.ops)):
                img = enhance(img).enhance(random.uniform(1 - strength, 1 + strength))
        return img


class RandomApply:
    def __init__(self, fn, p):
        self.fn, self.p = fn, p

    def __call__(self, img):
        return self.fn(img) if random.random() < self.p else img


class Normalize:
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __call__(self, img):
        tensor = torch.from_numpy(np.array(img, dtype=np.float32)).permute(2, 0, 1) / 255
        return (tensor - self.mean) / self.std


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


def to_gray(img):
    return img.convert('L').convert('RGB')


def gaussian_blur(img):
    return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class DataAugmentation:
    def __init__(self, args):
        flip_and_jitter = [RandomApply(ImageOps.mirror, 0.5), ColorJitter(0.4, 0.4, 0.2, p=0.8),
                           RandomApply(to_gray, 0.2)]
        self.global_transfo1 = Compose([RandomResizedCrop(args.global_size, args.global_crops_scale),
                                        *flip_and_jitter, gaussian_blur, Normalize()])
        self.global_transfo2 = Compose([RandomResizedCrop(args.global_size, args.global_crops_scale),
                                        *flip_and_jitter, RandomApply(gaussian_blur, 0.1),
                                        RandomApply(ImageOps.solarize, 0.2), Normalize()])
        self.local_crops_number = args.local_crops_number
        self.local_transfo = Compose([RandomResizedCrop(args.local_size, args.local_crops_scale),
                                      *flip_and_jitter, RandomApply(gaussian_blur, 0.5), Normalize()])

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class ImageFolder(Dataset):
    def __init__(self, root, transform):
        self.transform = transform
        classes = sorted(os.listdir(root))
        self.samples = [(os.path.join(root, c, name), label) for label, c in enumerate(classes)
                        for name in sorted(os.listdir(os.path.join(root, c)))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        img = Image.open(path).convert('RGB')
        return self.transform(img), label


# ---------------------------------------------------------------- model

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
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, img_size, patch_size, embed_dim, depth, num_heads):
        super().__init__()
        self.patch_size = patch_size
        self.patch_embed = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // patch_size) ** 2 + 1, embed_dim))
        self.blocks = nn.ModuleList([Block(embed_dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=.02)
        nn.init.trunc_normal_(self.cls_token, std=.02)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=.02)
                nn.init.zeros_(m.bias)

    def interpolate_pos_encoding(self, x, w, h):
        N = self.pos_embed.shape[1] - 1
        if x.shape[1] - 1 == N and w == h:
            return self.pos_embed
        class_pos_embed, patch_pos_embed = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        side = int(math.sqrt(N))
        patch_pos_embed = F.interpolate(
            patch_pos_embed.reshape(1, side, side, -1).permute(0, 3, 1, 2),
            size=(w // self.patch_size, h // self.patch_size), mode='bicubic')
        return torch.cat((class_pos_embed, patch_pos_embed.permute(0, 2, 3, 1).flatten(1, 2)), dim=1)

    def forward(self, x):
        B, _, w, h = x.shape
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1)
        x = x + self.interpolate_pos_encoding(x, w, h)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)[:, 0]


class ProjectionHead(nn.Module):
    def __init__(self, in_dim, out_dim, hidden_dim=256, bottleneck_dim=64):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(in_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, hidden_dim),
                                 nn.GELU(), nn.Linear(hidden_dim, bottleneck_dim))
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(bottleneck_dim, out_dim, bias=False))
        self.last_layer.parametrizations.weight.original0.data.fill_(1)
        self.last_layer.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        x = self.mlp(x)
        x = F.normalize(x, dim=-1, p=2)
        return self.last_layer(x)


class MultiCropWrapper(nn.Module):
    # one forward pass of the backbone per resolution, one of the head over everything
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, x):
        if not isinstance(x, list):
            x = [x]
        idx_crops = torch.cumsum(torch.unique_consecutive(
            torch.tensor([inp.shape[-1] for inp in x]), return_counts=True)[1], 0)
        start_idx, output = 0, torch.empty(0).to(x[0].device)
        for end_idx in idx_crops:
            _out = self.backbone(torch.cat(x[start_idx: end_idx]))
            output = torch.cat((output, _out))
            start_idx = end_idx
        return self.head(output)


class DistillationLoss(nn.Module):
    def __init__(self, out_dim, ncrops, warmup_teacher_temp, teacher_temp, warmup_teacher_temp_epochs, nepochs,
                 student_temp=0.1, center_momentum=0.9):
        super().__init__()
        self.student_temp = student_temp
        self.center_momentum = center_momentum
        self.ncrops = ncrops
        self.register_buffer('center', torch.zeros(1, out_dim))
        self.teacher_temp_schedule = np.concatenate((
            np.linspace(warmup_teacher_temp, teacher_temp, warmup_teacher_temp_epochs),
            np.ones(nepochs - warmup_teacher_temp_epochs) * teacher_temp))

    def forward(self, student_output, teacher_output, epoch):
        student_out = (student_output / self.student_temp).chunk(self.ncrops)
        temp = self.teacher_temp_schedule[epoch]
        teacher_out = F.softmax((teacher_output - self.center) / temp, dim=-1)
        teacher_out = teacher_out.detach().chunk(2)

        total_loss = 0
        n_loss_terms = 0
        for iq, q in enumerate(teacher_out):
            for v in range(len(student_out)):
                if v == iq:
                    continue  # not the same view
                loss = torch.sum(-q * F.log_softmax(student_out[v], dim=-1), dim=-1)
                total_loss += loss.mean()
                n_loss_terms += 1
        total_loss /= n_loss_terms
        self.update_center(teacher_output)
        return total_loss

    @torch.no_grad()
    def update_center(self, teacher_output):
        batch_center = torch.sum(teacher_output, dim=0, keepdim=True) / len(teacher_output)
        self.center = self.center * self.center_momentum + batch_center * (1 - self.center_momentum)


# ---------------------------------------------------------------- utils

def cosine_scheduler(base_value, final_value, epochs, niter_per_ep, warmup_epochs=0):
    warmup_iters = warmup_epochs * niter_per_ep
    warmup_schedule = np.linspace(0, base_value, warmup_iters)
    iters = np.arange(epochs * niter_per_ep - warmup_iters)
    schedule = final_value + 0.5 * (base_value - final_value) * (1 + np.cos(np.pi * iters / len(iters)))
    return np.concatenate((warmup_schedule, schedule))


def clip_gradients(model, clip):
    norms = []
    for name, p in model.named_parameters():
        if p.grad is not None:
            param_norm = p.grad.data.norm(2)
            norms.append(param_norm.item())
            clip_coef = clip / (param_norm + 1e-6)
            if clip_coef < 1:
                p.grad.data.mul_(clip_coef)
    return norms


def cancel_gradients_last_layer(epoch, model, freeze_last_layer):
    if epoch >= freeze_last_layer:
        return
    for n, p in model.named_parameters():
        if 'last_layer' in n:
            p.grad = None


def get_params_groups(model):
    regularized, not_regularized = [], []
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        if name.endswith('.bias') or len(param.shape) == 1:
            not_regularized.append(param)
        else:
            regularized.append(param)
    return [{'params': regularized}, {'params': not_regularized, 'weight_decay': 0.}]


@torch.no_grad()
def knn_accuracy(backbone, args, k=10):
    plain = Compose([lambda img: img.resize((args.global_size, args.global_size), Image.BICUBIC), Normalize()])
    features, labels = {}, {}
    for split in ('train', 'val'):
        loader = DataLoader(ImageFolder(os.path.join(args.data_path, split), plain), batch_size=64)
        outs = [(F.normalize(backbone(x.to(device)), dim=1), y) for x, y in loader]
        features[split] = torch.cat([f for f, _ in outs])
        labels[split] = torch.cat([y for _, y in outs]).to(device)
    similarity = features['val'] @ features['train'].T
    neighbours = labels['train'][similarity.topk(k).indices]
    return (neighbours.mode(dim=1).values == labels['val']).float().mean().item()


# ---------------------------------------------------------------- training

def train_one_epoch(student, teacher, dino_loss, data_loader, optimizer, lr_schedule, wd_schedule, momentum_schedule,
                    epoch, args):
    losses, seen = [], 0
    end = time.time()
    for it, (images, _) in enumerate(data_loader):
        data_time = time.time() - end
        it = len(data_loader) * epoch + it
        for i, param_group in enumerate(optimizer.param_groups):
            param_group['lr'] = lr_schedule[it]
            if i == 0:  # only the first group is regularized
                param_group['weight_decay'] = wd_schedule[it]

        images = [im.to(device, non_blocking=True) for im in images]
        teacher_output = teacher(images[:2])
        student_output = student(images)
        loss = dino_loss(student_output, teacher_output, epoch)

        if not math.isfinite(loss.item()):
            print('Loss is {}, stopping training'.format(loss.item()))
            sys.exit(1)

        optimizer.zero_grad()
        loss.backward()
        if args.clip_grad:
            param_norms = clip_gradients(student, args.clip_grad)
        cancel_gradients_last_layer(epoch, student, args.freeze_last_layer)
        optimizer.step()

        # EMA update for the teacher
        with torch.no_grad():
            m = momentum_schedule[it]
            for param_q, param_k in zip(student.parameters(), teacher.parameters()):
                param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)

        losses.append(loss.item())
        seen += len(images[0])
        if it % args.print_freq == 0:
            print('Epoch: [{}/{}]  it {}  loss: {:.4f}  lr: {:.6f}  wd: {:.4f}  grad: {:.3f}  time: {:.4f}  '
                  'data: {:.4f}'.format(epoch, args.epochs, it, np.mean(losses[-20:]), optimizer.param_groups[0]['lr'],
                                        optimizer.param_groups[0]['weight_decay'], max(param_norms),
                                        time.time() - end, data_time))
        end = time.time()
    return {'loss': np.mean(losses), 'lr': optimizer.param_groups[0]['lr']}, seen


args = get_args_parser().parse_args([])
os.makedirs(args.output_dir, exist_ok=True)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
print('\\n'.join('%s: %s' % (k, str(v)) for k, v in sorted(dict(vars(args)).items())))

dataset = ImageFolder(os.path.join(args.data_path, 'train'), DataAugmentation(args))
data_loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers,
                         drop_last=True)
print(f'Data loaded: there are {len(dataset)} images.')

def build():
    backbone = VisionTransformer(args.global_size, args.patch_size, args.embed_dim, args.depth, args.num_heads)
    return MultiCropWrapper(backbone, ProjectionHead(args.embed_dim, args.out_dim)).to(device)

student, teacher = build(), build()
teacher.load_state_dict(student.state_dict())
for p in teacher.parameters():
    p.requires_grad = False

dino_loss = DistillationLoss(args.out_dim, args.local_crops_number + 2, args.warmup_teacher_temp, args.teacher_temp,
                             args.warmup_teacher_temp_epochs, args.epochs).to(device)
optimizer = torch.optim.AdamW(get_params_groups(student))
lr_schedule = cosine_scheduler(args.lr * args.batch_size / 256., args.min_lr, args.epochs, len(data_loader),
                               warmup_epochs=args.warmup_epochs)
wd_schedule = cosine_scheduler(args.weight_decay, args.weight_decay_end, args.epochs, len(data_loader))
momentum_schedule = cosine_scheduler(args.momentum_teacher, 1, args.epochs, len(data_loader))

images_seen = 0
start_time = time.time()
for epoch in range(args.epochs):
    train_stats, seen = train_one_epoch(student, teacher, dino_loss, data_loader, optimizer, lr_schedule, wd_schedule,
                                        momentum_schedule, epoch, args)
    images_seen += seen
    save_dict = {'student': student.state_dict(), 'teacher': teacher.state_dict(), 'optimizer': optimizer.state_dict(),
                 'epoch': epoch + 1, 'args': vars(args), 'dino_loss': dino_loss.state_dict()}
    torch.save(save_dict, os.path.join(args.output_dir, 'checkpoint.pth'))
    log_stats = {**{f'train_{k}': float(v) for k, v in train_stats.items()}, 'epoch': epoch}
    with open(os.path.join(args.output_dir, 'log.txt'), 'a') as f:
        f.write(json.dumps(log_stats) + '\\n')
print('Training time {}'.format(datetime.timedelta(seconds=int(time.time() - start_time))))
print('kNN accuracy of the teacher: {:.3f}'.format(knn_accuracy(teacher.backbone, args)))
"""

CLIP = CELL[CELL.index("    norms = []\n") : CELL.index("def cancel_gradients_last_layer")]
FOREACH_CLIP = """    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(grads, 2))
    coefs = (clip / (norms + 1e-6)).clamp(max=1)
    torch._foreach_mul_(grads, list(coefs.unbind()))
    return norms.tolist()


"""
EMA = CELL[CELL.index("            for param_q, param_k in zip(") : CELL.index("        losses.append(loss.item())")]
FOREACH_EMA = """            keys, queries = list(teacher.parameters()), list(student.parameters())
            torch._foreach_lerp_(keys, queries, float(1 - m))

"""
FORWARD = CELL[CELL.index("        teacher_output = teacher(") : CELL.index("        if not math.isfinite(")].rstrip(
    "\n"
)

CHANGES = (
    Change(
        "images decoded once, before the workers start",
        "cache_items",
        edits={
            "    def __len__(self):\n        return len(self.samples)\n": ""
            "        self.images = [Image.open(path).convert('RGB') for path, _ in self.samples]\n\n"
            "    def __len__(self):\n        return len(self.samples)\n",
            "        path, label = self.samples[index]\n        img = Image.open(path).convert('RGB')\n": ""
            "        img, label = self.images[index], self.samples[index][1]\n",
        },
    ),
    Change("clipping and teacher by foreach functions", "remove_python", edits={CLIP: FOREACH_CLIP, EMA: FOREACH_EMA}),
    Change(
        "fused attention",
        "sdpa",
        edits={
            "        attn = (q @ k.transpose(-2, -1)) * self.scale\n"
            "        attn = attn.softmax(dim=-1)\n"
            "        x = (attn @ v).transpose(1, 2)": ""
            "        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)"
        },
    ),
    Change(
        "no workers",
        "num_workers",
        edits={"'--num_workers', default=2": "'--num_workers', default=0"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            + "\n".join(f"    {line}" for line in FORWARD.splitlines())
        },
    ),
    Change("batches of 64", "larger_batch", edits={"'--batch_size', default=32": "'--batch_size', default=64"}),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={"AdamW(get_params_groups(student))": "AdamW(get_params_groups(student), fused=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images_seen", loss="train_stats['loss'].item()", seconds=8)
