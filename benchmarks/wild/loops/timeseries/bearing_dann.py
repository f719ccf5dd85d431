"""Bearing faults across motor loads by an adversarial 1D CNN, as in repositories of transfer fault diagnosis."""

from pathlib import Path

import numpy as np
from scipy.io import savemat

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

FAULTS = ("normal", *(f"{place}_{size}" for place in ("inner", "ball", "outer") for size in ("007", "014", "021")))


def prepare(scale: float) -> Namespace:
    """Vibrations of ten bearing states under two motor loads, a MATLAB file each: rotation, resonances, impacts."""
    rng = np.random.default_rng(0)
    length = 80 * 1024
    time = np.arange(length) / 12000
    for load, speed in ((0, 29.95), (3, 28.83)):
        folder = Path("data/bearings") / f"{load}HP"
        folder.mkdir(parents=True)
        for label, fault in enumerate(FAULTS):
            signal = 0.06 * np.sin(2 * np.pi * speed * time) + rng.normal(0, 0.05, length)
            signal += 0.03 * np.sin(2 * np.pi * 1036 * time + rng.uniform(0, 6))
            if label:
                place, size = divmod(label - 1, 3)
                period = 12000 / (speed * (5.415, 4.714, 3.585)[place])
                impacts = np.zeros(length)
                at = (
                    np.arange(1, length / period - 1) * period + rng.normal(0, 3, int(length / period - 1.001))
                ).astype(int)
                impacts[at.clip(0, length - 1)] = rng.normal(0.4 + 0.35 * size + 0.08 * load, 0.08, len(at))
                decay = np.arange(160) / 12000
                ring = np.exp(-decay * 900) * np.sin(2 * np.pi * (2700 + 300 * place - 150 * size) * decay)
                signal += np.convolve(impacts, ring)[:length]
            savemat(folder / f"{fault}.mat", {"DE_time": signal[:, None], "RPM": round(speed * 60)})
    return {"max_epoch": scaled(6, scale)}


