"""Twelve keywords by a depthwise CNN on MFCCs computed in the workers, as in keyword spotting repositories."""

from pathlib import Path

import numpy as np
from scipy.io import wavfile

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bird", "happy", "house", "marvin")


def prepare(scale: float) -> Namespace:
    """Folders of words of three gliding tones and a burst of noise in one second at 16 kHz; lists of the splits."""
    rng = np.random.default_rng(0)
    root = Path("speech_commands")
    per_word = {"train": scaled(80, scale, 4), "validation": scaled(12, scale, 4)}
    tracks = rng.uniform([[200, 600, 1800]], [[800, 1800, 3400]], (len(WORDS), 4, 3))
    validation = []
    for index, word in enumerate(WORDS):
        (root / word).mkdir(parents=True)
        for shot in range(sum(per_word.values())):
            duration = int(rng.integers(6400, 11000))
            speaker = rng.normal(1, 0.06)
            at = np.linspace(0, 3, duration)
            phases = [
                np.cumsum(np.interp(at, range(4), tracks[index, :, k] * speaker)) * 2 * np.pi / 16000 for k in range(3)
            ]
            voice = sum(np.sin(phase) / (k + 1) for k, phase in enumerate(phases))
            voice *= np.hanning(duration) * (0.6 + 0.4 * np.sin(2 * np.pi * 120 * speaker * at / 3 * duration / 16000))
            voice[index * 400 : index * 400 + 1200] += rng.normal(0, 0.5, 1200)
            wave = rng.normal(0, 0.01, 16000)
            start = int(rng.integers(16000 - duration))
            wave[start : start + duration] += voice * rng.uniform(0.1, 0.4)
            name = f"{word}/{rng.integers(16**8):08x}_nohash_{shot}.wav"
            wavfile.write(root / name, 16000, (wave.clip(-1, 1) * 32767).astype(np.int16))
            if shot >= per_word["train"]:
                validation.append(name)
    (root / "validation_list.txt").write_text("\n".join(validation) + "\n")
    (root / "_background_noise_").mkdir()
    for name, smooth in (("doing_the_dishes", 1), ("running_tap", 4), ("white_noise", 16)):
        noise = np.convolve(rng.normal(0, 0.2, 160000), np.ones(smooth) / smooth**0.5, "same")
        noise = (noise.clip(-1, 1) * 32767).astype(np.int16)
        wavfile.write(root / "_background_noise_" / f"{name}.wav", 16000, noise)
    return {}


