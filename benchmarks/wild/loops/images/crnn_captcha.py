"""Captchas read by a CRNN with CTC loss, a Kaggle notebook with images named after their text."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Images of 200 by 50 pixels with five distorted letters and a line through them, such as samples/2b827.png."""
    rng = np.random.default_rng(0)
    letters = list("2345678bcdefgmnpwxy")
    fonts = [ImageFont.load_default(size) for size in (30, 33, 36)]
    folder = Path("samples")
    folder.mkdir()
    count = scaled(576, scale, 64) + (64 if scale >= 0.5 else 16)
    while count:
        text = "".join(rng.choice(letters, 5))
        path = folder / f"{text}.png"
        if path.exists():
            continue
        image = Image.new("L", (200, 50), 235)
        x = int(rng.integers(20, 45))
        for letter in text:
            glyph = Image.new("L", (40, 50), 0)
            ImageDraw.Draw(glyph).text((8, 2), letter, fill=255, font=fonts[rng.integers(len(fonts))])
            glyph = glyph.rotate(float(rng.normal(0, 9)), resample=Image.Resampling.BILINEAR)
            image.paste(int(rng.integers(20, 90)), (x - 6, int(rng.integers(-4, 6))), glyph)
            x += int(rng.integers(21, 28))
        ends = [
            (int(rng.integers(10, 40)), int(rng.integers(10, 45))),
            (int(rng.integers(140, 190)), int(rng.integers(10, 45))),
        ]
        ImageDraw.Draw(image).line(ends, fill=70, width=3)
        pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float32) + rng.normal(0, 6, (50, 200))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGBA").save(path)
        count -= 1
    return {"valid_images": 64 if scale >= 0.5 else 16}


CELL = """
import glob
import os
import random
from itertools import groupby

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import Dataset, DataLoader

# %% Config
class CFG:
    data_dir = 'samples'
    height = 32
    width = 128
    batch_size = 16
    epochs = 2
    lr = 1e-3
    hidden = 128
    device = 'cuda' if torch.cuda.is_available() else 'cpu'

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)

# %% Files and labels
paths = sorted(glob.glob(os.path.join(CFG.data_dir, '*.png')))
labels = [os.path.basename(p)[:-4] for p in paths]
characters = sorted(set(''.join(labels)))
char2idx = {c: i + 1 for i, c in enumerate(characters)}   # 0 is the blank
idx2char = {i: c for c, i in char2idx.items()}
print('Images:', len(paths), ' characters:', ''.join(characters))

order = np.random.permutation(len(paths))
train_idx, valid_idx = order[valid_images:], order[:valid_images]

# %% Dataset
class CaptchaDataset(Dataset):
    def __init__(self, paths, labels, train=True):
        self.paths = paths
        self.labels = labels
        self.train = train

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, idx):
        image = Image.open(self.paths[idx]).convert('RGB')
        image = image.resize((CFG.width, CFG.height), Image.BILINEAR)
        image = np.array(image).astype(np.float32) / 255.
        if self.train:
            # small shift and contrast
            image = np.roll(image, random.randint(-3, 3), axis=1)
            image = np.clip((image - 0.5) * random.uniform(0.8, 1.2) + 0.5, 0, 1)
        image = (image - 0.5) / 0.5
        image = torch.tensor(np.transpose(image, (2, 0, 1)), dtype=torch.float)
        target = torch.tensor([char2idx[c] for c in self.labels[idx]], dtype=torch.long)
        return {'images': image, 'targets': target}

train_ds = CaptchaDataset([paths[i] for i in train_idx], [labels[i] for i in train_idx])
valid_ds = CaptchaDataset([paths[i] for i in valid_idx], [labels[i] for i in valid_idx], train=False)
train_loader = DataLoader(train_ds, batch_size=CFG.batch_size, shuffle=True, num_workers=2)
valid_loader = DataLoader(valid_ds, batch_size=CFG.batch_size, shuffle=False, num_workers=2)

# %% Model
def conv_block(cin, cout, pool):
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel_size=3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(pool),
    )

class CRNN(nn.Module):
    def __init__(self, num_chars, hidden=128):
        super().__init__()
        self.cnn = nn.Sequential(
            conv_block(3, 32, (2, 2)),
            conv_block(32, 64, (2, 2)),
            conv_block(64, 96, (2, 1)),
            conv_block(96, 96, (2, 1)),
        )
        self.linear = nn.Linear(96 * 2, 96)
        self.drop = nn.Dropout(0.2)
        self.rnn = nn.LSTM(96, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.25)
        self.output = nn.Linear(hidden * 2, num_chars + 1)

    def forward(self, images):
        bs = images.size(0)
        x = self.cnn(images)                          # bs, c, h, w
        x = x.permute(0, 3, 1, 2)                     # bs, w, c, h
        x = x.reshape(bs, x.size(1), -1)
        x = self.drop(F.relu(self.linear(x)))
        x, _ = self.rnn(x)
        x = self.output(x)
        return x.permute(1, 0, 2)                     # time, bs, classes

def ctc_loss(x, targets):
    bs = targets.size(0)
    log_probs = F.log_softmax(x, 2)
    input_lengths = torch.full(size=(bs,), fill_value=log_probs.size(0), dtype=torch.int32)
    target_lengths = torch.full(size=(bs,), fill_value=targets.size(1), dtype=torch.int32)
    return nn.CTCLoss(blank=0, zero_infinity=True)(log_probs, targets, input_lengths, target_lengths)

model = CRNN(len(characters), CFG.hidden).to(CFG.device)
optimizer = torch.optim.Adam(model.parameters(), lr=CFG.lr)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.8, patience=5)

# %% Decoding
def decode_predictions(preds):
    preds = preds.permute(1, 0, 2)
    preds = torch.softmax(preds, 2)
    preds = torch.argmax(preds, 2)
    preds = preds.detach().cpu().numpy()
    texts = []
    for j in range(preds.shape[0]):
        raw = []
        for k in preds[j, :]:
            raw.append('-' if k == 0 else idx2char[int(k)])
        texts.append(''.join(c for c, _ in groupby(raw)).replace('-', ''))
    return texts

def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (ca != cb))
    return row[-1]

# %% Training
images_seen, best_cer = 0, 99.0
for epoch in range(CFG.epochs):
    model.train()
    running, train_preds, train_texts = 0.0, [], []
    for data in train_loader:
        images, targets = data['images'].to(CFG.device), data['targets'].to(CFG.device)
        optimizer.zero_grad()
        preds = model(images)
        loss = ctc_loss(preds, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        running += loss.item() * len(images)
        images_seen += len(images)
        train_preds.extend(decode_predictions(preds))
        train_texts.extend(''.join(idx2char[int(i)] for i in t) for t in targets)
    train_loss = running / len(train_ds)
    train_cer = np.mean([edit_distance(p, t) / len(t) for p, t in zip(train_preds, train_texts)])

    model.eval()
    valid_loss, valid_preds, valid_texts = 0.0, [], []
    with torch.no_grad():
        for data in valid_loader:
            images, targets = data['images'].to(CFG.device), data['targets'].to(CFG.device)
            preds = model(images)
            valid_loss += ctc_loss(preds, targets).item() * len(images)
            valid_preds.extend(decode_predictions(preds))
            valid_texts.extend(''.join(idx2char[int(i)] for i in t) for t in targets)
    valid_loss /= len(valid_ds)
    cer = np.mean([edit_distance(p, t) / len(t) for p, t in zip(valid_preds, valid_texts)])
    accuracy = np.mean([p == t for p, t in zip(valid_preds, valid_texts)])
    scheduler.step(valid_loss)
    print(list(zip(valid_texts, valid_preds))[:5])
    print(f'Epoch {epoch + 1}: train loss {train_loss:.4f} CER {train_cer:.3f}, valid loss {valid_loss:.4f} '
          f'CER {cer:.3f} accuracy {accuracy:.3f}')
    if cer < best_cer:
        best_cer = cer
        torch.save(model.state_dict(), 'crnn_best.pth')
"""

