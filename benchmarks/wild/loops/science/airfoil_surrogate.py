"""A U-Net surrogate for flow around airfoils: simulations in compressed archives, normalized once, small batches, as in Deep-Flow-Prediction."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Potential flow around inclined ellipses: one .npz file per simulation, with six channels of 64 by 64 cells."""
    rng = np.random.default_rng(0)
    for folder, count in (("train", scaled(400, scale, 20)), ("test", scaled(60, scale, 20))):
        Path("data", folder).mkdir(parents=True)
        y, x = np.mgrid[-1:1:64j, -1:1:64j]
        for i in range(count):
            speed, angle, thick = rng.uniform(10, 100), rng.uniform(-0.4, 0.4), rng.uniform(0.05, 0.25)
            u, v = speed * np.cos(angle), speed * np.sin(angle)
            mask = (x / 0.5) ** 2 + (y / thick) ** 2 < 1
            z = x + 1j * y + 1e-3
            w = (u - 1j * v) - thick**2 * (u + 1j * v) / np.maximum(abs(z) ** 2, thick**2) * np.conj(z) / z
            pressure = 0.5 * (speed**2 - abs(w) ** 2)
            fields = [np.where(mask, 0, field) for field in (u + 0 * x, v + 0 * x, pressure, w.real, -w.imag)]
            a = np.stack([fields[0], fields[1], mask.astype(float), *fields[2:]])
            np.savez_compressed(f"data/{folder}/{i:05}.npz", a=a)
    return {"epochs": 2}


