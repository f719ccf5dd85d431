"""Model of eight training jobs, their monitor readings and the best change for each, to test rules of thumb on.

A step takes as long as its slowest part: the GPU, the host that launches kernels, or data loading. Workers load batches
in parallel as far as the cores allow; waiting for storage needs no core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpulab.views.sheet.sheet import Row, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import percent

LOW, HIGH = 0.5, 0.8  # thresholds of the rules of thumb
MODEL_MAX_WORKERS = 16
WORTHWHILE_GAIN = 1.05  # the smallest speedup that makes a change worthwhile


@dataclass(frozen=True, kw_only=True)
class MachineModel:
    """A training job on a machine. Times are in ms per step, for a batch of one unit."""

    name: str
    cores: int = 8
    workers: int = 2
    gpu_ms: float  # GPU work; grows with the batch
    host_ms: float  # kernel launches; independent of the batch
    cpu_ms: float  # loading a batch, on one core
    wait_ms: float = 0.0  # storage latency while loading a batch
    memory_frac: float  # fraction of the GPU's memory for the batch
    fixed_frac: float = 0.1  # fraction for everything else
    ram_frac: float = 0.3  # fraction of the host's memory, without workers
    worker_ram_frac: float = 0.02
    batch: float = 1.0

    @property
    def loading_ms(self) -> float:
        """Time per batch of all workers together; of the main process if there are no workers."""
        alone_ms = self.batch * (self.cpu_ms + self.wait_ms)
        if not self.workers:
            return alone_ms
        return max(alone_ms / self.workers, self.batch * self.cpu_ms / min(self.workers, self.cores))

    @property
    def step_ms(self) -> float:
        """Step time: the slowest part. Without workers the main process loads the batch before it launches kernels."""
        computing_ms = max(self.batch * self.gpu_ms, self.host_ms)
        return max(computing_ms, self.loading_ms) if self.workers else computing_ms + self.loading_ms

    @property
    def unit_ms(self) -> float:
        """Step time per unit of batch; infinite if the memory is too small."""
        fits = self.fixed_frac + self.batch * self.memory_frac <= 1 and self.ram_used_frac <= 1
        return self.step_ms / self.batch if fits else float("inf")

    @property
    def ram_used_frac(self) -> float:
        """Fraction of the host's memory in use."""
        return self.ram_frac + self.workers * self.worker_ram_frac

    @property
    def readings(self) -> MonitorReadings:
        """The readings of a monitor."""
        busy_ms = self.batch * self.cpu_ms + self.host_ms
        return MonitorReadings(
            gpu=min(1.0, self.batch * self.gpu_ms / self.step_ms),
            cpu=min(1.0, busy_ms / (self.cores * self.step_ms)),
            ram=self.ram_used_frac,
            gpu_memory=self.fixed_frac + self.batch * self.memory_frac,
        )


@dataclass(frozen=True)
class MonitorReadings:
    """Fractions, as a monitor shows them, 0-1."""

    gpu: float
    cpu: float
    ram: float
    gpu_memory: float


