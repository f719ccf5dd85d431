"""Keyword spotting on WAV files; the dataset computes a log-mel spectrogram frame by frame with NumPy."""

import wave
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def mel_filters(bands: int = 40, bins: int = 257, rate: int = 16_000) -> np.ndarray:
    """Triangular filters on the mel scale."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1) / (rate / 2) * (bins - 1)
    grid = np.arange(bins)[None]
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    filters: np.ndarray = np.clip(np.minimum((grid - low) / (centre - low), (high - grid) / (high - centre)), 0, None)
    return filters.astype(np.float32)


def prepare(scale: float) -> Namespace:
    """Recordings of one second in a folder per word, as in Speech Commands."""
    count = scaled(512, scale, 16)
    for word in ("yes", "no", "stop", "go"):
        (Path("speech") / word).mkdir(parents=True)
    for index in range(count):
        samples = (np.random.normal(size=16_000) * 3000).astype("<i2")
        with wave.open(f"speech/{('yes', 'no', 'stop', 'go')[index % 4]}/{index:05d}.wav", "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(16_000)
            stream.writeframes(samples.tobytes())
    return {"mel_filters": mel_filters()}


CELL = """
import glob, os, wave
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

WORDS = ['yes', 'no', 'stop', 'go']

def log_mel(signal, n_fft=512, hop=160):
    window = np.hanning(n_fft)
    frames = []
    for start in range(0, len(signal) - n_fft + 1, hop):
        spectrum = np.abs(np.fft.rfft(signal[start:start + n_fft] * window)) ** 2
        frames.append(mel_filters @ spectrum)
    return np.log(np.array(frames).T + 1e-6)

class SpeechCommands(Dataset):
    def __init__(self, root):
        self.files = sorted(glob.glob(os.path.join(root, '*', '*.wav')))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with wave.open(self.files[i]) as f:
            signal = np.frombuffer(f.readframes(f.getnframes()), dtype=np.int16) / 32768.0
        spec = log_mel(signal)
        label = WORDS.index(os.path.basename(os.path.dirname(self.files[i])))
        return torch.tensor(spec, dtype=torch.float32).unsqueeze(0), label

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, len(WORDS)))
loader = DataLoader(SpeechCommands('speech'), batch_size=16, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.1)

n = 0
for epoch in range(4):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += len(data)
        if batch_idx % 5 == 0:
            print(f'Train Epoch: {epoch} [{batch_idx * len(data)}/{len(loader.dataset)}] Loss: {loss.item():.6f}')
    scheduler.step()
"""

CHANGES = (
    Change(
        "all frames in one FFT",
        "vectorize_items",
        edits={
            """    frames = []
    for start in range(0, len(signal) - n_fft + 1, hop):
        spectrum = np.abs(np.fft.rfft(signal[start:start + n_fft] * window)) ** 2
        frames.append(mel_filters @ spectrum)
    return np.log(np.array(frames).T + 1e-6)
""": """    frames = np.lib.stride_tricks.sliding_window_view(signal, n_fft)[::hop].astype(np.float32)
    spectra = np.abs(np.fft.rfft(frames * window.astype(np.float32))) ** 2
    return np.log(mel_filters @ spectra.T + 1e-6)
"""
        },
    ),
    Change(
        "keep spectrograms",
        "cache_items",
        edits={
            "        return len(self.files)\n": "        return len(self.files)\n\n    cache = {}\n",
            "    def __getitem__(self, i):\n": "    def __getitem__(self, i):\n        if i not in self.cache:\n"
            "            self.cache[i] = self.compute(i)\n        return self.cache[i]\n\n    def compute(self, i):\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n", seconds=6)
