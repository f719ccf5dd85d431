"""Retina photos with a Fitter class, average meters, a small EfficientNet and validation every epoch, as in Kaggle kernels."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Decoded photos of 80 by 80 pixels with a grade from 0 to 4."""
    rng = np.random.default_rng(0)
    count = scaled(960, scale, 16) + 64
    images = rng.integers(0, 256, (count, 80, 80, 3), dtype=np.uint8)
    return {"images": images, "train": pd.DataFrame({"image_id": range(count), "level": rng.integers(0, 5, count)})}


CELL = """
import os, time, random, warnings
import datetime
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.sampler import SequentialSampler, RandomSampler

SEED = 42
def seed_everything(seed):
    random.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
seed_everything(SEED)

class DatasetRetriever(Dataset):
    def __init__(self, image_ids, labels, augment=False):
        super().__init__()
        self.image_ids = image_ids
        self.labels = labels
        self.augment = augment

    def __getitem__(self, index):
        image = images[self.image_ids[index]].astype(np.float32) / 255.0
        if self.augment:
            if np.random.rand() < 0.5: image = image[:, ::-1]
            if np.random.rand() < 0.5: image = image[::-1]
        image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return image, self.labels[index]

    def __len__(self):
        return self.image_ids.shape[0]

class SqueezeExcite(nn.Module):
    def __init__(self, ch, rd):
        super().__init__()
        self.conv_reduce, self.conv_expand = nn.Conv2d(ch, rd, 1), nn.Conv2d(rd, ch, 1)
    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        return x * self.conv_expand(nn.functional.silu(self.conv_reduce(s))).sigmoid()

class MBConv(nn.Module):
    def __init__(self, inp, out, stride, expand=4):
        super().__init__()
        mid = inp * expand
        self.skip = stride == 1 and inp == out
        self.conv = nn.Sequential(
            nn.Conv2d(inp, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.SiLU(),
            nn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False), nn.BatchNorm2d(mid), nn.SiLU(),
            SqueezeExcite(mid, inp // 4 + 1),
            nn.Conv2d(mid, out, 1, bias=False), nn.BatchNorm2d(out))
    def forward(self, x):
        return x + self.conv(x) if self.skip else self.conv(x)

def get_net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
        MBConv(16, 24, 2), MBConv(24, 24, 1), MBConv(24, 40, 2), MBConv(40, 40, 1), MBConv(40, 80, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(80, 5))

class AverageMeter(object):
    def __init__(self):
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

class Fitter:
    def __init__(self, model, config):
        self.config = config
        self.epoch = 0
        self.base_dir = './'
        self.log_path = f'{self.base_dir}/log.txt'
        self.best_summary_loss = 10**5
        self.images_seen = 0
        self.model = model
        param_optimizer = list(self.model.named_parameters())
        no_decay = ['bias', 'LayerNorm.bias', 'LayerNorm.weight']
        optimizer_grouped_parameters = [
            {'params': [p for n, p in param_optimizer if not any(nd in n for nd in no_decay)], 'weight_decay': 0.001},
            {'params': [p for n, p in param_optimizer if any(nd in n for nd in no_decay)], 'weight_decay': 0.0}
        ]
        self.optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=config.lr)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, mode='min', factor=0.7, patience=1)
        self.criterion = nn.CrossEntropyLoss()
        self.log('Fitter prepared.')

    def fit(self, train_loader, validation_loader):
        for e in range(self.config.n_epochs):
            t = time.time()
            summary_loss = self.train_one_epoch(train_loader)
            self.log(f'[RESULT]: Train. Epoch: {self.epoch}, summary_loss: {summary_loss.avg:.5f}, time: {(time.time() - t):.5f}')
            t = time.time()
            summary_loss = self.validation(validation_loader)
            self.log(f'[RESULT]: Val. Epoch: {self.epoch}, summary_loss: {summary_loss.avg:.5f}, time: {(time.time() - t):.5f}')
            if summary_loss.avg < self.best_summary_loss:
                self.best_summary_loss = summary_loss.avg
                self.save(f'{self.base_dir}/best-checkpoint.bin')
            self.scheduler.step(metrics=summary_loss.avg)
            self.epoch += 1

    def validation(self, val_loader):
        self.model.eval()
        summary_loss = AverageMeter()
        for step, (x, y) in enumerate(val_loader):
            with torch.no_grad():
                loss = self.criterion(self.model(x), y)
                summary_loss.update(loss.detach().item(), x.shape[0])
        return summary_loss

    def train_one_epoch(self, train_loader):
        self.model.train()
        summary_loss = AverageMeter()
        t = time.time()
        for step, (x, y) in enumerate(train_loader):
            if self.config.verbose and step % self.config.verbose_step == 0:
                print(f'Train Step {step}/{len(train_loader)}, summary_loss: {summary_loss.avg:.5f}, time: {(time.time() - t):.5f}', end='\\r')
            self.optimizer.zero_grad()
            outputs = self.model(x)
            loss = self.criterion(outputs, y)
            loss.backward()
            summary_loss.update(loss.detach().item(), x.shape[0])
            self.optimizer.step()
            self.images_seen += x.shape[0]
        self.last_loss = summary_loss.avg
        return summary_loss

    def save(self, path):
        self.model.eval()
        torch.save({
            'model_state_dict': self.model.state_dict(),
            'optimizer_state_dict': self.optimizer.state_dict(),
            'scheduler_state_dict': self.scheduler.state_dict(),
            'best_summary_loss': self.best_summary_loss,
            'epoch': self.epoch,
        }, path)

    def log(self, message):
        print(message)
        with open(self.log_path, 'a+') as logger:
            logger.write(f'{message}\\n')

class TrainGlobalConfig:
    batch_size = 16
    n_epochs = 2
    lr = 0.0002
    verbose = True
    verbose_step = 1

net = get_net()
validation_ids, train_ids = train['image_id'].values[:64], train['image_id'].values[64:]
labels = train['level'].values
train_dataset = DatasetRetriever(train_ids, labels[train_ids], augment=True)
validation_dataset = DatasetRetriever(validation_ids, labels[validation_ids])
train_loader = DataLoader(train_dataset, batch_size=TrainGlobalConfig.batch_size, sampler=RandomSampler(train_dataset), drop_last=True)
val_loader = DataLoader(validation_dataset, batch_size=32, shuffle=False, sampler=SequentialSampler(validation_dataset))

fitter = Fitter(model=net, config=TrainGlobalConfig)
fitter.fit(train_loader, val_loader)
"""

_OUT = "            outputs = self.model(x)\n"

CHANGES = (
    Change(
        "channels_last",
        "channels_last",
        edits={
            "net = get_net()\n": "net = get_net().to(memory_format=torch.channels_last)\n",
            _OUT: "            outputs = self.model(x.contiguous(memory_format=torch.channels_last))\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            _OUT: "            with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "                outputs = self.model(x).float()\n"
        },
    ),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=config.lr)": "lr=config.lr, fused=True)"}),
    Change("batches of 32", "larger_batch", edits={"    batch_size = 16\n": "    batch_size = 32\n"}),
    Change("a line every 20 steps", "fewer_logs", edits={"verbose_step = 1\n": "verbose_step = 20\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="fitter.images_seen", loss="fitter.last_loss", seconds=10)
