"""FixMatch on CIFAR-like images: weak and strong views by PIL, an EMA model by a loop, and its test every epoch."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Images of 32 by 32 pixels in ten classes; few have a label."""
    rng = np.random.default_rng(0)
    prototypes = rng.normal(0, 1, (10, 8, 8, 3)).repeat(4, 1).repeat(4, 2)

    def make(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 10, count)
        noise = rng.normal(0, 1, (count, 32, 32, 3))
        return np.clip(128 + 40 * prototypes[labels] + 40 * noise, 0, 255).astype(np.uint8), labels

    x_labeled, y_labeled = make(160)
    x_unlabeled, _ = make(2400)
    x_test, y_test = make(512)
    return {
        "x_labeled": x_labeled,
        "y_labeled": y_labeled,
        "x_unlabeled": x_unlabeled,
        "x_test": x_test,
        "y_test": y_test,
        "TOTAL_STEPS": scaled(180, scale, 10),
    }


CELL = """
import random
from copy import deepcopy

import numpy as np
import PIL
import PIL.ImageOps
import PIL.ImageEnhance
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32)
STD = np.array([0.2471, 0.2435, 0.2616], dtype=np.float32)
PARAMETER_MAX = 10

def _float_parameter(v, max_v):
    return float(v) * max_v / PARAMETER_MAX

def AutoContrast(img, v): return PIL.ImageOps.autocontrast(img)
def Equalize(img, v): return PIL.ImageOps.equalize(img)
def Brightness(img, v): return PIL.ImageEnhance.Brightness(img).enhance(_float_parameter(v, 0.9) + 0.05)
def Color(img, v): return PIL.ImageEnhance.Color(img).enhance(_float_parameter(v, 0.9) + 0.05)
def Contrast(img, v): return PIL.ImageEnhance.Contrast(img).enhance(_float_parameter(v, 0.9) + 0.05)
def Sharpness(img, v): return PIL.ImageEnhance.Sharpness(img).enhance(_float_parameter(v, 0.9) + 0.05)
def Posterize(img, v): return PIL.ImageOps.posterize(img, int(_float_parameter(v, 4)) + 4)
def Solarize(img, v): return PIL.ImageOps.solarize(img, 256 - int(_float_parameter(v, 255)))
def Rotate(img, v): return img.rotate(_float_parameter(v, 30) * random.choice([-1, 1]))
def ShearX(img, v): return img.transform(img.size, Image.AFFINE, (1, _float_parameter(v, 0.3), 0, 0, 1, 0))
def ShearY(img, v): return img.transform(img.size, Image.AFFINE, (1, 0, 0, _float_parameter(v, 0.3), 1, 0))
def Identity(img, v): return img

POOL = [AutoContrast, Equalize, Brightness, Color, Contrast, Sharpness, Posterize, Solarize, Rotate, ShearX, ShearY, Identity]

def CutoutAbs(img, v):
    w, h = img.size
    x0, y0 = np.random.uniform(0, w), np.random.uniform(0, h)
    x0, y0 = int(max(0, x0 - v / 2.)), int(max(0, y0 - v / 2.))
    x1, y1 = int(min(w, x0 + v)), int(min(h, y0 + v))
    img = img.copy()
    PIL.ImageDraw.Draw(img).rectangle((x0, y0, x1, y1), (127, 127, 127))
    return img

import PIL.ImageDraw

class RandAugmentMC(object):
    def __init__(self, n, m):
        self.n, self.m = n, m

    def __call__(self, img):
        for op in random.choices(POOL, k=self.n):
            v = np.random.randint(1, self.m)
            if random.random() < 0.5:
                img = op(img, v)
        return CutoutAbs(img, int(32 * 0.5))

def weak(img):
    if random.random() < 0.5:
        img = img.transpose(Image.FLIP_LEFT_RIGHT)
    img = PIL.ImageOps.expand(img, border=4)
    x, y = random.randint(0, 8), random.randint(0, 8)
    return img.crop((x, y, x + 32, y + 32))

def to_tensor(img):
    return torch.from_numpy(((np.array(img, dtype=np.float32) / 255. - MEAN) / STD).transpose(2, 0, 1))

class TransformFixMatch(object):
    def __init__(self):
        self.weak = weak
        self.strong = RandAugmentMC(n=2, m=10)

    def __call__(self, x):
        return to_tensor(self.weak(x)), to_tensor(self.strong(weak(x)))

class CIFAR10SSL(Dataset):
    def __init__(self, data, targets, transform):
        self.data, self.targets, self.transform = data, targets, transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        img = Image.fromarray(self.data[index])
        return self.transform(img), (self.targets[index] if self.targets is not None else -1)

class BasicBlock(nn.Module):
    def __init__(self, in_planes, out_planes, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_planes), nn.Conv2d(in_planes, out_planes, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(out_planes), nn.Conv2d(out_planes, out_planes, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(in_planes, out_planes, 1, stride, bias=False) if in_planes != out_planes else nn.Identity()

    def forward(self, x):
        h = F.leaky_relu(self.bn1(x), 0.1)
        out = self.conv1(h)
        out = self.conv2(F.leaky_relu(self.bn2(out), 0.1))
        return self.short(h) + out

class WideResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.blocks = nn.Sequential(BasicBlock(16, 32, 1), BasicBlock(32, 64, 2), BasicBlock(64, 96, 2))
        self.bn = nn.BatchNorm2d(96)
        self.fc = nn.Linear(96, num_classes)

    def forward(self, x):
        out = F.leaky_relu(self.bn(self.blocks(self.conv1(x))), 0.1)
        return self.fc(F.adaptive_avg_pool2d(out, 1).flatten(1))

class ModelEMA(object):
    def __init__(self, model, decay):
        self.ema = deepcopy(model)
        self.ema.eval()
        self.decay = decay
        self.param_keys = [k for k, _ in self.ema.named_parameters()]
        self.buffer_keys = [k for k, _ in self.ema.named_buffers()]
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            msd = model.state_dict()
            esd = self.ema.state_dict()
            for k in self.param_keys:
                model_v = msd[k].detach()
                ema_v = esd[k]
                esd[k].copy_(ema_v * self.decay + (1. - self.decay) * model_v)
            for k in self.buffer_keys:
                esd[k].copy_(msd[k])

def interleave(x, size):
    s = list(x.shape)
    return x.reshape([-1, size] + s[1:]).transpose(0, 1).reshape([-1] + s[1:])

def de_interleave(x, size):
    s = list(x.shape)
    return x.reshape([size, -1] + s[1:]).transpose(0, 1).reshape([-1] + s[1:])

@torch.no_grad()
def test(test_loader, model):
    model.eval()
    correct, total, losses = 0, 0, []
    for inputs, targets in test_loader:
        outputs = model(inputs.to(device))
        losses.append(F.cross_entropy(outputs, targets.to(device)).item())
        correct += (outputs.argmax(1).cpu() == targets).sum().item()
        total += len(targets)
    return np.mean(losses), 100 * correct / total

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
batch_size, mu, eval_step, num_workers = 8, 3, 10, 0
threshold, T, lambda_u = 0.95, 1, 1

labeled_trainloader = DataLoader(
    CIFAR10SSL(x_labeled, y_labeled, lambda img: to_tensor(weak(img))), batch_size=batch_size, drop_last=True,
    sampler=RandomSampler(x_labeled), num_workers=num_workers)
unlabeled_trainloader = DataLoader(
    CIFAR10SSL(x_unlabeled, None, TransformFixMatch()), batch_size=batch_size * mu, drop_last=True,
    sampler=RandomSampler(x_unlabeled), num_workers=num_workers)
test_loader = DataLoader(CIFAR10SSL(x_test, y_test, to_tensor), batch_size=64, sampler=SequentialSampler(x_test))

model = WideResNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)
ema_model = ModelEMA(model, 0.999)

labeled_iter, unlabeled_iter = iter(labeled_trainloader), iter(unlabeled_trainloader)
n_seen, test_accs = 0, []
model.train()
for epoch in range(TOTAL_STEPS // eval_step):
    losses, masks = [], []
    for batch_idx in range(eval_step):
        try:
            inputs_x, targets_x = next(labeled_iter)
        except StopIteration:
            labeled_iter = iter(labeled_trainloader)
            inputs_x, targets_x = next(labeled_iter)
        try:
            (inputs_u_w, inputs_u_s), _ = next(unlabeled_iter)
        except StopIteration:
            unlabeled_iter = iter(unlabeled_trainloader)
            (inputs_u_w, inputs_u_s), _ = next(unlabeled_iter)

        inputs = interleave(torch.cat((inputs_x, inputs_u_w, inputs_u_s)), 2 * mu + 1).to(device)
        targets_x = targets_x.to(device)
        logits = model(inputs)
        logits = de_interleave(logits, 2 * mu + 1)
        logits_x = logits[:batch_size]
        logits_u_w, logits_u_s = logits[batch_size:].chunk(2)
        del logits

        Lx = F.cross_entropy(logits_x, targets_x, reduction='mean')
        pseudo_label = torch.softmax(logits_u_w.detach() / T, dim=-1)
        max_probs, targets_u = torch.max(pseudo_label, dim=-1)
        mask = max_probs.ge(threshold).float()
        Lu = (F.cross_entropy(logits_u_s, targets_u, reduction='none') * mask).mean()
        loss = Lx + lambda_u * Lu

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema_model.update(model)
        losses.append(loss.item())
        masks.append(mask.mean().item())
        n_seen += len(inputs_x) + len(inputs_u_w)

    test_loss, test_acc = test(test_loader, ema_model.ema)
    test_accs.append(test_acc)
    print(f'epoch {epoch} loss {np.mean(losses):.4f} mask {np.mean(masks):.2f} test {test_loss:.3f} top-1 {test_acc:.2f} '
          f'best {max(test_accs):.2f}')
"""