OPEN = """\
        image = Image.open(self.paths[idx]).convert('RGB')
        image = image.resize((CFG.width, CFG.height), Image.BILINEAR)
        image = np.array(image).astype(np.float32) / 255.
"""
TRAIN_LOADER = "train_loader = DataLoader(train_ds, batch_size=CFG.batch_size, shuffle=True, num_workers=2)"

CHANGES = (
    Change(
        "images decoded once, no workers",
        "cache_items",
        edits={
            "        self.train = train\n": "        self.train = train\n"
            "        images = (Image.open(path).convert('RGB') for path in paths)\n"
            "        images = (image.resize((CFG.width, CFG.height), Image.BILINEAR) for image in images)\n"
            "        self.images = [np.array(image).astype(np.float32) / 255. for image in images]\n",
            OPEN: "        image = self.images[idx]\n",
            TRAIN_LOADER: TRAIN_LOADER.replace("num_workers=2", "num_workers=0"),
            "shuffle=False, num_workers=2)": "shuffle=False, num_workers=0)",
        },
    ),
    Change(
        "training batches not decoded",
        "fewer_logs",
        edits={
            "        train_preds.extend(decode_predictions(preds))\n"
            "        train_texts.extend(''.join(idx2char[int(i)] for i in t) for t in targets)\n"
            "    train_loss": "    train_loss",
            "    train_cer = np.mean([edit_distance(p, t) / len(t) for p, t in zip(train_preds, train_texts)])\n": ""
            "    train_cer = float('nan')\n",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "CRNN(len(characters), CFG.hidden).to(CFG.device)\n": ""
            "CRNN(len(characters), CFG.hidden).to(CFG.device, memory_format=torch.channels_last)\n",
            "        x = self.cnn(images)  ": ""
            "        x = self.cnn(images.contiguous(memory_format=torch.channels_last))  ",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        preds = model(images)\n        loss = ctc_loss(preds, targets)\n": ""
            "        with torch.autocast(CFG.device, dtype=torch.bfloat16):\n"
            "            preds = model(images)\n"
            "            loss = ctc_loss(preds.float(), targets)\n"
        },
    ),
    Change("batches of 64", "larger_batch", edits={"batch_size = 16\n": "batch_size = 64\n"}),
    Change(
        "no workers",
        "num_workers",
        edits={
            TRAIN_LOADER: TRAIN_LOADER.replace("num_workers=2", "num_workers=0"),
            "shuffle=False, num_workers=2)": "shuffle=False, num_workers=0)",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=CFG.lr)": "lr=CFG.lr, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images_seen", loss="train_loss", seconds=7)