CELL = """
import logging
import math
import os
import time
import numpy as np
import pandas as pd
import torch
from scipy.io import loadmat
from sklearn.model_selection import train_test_split
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', datefmt='%m-%d %H:%M:%S')

class Args:
    data_dir = 'data/bearings'
    source = '0HP'
    target = '3HP'
    signal_size = 1024
    batch_size = 32
    num_workers = 0
    lr = 1e-3
    weight_decay = 1e-5
    steps = '4'
    gamma = 0.1
    max_epoch = max_epoch
    middle_epoch = max_epoch // 3
    lam_adversarial = 1.0
    max_iter = 1000
    bottleneck_num = 256
    print_step = 5
    checkpoint_dir = 'checkpoint'

args = Args()

# ---------------------------------------------------------------- datasets

FAULTS = ['normal', 'inner_007', 'inner_014', 'inner_021', 'ball_007', 'ball_014', 'ball_021',
          'outer_007', 'outer_014', 'outer_021']

class Compose(object):
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, seq):
        for t in self.transforms:
            seq = t(seq)
        return seq

class Reshape(object):
    def __call__(self, seq):
        return seq.transpose()

class Retype(object):
    def __call__(self, seq):
        return seq.astype(np.float32)

class AddGaussian(object):
    def __init__(self, sigma=0.01):
        self.sigma = sigma

    def __call__(self, seq):
        if np.random.randint(2):
            return seq
        return seq + np.random.normal(loc=0, scale=self.sigma, size=seq.shape)

class RandomScale(object):
    def __init__(self, sigma=0.05):
        self.sigma = sigma

    def __call__(self, seq):
        if np.random.randint(2):
            return seq
        scale_factor = np.random.normal(loc=1, scale=self.sigma, size=(seq.shape[0], 1))
        return seq * scale_factor

class MaskSegment(object):
    def __init__(self, mask_len=20):
        self.mask_len = mask_len

    def __call__(self, seq):
        if np.random.randint(2):
            return seq
        seq = seq.copy()
        start = np.random.randint(seq.shape[1] - self.mask_len)
        seq[:, start:start + self.mask_len] = 0
        return seq

class Normalize(object):
    def __init__(self, kind='mean-std'):
        self.kind = kind

    def __call__(self, seq):
        if self.kind == '0-1':
            return (seq - seq.min()) / (seq.max() - seq.min())
        elif self.kind == 'mean-std':
            return (seq - seq.mean()) / seq.std()
        raise NameError('This normalization is not included!')

data_transforms = {
    'train': Compose([Reshape(), AddGaussian(), RandomScale(), MaskSegment(), Normalize(), Retype()]),
    'val': Compose([Reshape(), Normalize(), Retype()]),
}

class BearingDataset(Dataset):
    def __init__(self, list_data, transform):
        self.seq_data = list_data['data'].tolist()
        self.labels = list_data['label'].tolist()
        self.transform = transform

    def __len__(self):
        return len(self.seq_data)

    def __getitem__(self, item):
        seq = self.seq_data[item]
        label = self.labels[item]
        seq = self.transform(seq)
        return seq, label

def get_files(root, condition):
    data, lab = [], []
    for label, fault in enumerate(FAULTS):
        fl = loadmat(os.path.join(root, condition, fault + '.mat'))['DE_time']
        start, end = 0, args.signal_size
        while end <= fl.shape[0]:
            data.append(fl[start:end])
            lab.append(label)
            start += args.signal_size
            end += args.signal_size
    return pd.DataFrame({'data': data, 'label': lab})

def data_split(condition):
    data_pd = get_files(args.data_dir, condition)
    train_pd, val_pd = train_test_split(data_pd, test_size=0.2, random_state=40, stratify=data_pd['label'])
    return BearingDataset(train_pd, data_transforms['train']), BearingDataset(val_pd, data_transforms['val'])

# ---------------------------------------------------------------- models

class CNN(nn.Module):
    def __init__(self, in_channel=1):
        super(CNN, self).__init__()
        self.layer1 = nn.Sequential(
            nn.Conv1d(in_channel, 16, kernel_size=15),
            nn.BatchNorm1d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(kernel_size=2, stride=2))
        self.layer2 = nn.Sequential(
            nn.Conv1d(16, 32, kernel_size=3),
            nn.BatchNorm1d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(kernel_size=2, stride=2))
        self.layer3 = nn.Sequential(
            nn.Conv1d(32, 64, kernel_size=3),
            nn.BatchNorm1d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(kernel_size=2, stride=2))
        self.layer4 = nn.Sequential(
            nn.Conv1d(64, 128, kernel_size=3),
            nn.BatchNorm1d(128),
            nn.ReLU(inplace=True),
            nn.AdaptiveMaxPool1d(4))
        self.layer5 = nn.Sequential(
            nn.Linear(128 * 4, 256),
            nn.ReLU(inplace=True),
            nn.Dropout())

    def output_num(self):
        return 256

    def forward(self, x):
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = x.view(x.size(0), -1)
        return self.layer5(x)

def calc_coeff(iter_num, high=1.0, low=0.0, alpha=10.0, max_iter=10000.0):
    return float(2.0 * (high - low) / (1.0 + np.exp(-alpha * iter_num / max_iter)) - (high - low) + low)

def grl_hook(coeff):
    def fun1(grad):
        return -coeff * grad.clone()
    return fun1

class AdversarialNet(nn.Module):
    def __init__(self, in_feature, hidden_size, max_iter):
        super(AdversarialNet, self).__init__()
        self.ad_layer1 = nn.Sequential(nn.Linear(in_feature, hidden_size), nn.ReLU(inplace=True), nn.Dropout())
        self.ad_layer2 = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(inplace=True), nn.Dropout())
        self.ad_layer3 = nn.Linear(hidden_size, 1)
        self.sigmoid = nn.Sigmoid()
        self.iter_num = 0
        self.max_iter = max_iter

    def forward(self, x):
        if self.training:
            self.iter_num += 1
        coeff = calc_coeff(self.iter_num, max_iter=self.max_iter)
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(grl_hook(coeff))
        x = self.ad_layer1(x)
        x = self.ad_layer2(x)
        return self.sigmoid(self.ad_layer3(x))

# ---------------------------------------------------------------- training

class Trainer(object):
    def __init__(self, args):
        self.args = args

    def setup(self):
        args = self.args
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        logging.info('using %s', self.device)
        self.datasets = {}
        self.datasets['source_train'], self.datasets['source_val'] = data_split(args.source)
        self.datasets['target_train'], self.datasets['target_val'] = data_split(args.target)
        self.dataloaders = {x: DataLoader(self.datasets[x], batch_size=args.batch_size,
                                          shuffle=(x.split('_')[1] == 'train'),
                                          num_workers=args.num_workers,
                                          drop_last=(x.split('_')[1] == 'train'))
                            for x in ['source_train', 'source_val', 'target_train', 'target_val']}

        self.model = CNN()
        self.bottleneck_layer = nn.Sequential(nn.Linear(self.model.output_num(), args.bottleneck_num),
                                              nn.ReLU(inplace=True), nn.Dropout())
        self.classifier_layer = nn.Linear(args.bottleneck_num, len(FAULTS))
        self.model_all = nn.Sequential(self.model, self.bottleneck_layer, self.classifier_layer).to(self.device)
        self.AdversarialNet = AdversarialNet(args.bottleneck_num, 256, args.max_iter).to(self.device)

        parameter_list = [{'params': self.model.parameters(), 'lr': args.lr},
                          {'params': self.bottleneck_layer.parameters(), 'lr': args.lr},
                          {'params': self.classifier_layer.parameters(), 'lr': args.lr},
                          {'params': self.AdversarialNet.parameters(), 'lr': args.lr}]
        self.optimizer = optim.Adam(parameter_list, lr=args.lr, weight_decay=args.weight_decay)
        steps = [int(step) for step in args.steps.split(',')]
        self.lr_scheduler = optim.lr_scheduler.MultiStepLR(self.optimizer, steps, gamma=args.gamma)
        self.criterion = nn.CrossEntropyLoss()
        self.adversarial_loss = nn.BCELoss()

    def train(self):
        args = self.args
        step, best_acc = 0, 0.0
        batch_count, step_start = 0, time.time()
        self.num_samples = 0
        self.history = {'source_train': [], 'source_val': [], 'target_val': []}
        iter_target = iter(self.dataloaders['target_train'])
        len_target_loader = len(self.dataloaders['target_train'])
        os.makedirs(args.checkpoint_dir, exist_ok=True)

        for epoch in range(args.max_epoch):
            logging.info('-' * 5 + 'Epoch {}/{}'.format(epoch, args.max_epoch - 1) + '-' * 5)
            for phase in ['source_train', 'source_val', 'target_val']:
                epoch_start = time.time()
                epoch_acc, epoch_loss, epoch_length = 0, 0.0, 0
                if phase == 'source_train':
                    self.model_all.train()
                    self.AdversarialNet.train()
                else:
                    self.model_all.eval()
                    self.AdversarialNet.eval()

                for batch_idx, (inputs, labels) in enumerate(self.dataloaders[phase]):
                    adversarial = phase == 'source_train' and epoch >= args.middle_epoch
                    if adversarial:
                        source_inputs = inputs
                        target_inputs, _ = next(iter_target)
                        inputs = torch.cat((source_inputs, target_inputs), dim=0)
                    inputs = inputs.to(self.device)
                    labels = labels.to(self.device)
                    if (step + 1) % len_target_loader == 0:
                        iter_target = iter(self.dataloaders['target_train'])

                    with torch.set_grad_enabled(phase == 'source_train'):
                        features = self.bottleneck_layer(self.model(inputs))
                        outputs = self.classifier_layer(features)
                        logits = outputs.narrow(0, 0, labels.size(0))
                        loss = self.criterion(logits, labels)
                        if adversarial:
                            domain_label_source = torch.ones(labels.size(0)).float()
                            domain_label_target = torch.zeros(inputs.size(0) - labels.size(0)).float()
                            adversarial_label = torch.cat((domain_label_source, domain_label_target), dim=0)
                            adversarial_label = adversarial_label.to(self.device)
                            adversarial_out = self.AdversarialNet(features)
                            adversarial_loss = self.adversarial_loss(adversarial_out.squeeze(), adversarial_label)
                            loss = loss + args.lam_adversarial * adversarial_loss

                        pred = logits.argmax(dim=1)
                        correct = torch.eq(pred, labels).float().sum().item()
                        loss_temp = loss.item() * labels.size(0)
                        epoch_loss += loss_temp
                        epoch_acc += correct
                        epoch_length += labels.size(0)

                        if phase == 'source_train':
                            self.optimizer.zero_grad()
                            loss.backward()
                            self.optimizer.step()
                            self.num_samples += inputs.size(0)
                            batch_count += labels.size(0)
                            if step % args.print_step == 0:
                                train_time = time.time() - step_start
                                step_start = time.time()
                                logging.info('Epoch: {} [{}/{}], Train Loss: {:.4f} Train Acc: {:.4f} '
                                             '{:.1f} examples/sec'.format(
                                                 epoch, batch_idx * len(labels), len(self.dataloaders[phase].dataset),
                                                 loss.item(), correct / len(labels), batch_count / train_time))
                                batch_count = 0
                            step += 1

                epoch_loss = epoch_loss / epoch_length
                epoch_acc = epoch_acc / epoch_length
                self.history[phase].append(epoch_loss)
                logging.info('Epoch: {} {}-Loss: {:.4f} {}-Acc: {:.4f}, Cost {:.1f} sec'.format(
                    epoch, phase, epoch_loss, phase, epoch_acc, time.time() - epoch_start))
                if phase == 'target_val' and (epoch_acc > best_acc or epoch > args.max_epoch - 2):
                    best_acc = max(best_acc, epoch_acc)
                    torch.save(self.model_all.state_dict(), os.path.join(
                        args.checkpoint_dir, '{}-{:.4f}-best_model.pth'.format(epoch, best_acc)))
            self.lr_scheduler.step()

trainer = Trainer(args)
trainer.setup()
trainer.train()
"""