CELL = """
import glob
import os
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.io import wavfile
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

KEYWORDS = ['yes', 'no', 'up', 'down', 'left', 'right', 'on', 'off', 'stop', 'go']
CLASSES = ['_silence_', '_unknown_'] + KEYWORDS

config = dict(
    data_dir='speech_commands',
    sample_rate=16000,
    window_ms=40,
    stride_ms=20,
    n_mels=40,
    n_mfcc=10,
    time_shift_ms=100,
    background_frequency=0.8,
    background_volume=0.1,
    batch_size=64,
    num_workers=2,
    epochs=7,
    lr=5e-4,
    weight_decay=1e-4,
    seed=59185,
)

random.seed(config['seed'])
np.random.seed(config['seed'])
torch.manual_seed(config['seed'])


def mel_filterbank(sample_rate, n_fft, n_mels, f_min=20.0, f_max=4000.0):
    def hz_to_mel(f):
        return 2595.0 * np.log10(1.0 + f / 700.0)

    def mel_to_hz(m):
        return 700.0 * (10.0 ** (m / 2595.0) - 1.0)

    points = mel_to_hz(np.linspace(hz_to_mel(f_min), hz_to_mel(f_max), n_mels + 2))
    freqs = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)
    fb = np.zeros((n_mels, len(freqs)), dtype=np.float32)
    for m in range(n_mels):
        left, center, right = points[m:m + 3]
        fb[m] = np.maximum(0, np.minimum((freqs - left) / (center - left), (right - freqs) / (right - center)))
    return torch.from_numpy(fb)


def dct_matrix(n_mfcc, n_mels):
    n = np.arange(n_mels)
    dct = np.cos(np.pi / n_mels * (n + 0.5) * np.arange(n_mfcc)[:, None])
    dct[0] *= 1.0 / np.sqrt(2.0)
    dct *= np.sqrt(2.0 / n_mels)
    return torch.from_numpy(dct.astype(np.float32))


class MFCC:
    def __init__(self, cfg):
        self.win_length = cfg['sample_rate'] * cfg['window_ms'] // 1000
        self.hop_length = cfg['sample_rate'] * cfg['stride_ms'] // 1000
        self.n_fft = 1024
        self.window = torch.hann_window(self.win_length)
        self.fb = mel_filterbank(cfg['sample_rate'], self.n_fft, cfg['n_mels'])
        self.dct = dct_matrix(cfg['n_mfcc'], cfg['n_mels'])

    def __call__(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop_length, self.win_length, window=self.window,
                          center=True, return_complex=True)
        power = spec.abs().pow(2.0)
        mel = torch.matmul(self.fb, power)
        log_mel = torch.log(mel + 1e-6)
        return torch.matmul(self.dct, log_mel)


class SpeechCommands(Dataset):
    def __init__(self, cfg, split):
        self.cfg = cfg
        self.split = split
        self.mfcc = MFCC(cfg)
        root = cfg['data_dir']
        with open(os.path.join(root, 'validation_list.txt')) as f:
            held_out = set(line.strip() for line in f)
        self.background = [self.read(p) for p in sorted(glob.glob(os.path.join(root, '_background_noise_', '*.wav')))]

        known, unknown = [], []
        for path in sorted(glob.glob(os.path.join(root, '*', '*.wav'))):
            word = os.path.basename(os.path.dirname(path))
            if word.startswith('_'):
                continue
            in_validation = f'{word}/{os.path.basename(path)}' in held_out
            if in_validation != (split == 'validation'):
                continue
            if word in KEYWORDS:
                known.append((path, CLASSES.index(word)))
            else:
                unknown.append((path, 1))
        # as many unknown words and silences as there are of one keyword
        per_class = len(known) // len(KEYWORDS)
        random.shuffle(unknown)
        self.items = known + unknown[:per_class] + [(None, 0)] * per_class

    def read(self, path):
        rate, wave = wavfile.read(path)
        assert rate == self.cfg['sample_rate']
        return wave.astype(np.float32) / 32768.0

    def load_audio(self, path):
        length = self.cfg['sample_rate']
        if path is None:
            return np.zeros(length, dtype=np.float32)
        wave = self.read(path)
        if len(wave) < length:
            wave = np.pad(wave, (0, length - len(wave)))
        return wave[:length]

    def time_shift(self, wave):
        max_shift = self.cfg['sample_rate'] * self.cfg['time_shift_ms'] // 1000
        shift = random.randint(-max_shift, max_shift)
        if shift >= 0:
            return np.pad(wave, (shift, 0))[:len(wave)]
        return np.pad(wave, (0, -shift))[-shift:]

    def add_background(self, wave, silence):
        if not silence and random.random() >= self.cfg['background_frequency']:
            return wave
        noise = random.choice(self.background)
        start = random.randint(0, len(noise) - len(wave) - 1)
        volume = random.uniform(0, 1.0 if silence else self.cfg['background_volume'])
        return np.clip(wave + volume * noise[start:start + len(wave)], -1.0, 1.0)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        wave = self.load_audio(path)
        if self.split == 'train':
            wave = self.time_shift(wave)
            wave = self.add_background(wave, path is None)
        wave = torch.from_numpy(wave.astype(np.float32))
        return self.mfcc(wave).unsqueeze(0), label


class DSBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = F.relu(self.bn1(self.depthwise(x)))
        return F.relu(self.bn2(self.pointwise(x)))


class DSCNN(nn.Module):
    def __init__(self, n_classes, channels=64, n_blocks=4):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, (4, 10), stride=(2, 2), padding=(1, 4), bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.blocks = nn.Sequential(*[DSBlock(channels) for _ in range(n_blocks)])
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(channels, n_classes)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        x = x.mean(dim=(2, 3))
        return self.fc(self.dropout(x))


train_set = SpeechCommands(config, 'train')
valid_set = SpeechCommands(config, 'validation')
train_loader = DataLoader(train_set, batch_size=config['batch_size'], shuffle=True,
                          num_workers=config['num_workers'])
valid_loader = DataLoader(valid_set, batch_size=config['batch_size'], num_workers=config['num_workers'])

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = DSCNN(len(CLASSES)).to(device)
print(f'{sum(p.numel() for p in model.parameters()):,} parameters, {len(train_set)} training clips')
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=config['lr'], weight_decay=config['weight_decay'])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config['epochs'])


def train(epoch):
    model.train()
    running_loss, correct, total = 0.0, 0, 0
    pbar = tqdm(train_loader, desc=f'epoch {epoch}', unit='batch')
    for it, (inputs, targets) in enumerate(pbar, start=1):
        inputs, targets = inputs.to(device), targets.to(device)
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
        pred = outputs.argmax(1)
        correct += (pred == targets).sum().item()
        total += targets.size(0)
        pbar.set_postfix(loss='%.05f' % (running_loss / it), acc='%.02f%%' % (100 * correct / total))
    return running_loss / it, total


@torch.no_grad()
def validate():
    model.eval()
    confusion = np.zeros((len(CLASSES), len(CLASSES)), dtype=int)
    valid_loss = 0.0
    for clips, targets in valid_loader:
        clips, targets = clips.to(device), targets.to(device)
        outputs = model(clips)
        valid_loss += criterion(outputs, targets).item()
        for t, p in zip(targets, outputs.argmax(1)):
            confusion[t.item(), p.item()] += 1
    return valid_loss / len(valid_loader), np.trace(confusion) / confusion.sum(), confusion


best_accuracy, clips_seen = 0.0, 0
os.makedirs('checkpoints', exist_ok=True)
for epoch in range(config['epochs']):
    train_loss, n = train(epoch)
    clips_seen += n
    valid_loss, accuracy, confusion = validate()
    scheduler.step()
    print(f'epoch {epoch}: train loss {train_loss:.4f}, valid loss {valid_loss:.4f}, accuracy {accuracy:.3f}')
    if accuracy >= best_accuracy:
        best_accuracy = accuracy
        torch.save({'epoch': epoch, 'state_dict': model.state_dict(), 'acc': accuracy,
                    'optimizer': optimizer.state_dict()}, 'checkpoints/best-ds-cnn.pth')
recall = confusion.diagonal() / confusion.sum(1)
print('\\n'.join(f'{name:>10} {value:.2f}' for name, value in zip(CLASSES, recall)))
"""