CELL = """
import math
import os
import random
import sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset

batch_size = 10
lrG = 0.0006
decayLr = True
expo = 5
saveL1 = True
dropout = 0.

class TurbDataset(Dataset):
    def __init__(self, dataDir, norms=None):
        files = sorted(os.listdir(dataDir))
        self.totalLength = len(files)
        self.inputs = np.empty((len(files), 3, 64, 64))
        self.targets = np.empty((len(files), 3, 64, 64))
        for i, file in enumerate(files):
            npfile = np.load(os.path.join(dataDir, file))
            d = npfile['a']
            self.inputs[i] = d[0:3]
            self.targets[i] = d[3:6]
        # remove pressure offset and make values dimensionless
        for i in range(self.totalLength):
            v_norm = (np.max(np.abs(self.inputs[i, 0]))**2 + np.max(np.abs(self.inputs[i, 1]))**2)**0.5
            self.targets[i, 0] -= np.mean(self.targets[i, 0])
            self.targets[i, 0] -= self.targets[i, 0] * self.inputs[i, 2]
            self.targets[i, 0] /= v_norm**2
            self.targets[i, 1:] /= v_norm
        # normalize to -1..1 range
        if norms is None:
            norms = ([np.max(np.abs(self.inputs[:, c])) for c in range(3)],
                     [np.max(np.abs(self.targets[:, c])) for c in range(3)])
        self.max_inputs, self.max_targets = norms
        for c in range(3):
            self.inputs[:, c] /= self.max_inputs[c]
            self.targets[:, c] /= self.max_targets[c]

    def __len__(self):
        return self.totalLength

    def __getitem__(self, idx):
        return self.inputs[idx], self.targets[idx]

    def denormalize(self, a):
        a = a.copy()
        for c in range(3):
            a[c] *= self.max_targets[c]
        return a

def blockUNet(in_c, out_c, name, transposed=False, bn=True, relu=True, size=4, pad=1, dropout=0.):
    block = nn.Sequential()
    if relu:
        block.add_module('%s_relu' % name, nn.ReLU(inplace=True))
    else:
        block.add_module('%s_leakyrelu' % name, nn.LeakyReLU(0.2, inplace=True))
    if not transposed:
        block.add_module('%s_conv' % name, nn.Conv2d(in_c, out_c, kernel_size=size, stride=2, padding=pad, bias=True))
    else:
        block.add_module('%s_upsam' % name, nn.Upsample(scale_factor=2, mode='bilinear'))
        block.add_module('%s_tconv' % name, nn.Conv2d(in_c, out_c, kernel_size=size - 1, stride=1, padding=pad, bias=True))
    if bn:
        block.add_module('%s_bn' % name, nn.BatchNorm2d(out_c))
    if dropout > 0.:
        block.add_module('%s_dropout' % name, nn.Dropout2d(dropout, inplace=True))
    return block

class TurbNetG(nn.Module):
    def __init__(self, channelExponent=6, dropout=0.):
        super().__init__()
        channels = int(2 ** channelExponent + 0.5)
        self.layer1 = nn.Sequential(nn.Conv2d(3, channels, 4, 2, 1, bias=True))
        self.layer2 = blockUNet(channels, channels * 2, 'layer2', relu=False, dropout=dropout)
        self.layer3 = blockUNet(channels * 2, channels * 2, 'layer3', relu=False, dropout=dropout)
        self.layer4 = blockUNet(channels * 2, channels * 4, 'layer4', relu=False, dropout=dropout)
        self.layer5 = blockUNet(channels * 4, channels * 8, 'layer5', relu=False, dropout=dropout, size=2, pad=0)
        self.dlayer5 = blockUNet(channels * 8, channels * 4, 'dlayer5', transposed=True, dropout=dropout)
        self.dlayer4 = blockUNet(channels * 8, channels * 2, 'dlayer4', transposed=True, dropout=dropout)
        self.dlayer3 = blockUNet(channels * 4, channels * 2, 'dlayer3', transposed=True, dropout=dropout)
        self.dlayer2 = blockUNet(channels * 4, channels, 'dlayer2', transposed=True, dropout=dropout)
        self.dlayer1 = nn.Sequential(nn.ReLU(inplace=True), nn.ConvTranspose2d(channels * 2, 3, 4, 2, 1, bias=True))

    def forward(self, x):
        out1 = self.layer1(x)
        out2 = self.layer2(out1)
        out3 = self.layer3(out2)
        out4 = self.layer4(out3)
        out5 = self.layer5(out4)
        dout5 = self.dlayer5(out5)
        dout4 = self.dlayer4(torch.cat([dout5, out4], 1))
        dout3 = self.dlayer3(torch.cat([dout4, out3], 1))
        dout2 = self.dlayer2(torch.cat([dout3, out2], 1))
        return self.dlayer1(torch.cat([dout2, out1], 1))

def weights_init(m):
    classname = m.__class__.__name__
    if classname.find('Conv') != -1:
        m.weight.data.normal_(0.0, 0.02)
    elif classname.find('BatchNorm') != -1:
        m.weight.data.normal_(1.0, 0.02)
        m.bias.data.fill_(0)

def computeLR(i, epochs, minLR, maxLR):
    if i < epochs * 0.5:
        return maxLR
    e = (i / float(epochs) - 0.5) * 2.
    # rescale second half to min/max range
    fmin, fmax = 0., 6.
    e = fmin + e * (fmax - fmin)
    return minLR + (maxLR - minLR) * math.pow(0.5, e)

def log(file, line):
    with open(file, 'a') as f:
        f.write(line + '\\n')

seed = 1234
random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

data = TurbDataset('data/train')
trainLoader = DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)
print('Training batches: {}'.format(len(trainLoader)))
dataValidation = TurbDataset('data/test', norms=(data.max_inputs, data.max_targets))
valiLoader = DataLoader(dataValidation, batch_size=batch_size, shuffle=False, drop_last=True)

netG = TurbNetG(channelExponent=expo, dropout=dropout)
model_parameters = filter(lambda p: p.requires_grad, netG.parameters())
print('Initialized TurbNet with {} trainable params'.format(sum([np.prod(p.size()) for p in model_parameters])))
netG.apply(weights_init)
netG.to(device)
criterionL1 = nn.L1Loss().to(device)
optimizerG = optim.Adam(netG.parameters(), lr=lrG, betas=(0.5, 0.999), weight_decay=0.0)

targets = Variable(torch.FloatTensor(batch_size, 3, 64, 64)).to(device)
inputs = Variable(torch.FloatTensor(batch_size, 3, 64, 64)).to(device)
samples = 0

for epoch in range(epochs):
    print('Starting epoch {} / {}'.format(epoch + 1, epochs))
    netG.train()
    L1_accum = 0.0
    for i, traindata in enumerate(trainLoader, 0):
        inputs_cpu, targets_cpu = traindata
        targets_cpu, inputs_cpu = targets_cpu.float().to(device), inputs_cpu.float().to(device)
        inputs.data.resize_as_(inputs_cpu).copy_(inputs_cpu)
        targets.data.resize_as_(targets_cpu).copy_(targets_cpu)

        # compute LR decay
        if decayLr:
            currLr = computeLR(epoch, epochs, lrG * 0.1, lrG)
            if currLr < lrG:
                for g in optimizerG.param_groups:
                    g['lr'] = currLr

        netG.zero_grad()
        gen_out = netG(inputs)
        lossL1 = criterionL1(gen_out, targets)
        lossL1.backward()
        optimizerG.step()

        lossL1viz = lossL1.item()
        L1_accum += lossL1viz
        samples += len(inputs_cpu)
        if i == len(trainLoader) - 1:
            print('Epoch: {}, batch-idx: {}, L1: {}'.format(epoch, i, lossL1viz))

    # validation
    netG.eval()
    L1val_accum = 0.0
    for i, validata in enumerate(valiLoader, 0):
        inputs_cpu, targets_cpu = validata
        targets_cpu, inputs_cpu = targets_cpu.float().to(device), inputs_cpu.float().to(device)
        inputs.data.resize_as_(inputs_cpu).copy_(inputs_cpu)
        targets.data.resize_as_(targets_cpu).copy_(targets_cpu)
        outputs = netG(inputs)
        outputs_cpu = outputs.data.cpu().numpy()
        L1val_accum += criterionL1(outputs, targets).item()
        if i == 0:
            outputs_denormalized = data.denormalize(outputs_cpu[0])
            targets_denormalized = data.denormalize(targets_cpu.cpu().numpy()[0])
            print('relative error {:.4f}'.format(np.abs(outputs_denormalized - targets_denormalized).sum()
                                                 / np.abs(targets_denormalized).sum()))

    L1_accum /= len(trainLoader)
    L1val_accum /= len(valiLoader)
    if saveL1:
        log('L1.txt', '{} '.format(L1_accum))
        log('L1val.txt', '{} '.format(L1val_accum))

torch.save(netG.state_dict(), 'modelG')
"""

