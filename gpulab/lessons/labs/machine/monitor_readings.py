"""Eight machines, what a monitor reads on each, and what would help: a model, to try rules of thumb on.

A step takes as long as its slowest side: the GPU, the host that launches its work, or whoever makes the batches.
Workers make batches side by side as far as cores allow; waiting for storage takes no core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpulab.views.sheet.sheet import Row, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.wording import percent

LOW, HIGH = 0.5, 0.8  # what a rule of thumb calls low and high
MOST_WORKERS = 16
WORTH = 1.05  # a change that gives less is none


@dataclass(frozen=True, kw_only=True)
class Station:
    """A training job on a machine; times in ms of a step, for a batch of one unit."""

    name: str
    cores: int = 8
    workers: int = 2
    gpu_ms: float  # that grows with the batch
    host_ms: float  # launching a step's work, however large the batch is
    cpu_ms: float  # making a batch, on one core
    wait_ms: float = 0.0  # for storage, while making a batch
    memory_frac: float  # of the GPU's memory, that the batch takes
    fixed_frac: float = 0.1  # of it, that everything else takes
    ram_frac: float = 0.3  # of the host's memory
    worker_ram_frac: float = 0.02
    batch: float = 1.0

    @property
    def making_ms(self) -> float:
        """Of one batch, by all workers together; by the loop itself without any."""
        alone_ms = self.batch * (self.cpu_ms + self.wait_ms)
        if not self.workers:
            return alone_ms
        return max(alone_ms / self.workers, self.batch * self.cpu_ms / min(self.workers, self.cores))

    @property
    def step_ms(self) -> float:
        """The slowest side; without workers the loop makes the batch before it launches anything."""
        computing_ms = max(self.batch * self.gpu_ms, self.host_ms)
        return max(computing_ms, self.making_ms) if self.workers else computing_ms + self.making_ms

    @property
    def unit_ms(self) -> float:
        """A step's time for the work of a batch of one unit; infinite where memory does not suffice."""
        fits = self.fixed_frac + self.batch * self.memory_frac <= 1 and self.ram <= 1
        return self.step_ms / self.batch if fits else float("inf")

    @property
    def ram(self) -> float:
        """The share of the host's memory in use."""
        return self.ram_frac + self.workers * self.worker_ram_frac

    @property
    def readings(self) -> Readings:
        """What a monitor shows."""
        busy_ms = self.batch * self.cpu_ms + self.host_ms
        return Readings(
            gpu=min(1.0, self.batch * self.gpu_ms / self.step_ms),
            cpu=min(1.0, busy_ms / (self.cores * self.step_ms)),
            ram=self.ram,
            gpu_memory=self.fixed_frac + self.batch * self.memory_frac,
        )


@dataclass(frozen=True)
class Readings:
    """Shares, as a monitor shows them."""

    gpu: float
    cpu: float
    ram: float
    gpu_memory: float


Change = Callable[[Station], Station]
CHANGES: dict[str, Change] = {
    "make batches cheaper": lambda at: replace(at, cpu_ms=at.cpu_ms / 4),
    "more workers": lambda at: replace(at, workers=min(MOST_WORKERS, max(1, at.workers) * 2)),
    "better code": lambda at: replace(at, host_ms=at.host_ms / 4),
    "larger batch": lambda at: replace(at, batch=at.batch * 8),
}
# Rules of thumb from readings to a change, as an article gives them; the first that applies is taken.
RULES: tuple[tuple[str, Callable[[Readings], bool], str], ...] = (
    ("GPU low, CPU high", lambda seen: seen.gpu < LOW and seen.cpu >= HIGH, "make batches cheaper"),
    ("CPU memory low", lambda seen: seen.ram < LOW, "more workers"),
    ("GPU low, CPU low", lambda seen: seen.gpu < LOW and seen.cpu < LOW, "better code"),
    ("GPU memory low", lambda seen: seen.gpu_memory < LOW, "larger batch"),
)
STATIONS = (
    Station(name="decoding on two cores", cores=2, workers=2, gpu_ms=10, host_ms=4, cpu_ms=90, memory_frac=0.5),
    Station(name="photos on a far server", workers=2, gpu_ms=30, host_ms=5, cpu_ms=5, wait_ms=200, memory_frac=0.6),
    Station(name="a thousand small layers", workers=4, gpu_ms=12, host_ms=60, cpu_ms=5, memory_frac=0.2),
    Station(name="few rows at a time", workers=2, gpu_ms=2, host_ms=9, cpu_ms=2, memory_frac=0.05),
    Station(name="a GPU that is full", workers=4, gpu_ms=80, host_ms=8, cpu_ms=20, memory_frac=0.3),
    Station(name="slow storage, large workers", cores=16, workers=4, gpu_ms=20, host_ms=4, cpu_ms=10, wait_ms=150,
            memory_frac=0.5, ram_frac=0.1, worker_ram_frac=0.1),
    Station(name="a loop that loads for itself", workers=0, gpu_ms=20, host_ms=4, cpu_ms=6, wait_ms=60, memory_frac=0.7,
            ram_frac=0.7),
    Station(name="a large model, a small batch", workers=4, gpu_ms=10, host_ms=40, cpu_ms=4, memory_frac=0.05,
            fixed_frac=0.7),
)  # fmt: skip


def advice(seen: Readings) -> str | None:
    """What the rules of thumb say to these readings; None where none applies."""
    return next((change for _, applies, change in RULES if applies(seen)), None)


def advice_by_side(at: Station) -> str | None:
    """What follows from knowing which side of the step is the slowest, as a ledger tells it; None: the GPU is."""
    launching_ms, computing_ms = at.host_ms, at.batch * at.gpu_ms
    if computing_ms >= max(launching_ms, at.making_ms):
        return None
    if launching_ms >= at.making_ms:
        return max(("better code", "larger batch"), key=lambda change: gain(at, change))
    computed_ms = at.batch * at.cpu_ms / min(max(1, at.workers), at.cores)
    return "make batches cheaper" if computed_ms >= at.making_ms / 2 else "more workers"


def gain(at: Station, change: str) -> float:
    """How many times as fast the same work is done after a change; 0 where it no longer fits."""
    return at.unit_ms / CHANGES[change](at).unit_ms


def best(at: Station) -> str | None:
    """The change that helps most; None where none is worth making."""
    change = max(CHANGES, key=lambda each: gain(at, each))
    return change if gain(at, change) >= WORTH else None


def shown() -> View:
    """What a monitor reads on each machine, what the rules of thumb say to it, and what helps most."""
    rows = []
    for at in STATIONS:
        seen = at.readings
        shares = (percent(share) for share in (seen.gpu, seen.cpu, seen.ram, seen.gpu_memory))
        rows.append(Row((at.name, advice(seen) or "nothing", best(at) or "nothing", *shares)))
    header = ("machine", "the rules say", "what helps most", "GPU", "CPU", "RAM", "GPU memory")
    table = Table(header=header, rows=tuple(rows), left=3, caption="Simulated: each machine is a model of a step.")
    return View(Sheet("gpulab: eight machines", (table,)))
