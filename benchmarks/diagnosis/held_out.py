"""Evaluate the diagnosis on training loops that no rule was written for.

    python benchmarks/diagnosis/held_out.py

They were written after the rules, and no threshold may be tuned on them: they show how far the results of
benchmarks/diagnosis/diagnosis.py generalise beyond the loops that were known when the rules were written.
"""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

import gpulab  # noqa: E402
from gpulab.rules import diagnose  # noqa: E402

HEALTHY = (None, "device_bound")


class Reviews(Dataset[Any]):
    """Texts that are cut into words whenever they are asked for."""

    def __init__(self, length: int) -> None:
        vocabulary = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "sleeps"]
        self.length, self.text = length, " ".join(random.Random(0).choices(vocabulary, k=4000))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        tokens = re.findall(r"\w+", self.text.lower())
        return torch.tensor([len(word) * 7 for word in tokens][:256]), index % 2


class Reader(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.read, self.say = (
            nn.Embedding(1000, 128),
            nn.LSTM(128, 128, batch_first=True),
            nn.Linear(128, 2),
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """(samples, words) -> (samples, classes)."""
        return self.say(self.read(self.words(batch))[0][:, -1])  # type: ignore[no-any-return]


class Stepper(nn.Module):
    """A recurrent cell called by hand for every time step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.say = nn.GRUCell(16, 32), nn.Linear(32, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """(samples, moments, features) -> (samples, classes)."""
        state = torch.zeros(len(batch), 32)
        for moment in batch.unbind(1):
            state = self.cell(moment, state)
        return self.say(state)  # type: ignore[no-any-return]


def fit(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    threads: int = 1,
    optimizer: Any = None,
    prepare: Callable[[Any], Any] = lambda batch: batch,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """An ordinary loop."""
    torch.set_num_threads(threads)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, targets) in enumerate(batches):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(prepare(inputs)), targets).backward()
        optimizer.step()
        after(step)


def batches(size: int, count: int, *shape: int, classes: int = 10) -> DataLoader[Any]:
    """Random samples, from memory."""
    samples = torch.randn(size * count, *shape)
    return DataLoader(TensorDataset(samples, torch.randint(0, classes, (size * count,))), batch_size=size)


def dense(inputs: int = 512) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(inputs, 1024), nn.ReLU(), nn.Linear(1024, 10))


def tokenising() -> None:
    """Texts cut into words by the main process."""
    fit(Reader(), DataLoader(Reviews(16 * 40), batch_size=16))


def reading() -> None:
    """An LSTM on words that lie ready: healthy."""
    dataset = TensorDataset(torch.randint(0, 1000, (64 * 40, 128)), torch.randint(0, 2, (64 * 40,)))
    fit(Reader(), DataLoader(dataset, batch_size=64))


def attending() -> None:
    """A transformer on samples that lie ready: healthy."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 2)
    fit(nn.Sequential(encoder, nn.Flatten(), nn.Linear(256 * 32, 10)), batches(16, 40, 32, 256), threads=2)


def convolving() -> None:
    """A small convolutional net: healthy."""
    layers = [(nn.Conv2d(c, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for c in (3, 32, 32, 32)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    fit(nn.Sequential(*(part for layer in layers for part in layer), *head), batches(16, 40, 3, 48, 48), threads=2)


def collating() -> None:
    """Batches put together of thousands of tiny samples."""
    fit(nn.Linear(20, 10), batches(4096, 30, 20))


def augmenting() -> None:
    """Every number of a batch changed in Python, in the loop."""

    def jitter(samples: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[math.sin(value) + random.random() for value in row] for row in samples.tolist()])

    fit(dense(1000), batches(32, 40, 1000), prepare=jitter)


def evaluating() -> None:
    """A validation every eight steps."""
    model, unseen = dense(), torch.randn(8192, 512)

    def validate(step: int) -> None:
        if step % 8 == 7:
            with torch.no_grad():
                model(unseen).argmax(1)

    fit(model, batches(64, 64, 512), after=validate)


def stepping() -> None:
    """RMSprop on many small layers."""
    layers = (part for _ in range(80) for part in (nn.Linear(48, 48), nn.ReLU()))
    model = nn.Sequential(*layers, nn.Linear(48, 10))
    fit(model, batches(256, 60, 48), optimizer=torch.optim.RMSprop(model.parameters()))


def asking() -> None:
    """A wait of 30 ms in every step."""
    fit(dense(), batches(128, 40, 512), after=lambda step: time.sleep(0.03))


def keeping() -> None:
    """Every output is kept, with its graph."""
    model, retained = dense(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.set_num_threads(1)
    for inputs, targets in batches(256, 80, 512):
        outputs = model(inputs)
        retained.append(outputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs, targets).backward(retain_graph=True)
        optimizer.step()


def recurring() -> None:
    """A recurrent cell called by hand for every moment."""
    fit(Stepper(), batches(4, 60, 60, 16, classes=2))


# Loop -> what may come first. Of `collating` the label was `no_workers` until its collections were switched off, which
# made it 2.7 times as fast: the finding was right and the label was not.
EXPECTED: dict[Callable[[], None], tuple[str | None, ...]] = {
    tokenising: ("no_workers",),
    reading: HEALTHY,
    attending: HEALTHY,
    convolving: HEALTHY,
    collating: ("garbage_collection", "no_workers"),
    augmenting: ("host_python",),
    evaluating: (*HEALTHY, "periodic_stalls"),
    stepping: ("unfused_optimizer", "dispatch_bound"),
    asking: ("unexplained_idle",),
    keeping: ("memory_growth",),
    recurring: ("dispatch_bound",),
}


def main() -> None:
    """Every loop in a process of its own; a line for each."""
    by_name = {loop.__name__: loop for loop in EXPECTED}
    if len(sys.argv) > 1:
        sys.stdout.write(_judged(by_name[sys.argv[1]]) + "\n")
        return
    for name in by_name:
        command = [sys.executable, __file__, name]
        sys.stdout.write(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        sys.stdout.flush()


def _judged(loop: Callable[[], None]) -> str:
    with gpulab.profile(loop.__name__):
        loop()
    diagnosis = diagnose(gpulab.runs[loop.__name__])
    first = diagnosis.first.rule if diagnosis.first else None
    right = "right" if first in EXPECTED[loop] else "WRONG"
    return f"{right}  {loop.__name__:12} {diagnosis.verdict}"


if __name__ == "__main__":
    main()