_LABELED = "sampler=RandomSampler(x_labeled), num_workers=num_workers)"
_UNLABELED = "sampler=RandomSampler(x_unlabeled), num_workers=num_workers)"
_EMA = CELL[CELL.index("            msd = model.state_dict()\n") : CELL.index("\ndef interleave")]
_TEST_DATA = "DataLoader(CIFAR10SSL(x_test, y_test, to_tensor), batch_size=64, sampler=SequentialSampler(x_test))"

CHANGES = (
    Change(
        "two workers for the unlabeled images",
        "num_workers",
        edits={_UNLABELED: "sampler=RandomSampler(x_unlabeled), num_workers=2, persistent_workers=True)"},
    ),
    Change(
        "test with the last epoch",
        "eval_less_often",
        edits={
            "    test_loss, test_acc = test(test_loader, ema_model.ema)\n": ""
            "    if (epoch + 1) * eval_step < TOTAL_STEPS:\n        continue\n"
            "    test_loss, test_acc = test(test_loader, ema_model.ema)\n"
        },
    ),
    Change(
        "test images as tensors once",
        "cache_items",
        edits={
            _TEST_DATA: "[(torch.stack([to_tensor(x) for x in x_test[i:i + 64]]), torch.from_numpy(y_test[i:i + 64]))\n"
            "               for i in range(0, len(x_test), 64)]"
        },
    ),
    Change(
        "weak views without a graph",
        "no_grad",
        edits={
            "        inputs = interleave(torch.cat((inputs_x, inputs_u_w, inputs_u_s)), 2 * mu + 1).to(device)\n": ""
            "        inputs = interleave(torch.cat((inputs_x, inputs_u_s)), mu + 1).to(device)\n"
            "        with torch.no_grad():\n            logits_u_w = model(inputs_u_w.to(device))\n",
            "        logits = de_interleave(logits, 2 * mu + 1)\n": "        logits = de_interleave(logits, mu + 1)\n",
            "        logits_u_w, logits_u_s = logits[batch_size:].chunk(2)\n": "        logits_u_s = logits[batch_size:]\n",
        },
    ),
    Change(
        "average with foreach",
        "foreach_optimizer",
        edits={
            _EMA: "            torch._foreach_lerp_(list(self.ema.parameters()), list(model.parameters()), 1 - self.decay)\n"
            "            for old, new in zip(self.ema.buffers(), model.buffers()):\n                old.copy_(new)\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits = model(inputs)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            logits = model(inputs)\n        logits = logits.float()\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = WideResNet().to(device)\n": "model = WideResNet().to(device, memory_format=torch.channels_last)\n",
            "        logits = model(inputs)\n": "        logits = model(inputs.contiguous(memory_format=torch.channels_last))\n",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_seen", seconds=10)