Change = Callable[[MachineModel], MachineModel]
MACHINE_CHANGES: dict[str, Change] = {
    "make batches cheaper": lambda machine: replace(machine, cpu_ms=machine.cpu_ms / 4),
    "more workers": lambda machine: replace(machine, workers=min(MODEL_MAX_WORKERS, max(1, machine.workers) * 2)),
    "better code": lambda machine: replace(machine, host_ms=machine.host_ms / 4),
    "larger batch": lambda machine: replace(machine, batch=machine.batch * 8),
}
# Rules of thumb of an article, from readings to a change; the first rule that applies wins.
RULES_OF_THUMB: tuple[tuple[str, Callable[[MonitorReadings], bool], str], ...] = (
    ("GPU low, CPU high", lambda now: now.gpu < LOW and now.cpu >= HIGH, "make batches cheaper"),
    ("CPU memory low", lambda now: now.ram < LOW, "more workers"),
    ("GPU low, CPU low", lambda now: now.gpu < LOW and now.cpu < LOW, "better code"),
    ("GPU memory low", lambda now: now.gpu_memory < LOW, "larger batch"),
)
MACHINE_MODELS = (
    MachineModel(name="decoding on two cores", cores=2, workers=2, gpu_ms=10, host_ms=4, cpu_ms=90, memory_frac=0.5),
    MachineModel(name="photos on a far server", workers=2, gpu_ms=30, host_ms=5, cpu_ms=5, wait_ms=200,
            memory_frac=0.6),
    MachineModel(name="a thousand small layers", workers=4, gpu_ms=12, host_ms=60, cpu_ms=5, memory_frac=0.2),
    MachineModel(name="few rows at a time", workers=2, gpu_ms=2, host_ms=9, cpu_ms=2, memory_frac=0.05),
    MachineModel(name="a GPU that is full", workers=4, gpu_ms=80, host_ms=8, cpu_ms=20, memory_frac=0.3),
    MachineModel(name="slow storage, large workers", cores=16, workers=4, gpu_ms=20, host_ms=4, cpu_ms=10, wait_ms=150,
            memory_frac=0.5, ram_frac=0.1, worker_ram_frac=0.1),
    MachineModel(name="a loop that loads for itself", workers=0, gpu_ms=20, host_ms=4, cpu_ms=6, wait_ms=60,
            memory_frac=0.7, ram_frac=0.7),
    MachineModel(name="a large model, a small batch", workers=4, gpu_ms=10, host_ms=40, cpu_ms=4, memory_frac=0.05,
            fixed_frac=0.7),
)  # fmt: skip


def rule_of_thumb(readings: MonitorReadings) -> str | None:
    """Return the change that the rules of thumb suggest for these readings; None if no rule applies."""
    return next((change for _, applies, change in RULES_OF_THUMB if applies(readings)), None)


def advice_by_bottleneck(machine: MachineModel) -> str | None:
    """Return the change for the slowest part of the step, as a ledger shows it; None if that is the GPU."""
    launching_ms, computing_ms = machine.host_ms, machine.batch * machine.gpu_ms
    if computing_ms >= max(launching_ms, machine.loading_ms):
        return None
    if launching_ms >= machine.loading_ms:
        return max(("better code", "larger batch"), key=lambda change: speedup_of_change(machine, change))
    computed_ms = machine.batch * machine.cpu_ms / min(max(1, machine.workers), machine.cores)
    return "make batches cheaper" if computed_ms >= machine.loading_ms / 2 else "more workers"


def speedup_of_change(machine: MachineModel, change: str) -> float:
    """Return the speedup of a change for the same work; 0 if it no longer fits into memory."""
    return machine.unit_ms / MACHINE_CHANGES[change](machine).unit_ms


def best_change(machine: MachineModel) -> str | None:
    """Return the change with the largest speedup; None if no change is worthwhile."""
    change = max(MACHINE_CHANGES, key=lambda name: speedup_of_change(machine, name))
    return change if speedup_of_change(machine, change) >= WORTHWHILE_GAIN else None


def machines_view() -> View:
    """Tabulate the machines: the advice of the rules of thumb, the best change, and the monitor readings."""
    rows = []
    for machine in MACHINE_MODELS:
        readings = machine.readings
        percentages = (percent(share) for share in (readings.gpu, readings.cpu, readings.ram, readings.gpu_memory))
        rows.append(
            Row((machine.name, rule_of_thumb(readings) or "nothing", best_change(machine) or "nothing", *percentages))
        )
    header = ("machine", "rule of thumb says", "best change", "GPU", "CPU", "RAM", "GPU memory")
    table = TableBlock(
        header=header,
        rows=tuple(rows),
        text_columns=3,
        caption="Simulated: each machine is a model of one training step.",
    )
    return View(Sheet("gpulab: eight machines", (table,)))
