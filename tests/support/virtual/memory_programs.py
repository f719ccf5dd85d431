"""Shared by several tests: from test_virtual_fitting."""

from __future__ import annotations

import itertools

from gpulab.hardware.lookup import resolve
from gpulab.tables import EventKind, MarkKind
from gpulab.virtual.memory_fit.host_work import HostWork
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory, non_torch_memory
from gpulab.virtual.op_log.ops import Assumption, Phase, Role
from tests.support.runs.made_runs import event, mark, run_of

MIB, GIB = 2**20, 2**30


MS = 1e6


class StandIn:
    """A GPU in which a program takes memory and time by saying so."""

    played: list[StandIn]

    def __init__(self, name: str) -> None:
        self.spec = resolve(name)
        self.memory = SimulatedMemory(self.spec.usable_bytes, sum(each.bytes for each in non_torch_memory(self.spec)))
        self.keys = itertools.count()
        self.now_ns = self.marked_ns = 0.0
        self.marks = 0

    def hold(self, mib: float, phase: Phase, role: Role | None = None) -> int:
        key = next(self.keys)
        self.memory.allocate(key, int(mib * MIB), phase)
        if role:
            self.memory.set_role(key, role)
        return key

    def start(self) -> None:
        self.ended = None

    def stop(self) -> None:
        self.ended = "stopped"

    def abandon(self) -> None:
        self.ended = "abandoned"

    def mark(self) -> None:
        self.marked_ns, self.marks = self.now_ns, self.marks + 1

    @property
    def step_ns(self) -> float:
        return self.now_ns - self.marked_ns

    @property
    def step_range_ns(self) -> tuple[float, float]:
        return 0.8 * self.step_ns, 1.3 * self.step_ns

    assumptions = (Assumption("values read with .item()", "1.0"),)
    host_work = HostWork()

    @property
    def run(self):
        kernel = event(EventKind.KERNEL, "ampere_sgemm_128x64_nn", 2.0, 6.0)
        ends = [mark(at, 0.0, kind=MarkKind.USER) for at in (0.0, 10.0)]
        return run_of([event(EventKind.OP, "aten::mm", 0.0, 2.0), kernel], marks=ends)


def stand_in_runner():
    """What plays a program on a stand-in; `gpu.last` is the last of them."""

    def play(name: str) -> StandIn:
        play.last = StandIn(name)
        play.count += 1
        return play.last

    play.last, play.count, play.sizes = None, 0, {}
    return play


def training(gpu, *, model=100.0, sample=96.0, state=2.0, fixed_ms=5.0, sample_ms=1.0, first=1.0, more=None):
    """Builds a model of so many MiB; its step keeps so many for each sample, and its optimizer a multiple of it.

    `first`: as many times more in a first step; `more`: in a step of that batch and above, twice as much.
    """

    def build():
        here = gpu.last
        here.hold(model, Phase.SETUP, Role.PARAMETER)
        tensors = {}

        def step(batch):
            gpu.sizes.setdefault(here, []).append(batch)
            times = (1 if tensors else first) * (2 if more and batch >= more else 1)
            here.memory.enter_phase(Phase.FORWARD)
            if "gradient" in tensors:
                here.memory.free(tensors.pop("gradient"))
            activations = []
            try:
                activations.extend(here.hold(times * sample * batch / 480, Phase.FORWARD) for _ in range(480))
                tensors["gradient"] = here.hold(model, Phase.BACKWARD, Role.GRADIENT)
            finally:
                for key in activations:
                    here.memory.free(key)
            if state and "state" not in tensors:
                tensors["state"] = here.hold(state * model, Phase.OPTIMIZER, Role.OPTIMIZER)
            here.memory.enter_phase(Phase.OPTIMIZER)
            here.now_ns += (fixed_ms + sample_ms * batch) * MS

        return step

    return build


def anew(gpu, **sizes):
    """The same as one function, that makes its model each time it is called, and drops it at its end."""

    def step(batch):
        here, before = gpu.last, set(gpu.last.memory._allocations)
        training(gpu, **sizes)()(batch)
        for key in set(here.memory._allocations) - before:
            here.memory.free(key)

    return step


def fragmented(gpu):
    """What the cache holds of the first half has no use in the second: 1.4 times the GPU held, 0.7 in use."""

    def step():
        here = gpu.last
        for mib in (1000, 2000):
            keys = [here.hold(mib, Phase.FORWARD) for _ in range(int(0.7 * here.spec.usable_bytes / mib / MIB))]
            for key in keys:
                here.memory.free(key)
        here.now_ns += MS

    return step


def on(gpu, speeds):
    """A step that takes another time on each GPU."""
    build = training(gpu)

    def built():
        step = build()

        def run(batch):
            step(batch)
            gpu.last.now_ns = gpu.last.marked_ns + speeds[gpu.last.spec.name] * MS

        return run

    return built


SPEEDS = {"H100 SXM": 10.0, "A100-80 SXM": 20.0, "T4": 150.0}