CHANGES = (
    Change(
        "arrays in single precision",
        "storage_format",
        edits={
            "self.inputs = np.empty((len(files), 3, 64, 64))": "self.inputs = np.empty((len(files), 3, 64, 64), dtype=np.float32)",
            "self.targets = np.empty((len(files), 3, 64, 64))": "self.targets = np.empty((len(files), 3, 64, 64), dtype=np.float32)",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "netG.to(device)\n": "netG.to(device, memory_format=torch.channels_last)\n",
            "inputs = Variable(torch.FloatTensor(batch_size, 3, 64, 64)).to(device)": ""
            "inputs = torch.zeros(batch_size, 3, 64, 64).to(device, memory_format=torch.channels_last)",
            "        netG.zero_grad()\n        gen_out = netG(inputs)": ""
            "        netG.zero_grad()\n        gen_out = netG(inputs_cpu.to(memory_format=torch.channels_last))",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        gen_out = netG(inputs)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            gen_out = netG(inputs)\n",
        },
    ),
    Change("batches of 20", "larger_batch", edits={"batch_size = 10\n": "batch_size = 20\n"}),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=0.0)": "weight_decay=0.0, fused=True)"}),
    Change(
        "no gradients in validation",
        "no_grad",
        edits={
            "        outputs = netG(inputs)\n": "        with torch.no_grad():\n            outputs = netG(inputs)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples", loss="lossL1viz", seconds=6)
