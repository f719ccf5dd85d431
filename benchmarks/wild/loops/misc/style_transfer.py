"""Neural style transfer with LBFGS on the pixels of an image, in the manner of the Gatys tutorial; the weights get gradients."""

import torch
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def vgg_features() -> nn.Sequential:
    """The first layers of a narrow VGG."""
    layers: list[nn.Module] = []
    for inputs, outputs, pool in ((3, 24, False), (24, 24, True), (24, 48, False), (48, 48, True), (48, 96, False)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        if pool:
            layers.append(nn.MaxPool2d(2))
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(*layers)


def prepare(scale: float) -> Namespace:
    """A content image, a style image and the layers."""
    return {
        "cnn": vgg_features().eval(),
        "content_img": torch.rand(1, 3, 160, 160),
        "style_img": torch.rand(1, 3, 10, 10).repeat_interleave(16, 2).repeat_interleave(16, 3),
        "num_steps": scaled(80, scale, 10),
    }


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)

class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, input):
        self.loss = F.mse_loss(input, self.target)
        return input

class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super().__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input

def get_style_model_and_losses(cnn, style_img, content_img):
    content_losses, style_losses, model, i = [], [], nn.Sequential(), 0
    for layer in cnn.children():
        if isinstance(layer, nn.Conv2d):
            i += 1
            name = f'conv_{i}'
        elif isinstance(layer, nn.ReLU):
            name, layer = f'relu_{i}', nn.ReLU(inplace=False)
        else:
            name = f'pool_{i}'
        model.add_module(name, layer)
        if name == 'conv_4':
            content_losses.append(ContentLoss(model(content_img).detach()))
            model.add_module('content_loss', content_losses[-1])
        if name.startswith('conv'):
            style_losses.append(StyleLoss(model(style_img).detach()))
            model.add_module(f'style_loss_{i}', style_losses[-1])
    return model, style_losses, content_losses

input_img = content_img.clone().requires_grad_(True)
model, style_losses, content_losses = get_style_model_and_losses(cnn, style_img, content_img)
optimizer = optim.LBFGS([input_img])

run = [0]
while run[0] < num_steps:
    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        model(input_img)
        style_score = sum(sl.loss for sl in style_losses) * 1e6
        content_score = sum(cl.loss for cl in content_losses)
        loss = style_score + content_score
        loss.backward()
        run[0] += 1
        if run[0] % 10 == 0:
            print('run {}: Style Loss : {:4f} Content Loss: {:4f}'.format(run[0], style_score.item(), content_score.item()))
        return loss

    loss = optimizer.step(closure)
"""

CHANGES = (
    Change(
        "weights without gradients",
        "no_grad",
        edits={
            "optimizer = optim.LBFGS([input_img])": "model.eval().requires_grad_(False)\noptimizer = optim.LBFGS([input_img])"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "input_img = content_img.clone()": "cnn = cnn.to(memory_format=torch.channels_last)\n"
            "input_img = content_img.clone()",
            "        model(input_img)\n": "        model(input_img.contiguous(memory_format=torch.channels_last))\n",
            "features = input.view(a * b, c * d)": "features = input.reshape(a * b, c * d)",
        },
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        model(input_img)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n            model(input_img)\n"
        },
    ),
    Change("one thread", "threads", edits={"run = [0]\n": "run = [0]\ntorch.set_num_threads(1)\n"}),
    Change("log once", "fewer_logs", edits={"run[0] % 10 == 0": "run[0] == num_steps"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="min(run[0], num_steps)", same_steps=False, seconds=6)
