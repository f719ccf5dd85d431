"""Speech enhancement with noise and reverberation made on the fly, the latter by np.convolve, as in student repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Clean utterances, noises and room impulse responses at 16 kHz."""
    rng = np.random.default_rng(0)
    count, rooms, decay = scaled(480, scale, 32), 20, np.exp(-np.arange(8000) / 1200)
    np.save("clean.npy", (rng.normal(size=(count, 16000)) * 0.1).astype(np.float32))
    np.save("noise.npy", (rng.normal(size=(12, 64000)) * 0.1).astype(np.float32))
    np.save("rirs.npy", (rng.normal(size=(rooms, 8000)) * decay).astype(np.float32))
    return {}


CELL = """
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

N_FFT, HOP, LENGTH, BATCH_SIZE, EPOCHS = 512, 128, 16000, 8, 1

class NoisyReverbDataset(Dataset):
    def __init__(self, snrs=(-5, 20)):
        self.clean = np.load('clean.npy')
        self.noise = np.load('noise.npy')
        self.rirs = np.load('rirs.npy')
        self.snrs = snrs

    def __len__(self):
        return len(self.clean)

    def add_reverb(self, speech):
        rir = random.choice(self.rirs)
        rir = rir / np.sqrt(np.sum(rir ** 2))
        return np.convolve(speech, rir)[:LENGTH]

    def add_noise(self, speech):
        noise = random.choice(self.noise)
        start = random.randint(0, len(noise) - LENGTH)
        noise = noise[start:start + LENGTH]
        snr = random.uniform(*self.snrs)
        scale = np.sqrt(np.mean(speech ** 2) / (10 ** (snr / 10) * np.mean(noise ** 2) + 1e-8))
        return speech + scale * noise

    def __getitem__(self, i):
        clean = self.clean[i]
        noisy = self.add_noise(self.add_reverb(clean))
        peak = np.abs(noisy).max() + 1e-8
        return torch.from_numpy((noisy / peak).astype(np.float32)), torch.from_numpy(clean / peak)

class MaskNet(nn.Module):
    def __init__(self, bins=N_FFT // 2 + 1, hidden=96):
        super().__init__()
        self.inp = nn.Sequential(nn.Conv1d(bins, hidden, 3, padding=1), nn.BatchNorm1d(hidden), nn.ReLU())
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv1d(hidden, hidden, 3, padding=2 ** d, dilation=2 ** d), nn.BatchNorm1d(hidden), nn.ReLU())
            for d in range(5)])
        self.mask = nn.Conv1d(hidden, bins, 1)
        self.register_buffer('window', torch.hann_window(N_FFT))

    def forward(self, wav):
        spec = torch.stft(wav, N_FFT, HOP, window=self.window, return_complex=True)
        h = self.inp(torch.log1p(spec.abs()))
        for block in self.blocks:
            h = h + block(h)
        spec = spec * torch.sigmoid(self.mask(h))
        return torch.istft(spec, N_FFT, HOP, window=self.window, length=wav.shape[-1])

def si_sdr(est, ref, eps=1e-8):
    alpha = (est * ref).sum(-1, keepdim=True) / (ref.pow(2).sum(-1, keepdim=True) + eps)
    target = alpha * ref
    return 10 * torch.log10(target.pow(2).sum(-1) / ((est - target).pow(2).sum(-1) + eps) + eps)

device = 'cuda' if torch.cuda.is_available() else 'cpu'
loader = DataLoader(NoisyReverbDataset(), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
model = MaskNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

n_clips = 0
for epoch in range(EPOCHS):
    model.train()
    for it, (noisy, clean) in enumerate(loader):
        noisy, clean = noisy.to(device), clean.to(device)
        enhanced = model(noisy)
        loss = -si_sdr(enhanced, clean).mean() + 10 * F.l1_loss(enhanced, clean)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        n_clips += len(noisy)
        if it % 10 == 0:
            print(f'epoch {epoch} [{it}/{len(loader)}] loss {loss.item():.3f}')
"""

CHANGES = (
    Change(
        "convolution by FFT",
        "vectorize_items",
        edits={
            "        return np.convolve(speech, rir)[:LENGTH]\n": "        size = 24000\n        return np.fft.irfft("
            "np.fft.rfft(speech, size) * np.fft.rfft(rir, size), size)[:LENGTH].astype(np.float32)\n"
        },
    ),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change(
        "batches of 32", "larger_batch", edits={"EPOCHS = 512, 128, 16000, 8, 1": "EPOCHS = 512, 128, 16000, 32, 1"}
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("print once", "fewer_logs", edits={"if it % 10 == 0:": "if it == 0:"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_clips", seconds=6)
