"""Keyword spotting: random one-second windows of recordings in memory, log-mel features and noise computed item by item in NumPy."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Recordings of a few seconds at 16 kHz as 16-bit samples, and background noise."""
    count = scaled(960, scale, 32)
    clips = [(np.random.randn(np.random.randint(16_000, 40_000)) * 3000).astype(np.int16) for _ in range(count)]
    noise = (np.random.randn(16_000 * 20) * 500).astype(np.int16)
    return {"clips": clips, "labels": np.random.randint(0, 12, count).tolist(), "noise": noise}


CELL = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SR, N_FFT, HOP, N_MELS = 16000, 512, 160, 40

def hz_to_mel(f):
    return 2595 * np.log10(1 + f / 700)

def mel_to_hz(m):
    return 700 * (10 ** (m / 2595) - 1)

def mel_filterbank():
    mels = np.linspace(hz_to_mel(20), hz_to_mel(SR / 2), N_MELS + 2)
    bins = np.floor((N_FFT + 1) * mel_to_hz(mels) / SR).astype(int)
    fb = np.zeros((N_MELS, N_FFT // 2 + 1))
    for m in range(1, N_MELS + 1):
        for k in range(bins[m - 1], bins[m]):
            fb[m - 1, k] = (k - bins[m - 1]) / max(bins[m] - bins[m - 1], 1)
        for k in range(bins[m], bins[m + 1]):
            fb[m - 1, k] = (bins[m + 1] - k) / max(bins[m + 1] - bins[m], 1)
    return fb

def log_mel(y):
    y = np.append(y[0], y[1:] - 0.97 * y[:-1])
    y = np.pad(y, N_FFT // 2, mode='reflect')
    window = np.hanning(N_FFT)
    frames = []
    for start in range(0, len(y) - N_FFT + 1, HOP):
        spectrum = np.fft.rfft(y[start:start + N_FFT] * window)
        frames.append(np.abs(spectrum) ** 2)
    mel = mel_filterbank() @ np.array(frames).T
    return np.log(mel + 1e-6)

class KeywordDataset(Dataset):
    def __init__(self, clips, labels, noise):
        self.clips, self.labels, self.noise = clips, labels, noise

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        y = self.clips[i].astype(np.float64) / 32768
        start = np.random.randint(0, len(y) - SR + 1)
        y = y[start:start + SR]
        if np.random.rand() < 0.8:
            s = np.random.randint(0, len(self.noise) - SR)
            y = y + np.random.uniform(0, 0.3) * self.noise[s:s + SR] / 32768
        y = np.roll(y, np.random.randint(-1600, 1600))
        return torch.tensor(log_mel(y), dtype=torch.float32).unsqueeze(0), self.labels[i]

class DSCNN(nn.Module):
    def __init__(self, n_classes=12, c=32):
        super().__init__()
        layers = [nn.Conv2d(1, c, (10, 4), 2, (4, 1)), nn.BatchNorm2d(c), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(c, c, 3, 1, 1, groups=c), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 1), nn.BatchNorm2d(c), nn.ReLU()]
        self.features, self.fc = nn.Sequential(*layers), nn.Linear(c, n_classes)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))

train_loader = DataLoader(KeywordDataset(clips, labels, noise), batch_size=32, shuffle=True)
model = DSCNN()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

windows = 0
for epoch in range(2):
    correct = 0
    for feats, target in train_loader:
        optimizer.zero_grad()
        logits = model(feats)
        loss = criterion(logits, target)
        loss.backward()
        optimizer.step()
        correct += (logits.argmax(1) == target).sum().item()
        windows += len(target)
    print(f'epoch {epoch} loss {loss.item():.3f} acc {correct / len(clips):.3f}')
"""

FRAMES = CELL[CELL.index("    frames = []\n") : CELL.index("    mel = mel_filterbank()")]

CHANGES = (
    Change(
        "filter bank and window once",
        "cache_items",
        edits={
            "def log_mel(y):": "FB, WINDOW = mel_filterbank(), np.hanning(N_FFT)\n\ndef log_mel(y):",
            "    window = np.hanning(N_FFT)\n": "    window = WINDOW\n",
            "mel_filterbank() @ np.array": "FB @ np.array",
        },
    ),
    Change(
        "transform all frames at once",
        "vectorize_items",
        edits={
            "def log_mel(y):": "FB = mel_filterbank()\n\ndef log_mel(y):",
            FRAMES: "    frames = np.lib.stride_tricks.sliding_window_view(y, N_FFT)[::HOP]\n    frames = np.abs(np.fft.rfft(frames * window)) ** 2\n",
            "mel_filterbank() @ np.array(frames).T": "FB @ frames.T",
        },
    ),
    Change(
        "features of whole batches by torch.stft",
        "batch_whole",
        edits={
            "return torch.tensor(log_mel(y), dtype=torch.float32).unsqueeze(0), self.labels[i]": "return torch.from_numpy(y).float(), self.labels[i]",
            "model = DSCNN()": """FB, WINDOW = torch.tensor(mel_filterbank()).float(), torch.hann_window(N_FFT, periodic=False)

def batch_log_mel(y):
    y = torch.cat([y[:, :1], y[:, 1:] - 0.97 * y[:, :-1]], dim=1)
    power = torch.stft(y, N_FFT, HOP, window=WINDOW, return_complex=True).abs() ** 2
    return torch.log(FB @ power + 1e-6).unsqueeze(1)

model = DSCNN()""",
            "logits = model(feats)": "logits = model(batch_log_mel(feats))",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "channels last",
        "channels_last",
        edits={"model = DSCNN()": "model = DSCNN().to(memory_format=torch.channels_last)"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=5e-4)": "lr=5e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows", seconds=5)