LOADERS = CELL[CELL.index("train_loader = DataLoader(") : CELL.index("\ndevice = torch.device(")]

CHANGES = (
    Change(
        "MFCCs of whole batches",
        "batch_whole",
        edits={
            "        return self.mfcc(wave).unsqueeze(0), label": "        return wave, label",
            "        inputs, targets = inputs.to(device), targets.to(device)\n": ""
            "        inputs, targets = inputs.to(device), targets.to(device)\n"
            "        inputs = train_set.mfcc(inputs).unsqueeze(1)\n",
            "        clips, targets = clips.to(device), targets.to(device)\n": ""
            "        clips, targets = clips.to(device), targets.to(device)\n"
            "        clips = valid_set.mfcc(clips).unsqueeze(1)\n",
        },
    ),
    Change(
        "WAV files read once, validation MFCCs kept",
        "cache_items",
        edits={
            "        self.items = known + unknown[:per_class] + [(None, 0)] * per_class\n": ""
            "        self.items = known + unknown[:per_class] + [(None, 0)] * per_class\n"
            "        self.waves = [self.read_audio(path) for path, _ in self.items]\n",
            "    def load_audio(self, path):": "    def read_audio(self, path):",
            "        wave = self.load_audio(path)\n": "        wave = self.waves[index]\n",
            LOADERS: LOADERS.replace("valid_loader = DataLoader(", "valid_loader = list(DataLoader(").rstrip("\n")
            + ")\n",
        },
    ),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={
            LOADERS: LOADERS.replace(
                "num_workers=config['num_workers'])", "num_workers=config['num_workers'], persistent_workers=True)"
            )
        },
    ),
    Change("no workers", "num_workers", edits={"num_workers=2,": "num_workers=0,"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(inputs)\n        loss = criterion(outputs, targets)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            outputs = model(inputs)\n"
            "            loss = criterion(outputs, targets)\n"
        },
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size=64,": "batch_size=128,"}),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={"weight_decay=config['weight_decay'])": "weight_decay=config['weight_decay'], fused=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="clips_seen", loss="train_loss", seconds=8)