VALIDATION = "for x in ['source_train', 'source_val', 'target_train', 'target_val']}\n"
WHOLE = """
class WholeBatches(object):
    def __init__(self, dataset, batch_size, shuffle):
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.signals = torch.from_numpy(np.stack(dataset.seq_data).transpose(0, 2, 1).astype(np.float32))
        self.targets = torch.tensor(dataset.labels)

    def __len__(self):
        return math.ceil(len(self.targets) / self.batch_size)

    def __iter__(self):
        count = len(self.targets)
        order = torch.randperm(count) if self.shuffle else torch.arange(count)
        for index in order.split(self.batch_size):
            seq = self.signals[index]
            if self.shuffle:
                n, length = len(index), seq.size(-1)
                seq = seq + 0.01 * torch.randint(2, (n, 1, 1)) * torch.randn(seq.shape)
                seq = seq * (1 + 0.05 * torch.randint(2, (n, 1, 1)) * torch.randn(n, 1, 1))
                after_start = torch.arange(length) - torch.randint(length - 20, (n, 1, 1))
                masked = (after_start >= 0) & (after_start < 20) & (torch.randint(2, (n, 1, 1)) > 0)
                seq = seq.masked_fill(masked, 0.0)
            std, mean = torch.std_mean(seq, dim=-1, keepdim=True, correction=0)
            yield (seq - mean) / std, self.targets[index]
"""
LOADERS = CELL[CELL.index("        self.dataloaders = {x: DataLoader(") : CELL.index("\n        self.model = CNN()")]
SETUP = "# ---------------------------------------------------------------- training\n"
FORWARD = """                        features = self.bottleneck_layer(self.model(inputs))
                        outputs = self.classifier_layer(features)
                        logits = outputs.narrow(0, 0, labels.size(0))
                        loss = self.criterion(logits, labels)
"""
ADVERSARY = "                            adversarial_out = self.AdversarialNet(features)\n"

