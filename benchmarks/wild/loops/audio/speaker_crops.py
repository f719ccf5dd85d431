"""A small x-vector network on one-second crops of long stereo WAV files, as in student speaker-ID projects."""

import wave
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Recordings of ten to fourteen seconds, one folder per speaker."""
    rng = np.random.default_rng(0)
    for speaker in range(12):
        Path(f"wavs/id{speaker:05d}").mkdir(parents=True)
        for take in range(6):
            times = np.arange(16_000 * int(rng.integers(10, 15))) / 16_000
            tone = np.sin(2 * np.pi * (100 + 20 * speaker) * times)[:, None]
            sound = 6000 * tone + 2000 * rng.normal(size=(len(times), 2))
            with wave.open(f"wavs/id{speaker:05d}/{take:03d}.wav", "wb") as file:
                file.setnchannels(2)
                file.setsampwidth(2)
                file.setframerate(16_000)
                file.writeframes(sound.astype(np.int16).tobytes())
    return {"num_steps": scaled(60, scale)}


CELL = """
import glob, os, random, wave
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

SR = 16000
batch_size = 24
files = sorted(glob.glob('wavs/*/*.wav'))
speakers = sorted({os.path.basename(os.path.dirname(f)) for f in files})

class SpeakerDataset(Dataset):
    def __init__(self, files, length, seg=SR):
        self.files, self.length, self.seg = files, length, seg

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        path = self.files[i % len(self.files)]
        with wave.open(path, 'rb') as w:
            audio = np.frombuffer(w.readframes(w.getnframes()), dtype=np.int16)
        audio = audio.reshape(-1, 2).astype(np.float32) / 32768.0
        audio = audio.mean(axis=1)
        start = random.randint(0, len(audio) - self.seg)
        audio = audio[start:start + self.seg]
        audio = audio - audio.mean()
        return torch.from_numpy(audio), speakers.index(os.path.basename(os.path.dirname(path)))

class XVector(nn.Module):
    def __init__(self, n_spk):
        super().__init__()
        self.register_buffer('window', torch.hann_window(400))
        layers, c = [], 201
        for k, d in ((5, 1), (3, 2), (3, 3), (1, 1)):
            layers += [nn.Conv1d(c, 96, k, dilation=d), nn.ReLU(), nn.BatchNorm1d(96)]
            c = 96
        self.tdnn = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, n_spk))

    def forward(self, wav):
        spec = torch.stft(wav, 400, 160, window=self.window, return_complex=True).abs()
        x = self.tdnn(torch.log(spec + 1e-5))
        return self.head(torch.cat([x.mean(2), x.std(2)], 1))

train_loader = DataLoader(SpeakerDataset(files, num_steps * batch_size), batch_size=batch_size, shuffle=True)
model = XVector(len(speakers))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()

total, correct = 0, 0
for step, (wav, spk) in enumerate(train_loader):
    out = model(wav)
    loss = criterion(out, spk)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += spk.size(0)
    correct += (out.argmax(1) == spk).sum().item()
    if (step + 1) % 10 == 0:
        print('step [%d/%d] loss %.3f acc %.2f%%' % (step + 1, num_steps, loss.item(), 100 * correct / total))
"""

READ = """        with wave.open(path, 'rb') as w:
            audio = np.frombuffer(w.readframes(w.getnframes()), dtype=np.int16)
        audio = audio.reshape(-1, 2).astype(np.float32) / 32768.0
        audio = audio.mean(axis=1)
        start = random.randint(0, len(audio) - self.seg)
        audio = audio[start:start + self.seg]
"""

CHANGES = (
    Change(
        "read the frames of the crop only",
        "vectorize_items",
        edits={
            READ: """        with wave.open(path, 'rb') as w:
            start = random.randint(0, w.getnframes() - self.seg)
            w.setpos(start)
            audio = np.frombuffer(w.readframes(self.seg), dtype=np.int16)
        audio = (audio[0::2].astype(np.float32) + audio[1::2]) / 65536.0
"""
        },
    ),
    Change(
        "keep the decoded files in memory",
        "cache_items",
        edits={
            "        self.files, self.length, self.seg = files, length, seg\n": ""
            "        self.files, self.length, self.seg, self.cache = files, length, seg, {}\n",
            READ: """        if path not in self.cache:
            with wave.open(path, 'rb') as w:
                audio = np.frombuffer(w.readframes(w.getnframes()), dtype=np.int16)
            self.cache[path] = (audio.reshape(-1, 2).astype(np.float32) / 32768.0).mean(axis=1)
        audio = self.cache[path]
        start = random.randint(0, len(audio) - self.seg)
        audio = audio[start:start + self.seg]
""",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "bfloat16",
        "precision",
        edits={
            "    out = model(wav)\n    loss = criterion(out, spk)\n": ""
            "    with torch.autocast('cpu', dtype=torch.bfloat16):\n        out = model(wav)\n"
            "    loss = criterion(out.float(), spk)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total", seconds=6)