CHANGES = (
    Change(
        "whole batches of signals as tensors",
        "batch_whole",
        edits={
            SETUP: SETUP + WHOLE,
            LOADERS: "        self.dataloaders = {\n"
            "            x: WholeBatches(self.datasets[x], args.batch_size, x.endswith('train'))\n"
            "                            " + VALIDATION,
        },
    ),
    Change(
        "validation batches kept",
        "cache_items",
        edits={
            VALIDATION: VALIDATION + "        for x in ['source_val', 'target_val']:\n"
            "            self.dataloaders[x] = list(self.dataloaders[x])\n"
        },
    ),
    Change(
        "validation every third epoch",
        "eval_less_often",
        edits={
            "            for phase in ['source_train', 'source_val', 'target_val']:\n": ""
            "            validate = epoch % 3 == 2 or epoch == args.max_epoch - 1\n"
            "            for phase in ['source_train', 'source_val', 'target_val'][:3 if validate else 1]:\n"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: "                        with torch.autocast(self.device.type, dtype=torch.bfloat16):\n"
            + "".join(f"    {line}\n" for line in FORWARD.splitlines()),
            ADVERSARY: "                            with torch.autocast(self.device.type, dtype=torch.bfloat16):\n"
            "                                adversarial_out = self.AdversarialNet(features)\n"
            "                            adversarial_out = adversarial_out.float()\n",
        },
    ),
    Change("batches of 64", "larger_batch", edits={"batch_size = 32": "batch_size = 64"}),
    Change("2 workers", "num_workers", edits={"num_workers = 0": "num_workers = 2"}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"weight_decay=args.weight_decay)": "weight_decay=args.weight_decay, fused=True)"},
    ),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="trainer.num_samples",
    loss="trainer.history['source_train'][-1]",
    seconds=7,
)
