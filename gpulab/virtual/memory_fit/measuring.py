"""One training step on a virtual GPU: how long it takes, what it needs of the memory, and for what.

A step is ordinary CUDA code that trains once: a function of the batch size, or of nothing; or one that only builds,
and returns the function that trains. It is played on a GPU that gives out memory without end, so that what it needs is
known also where it has no room. The first step makes the optimizer's state; what is told is the step after it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from gc import collect as collect_garbage  # as it is outside of a virtual GPU, which times what a program collects
from typing import Protocol

import numpy as np

from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import resolve
from gpulab.run import Run
from gpulab.virtual.memory_fit.cpu_share import FromHost
from gpulab.virtual.memory_fit.memory import Memory, Use, allowances
from gpulab.virtual.memory_fit.request_script import Script
from gpulab.virtual.op_log.ops import Assumption, Role

Step = Callable[..., object]
FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"
ROOM_FRAC = 0.9  # of a GPU's memory: above it a step fits only if nothing was forgotten
POWER_FRACS = (0.5, 1.0)  # of what lies between idle and the limit: what a GPU draws at work, by the kind of work

# What a step's time goes to, by parts of its ledger.
LIMITS: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("matmul",),
    "memory rate": ("kernels",),
    "copies": ("copies", "communication"),
    "data": ("loader",),
    "host": ("alloc", "sync", "copy_call", "launch", "runtime", "dispatch", "glue", "python"),
}

ON_THE_GPU = ("arithmetic", "memory rate", "copies")


class Played(Protocol):
    """A virtual GPU that code runs on."""

    @property
    def memory(self) -> Memory:
        """Its memory."""

    def mark(self) -> None:
        """What is to be timed begins here."""

    @property
    def step_ns(self) -> float:
        """From the last mark until all that was asked for since is done."""

    @property
    def step_range_ns(self) -> tuple[float, float]:
        """Between what it lies."""

    @property
    def from_host(self) -> FromHost:
        """What it takes from this machine's CPU."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was taken in place of what cannot be known."""

    @property
    def run(self) -> Run | None:
        """All of it as a run, once it was stopped."""

    def start(self) -> None:
        """From here on torch.cuda is this GPU."""

    def stop(self) -> object:
        """Torch is as it was before, and the run is made."""

    def abandon(self) -> None:
        """The same without a run, which is quicker."""


Runner = Callable[[str], Played]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One step on one virtual GPU, estimated."""

    spec: GpuSpec
    batch: int | None  # None: not told, and then a step counts as one
    step_ns: float
    range_ns: tuple[float, float] | None  # between what that lies; None: not asked
    peak: Use  # when most was in use
    phases: tuple[Use, ...]  # the same for each phase
    reserved_bytes: int  # at most by PyTorch's allocator
    outside_bytes: int  # allowed for what is no tensor
    usable_bytes: int
    rebuilt: bool = False  # it makes its model anew each time, which is in its time
    state_bytes: int = 0  # of the optimizer, and then not there at the highest: added to it
    retries: int = 0  # times all that is cached had to be given back for it to have room
    refused: int = 0  # times it had no room even then, and was given it all the same
    shares: Mapping[str, float] = field(default_factory=dict)  # of its time, by LIMITS; empty where not known
    assumptions: tuple[Assumption, ...] = ()
    from_host: FromHost = field(default_factory=FromHost)

    @property
    def needed_bytes(self) -> int:
        """With the allowances."""
        return self.reserved_bytes + self.outside_bytes

    @property
    def used_frac(self) -> float:
        """Of the GPU's memory; above one where it has too little."""
        return self.needed_bytes / self.usable_bytes

    @property
    def squeezed(self) -> bool:
        """It has room only as the cache is given back again and again."""
        return self.retries > 0 and self.verdict != TOO_LARGE

    @property
    def verdict(self) -> str:
        """In words, as no such figure is sure to the last percent."""
        if self.refused or self.used_frac > 1:
            return TOO_LARGE
        return TIGHT if self.retries or self.used_frac > ROOM_FRAC else FITS

    @property
    def per_s(self) -> float:
        """Samples a second; steps where the batch was not told."""
        return self.work / self.step_ns * 1e9

    @property
    def per_s_range(self) -> tuple[float, float] | None:
        """The slowest and the fastest it may be."""
        return (
            None if self.range_ns is None else (self.work / self.range_ns[1] * 1e9, self.work / self.range_ns[0] * 1e9)
        )

    @property
    def work(self) -> int:
        """What a step counts as."""
        return self.batch or 1

    @property
    def busy_frac(self) -> float | None:
        """Share of its time in which the GPU works; None where that is not known."""
        return sum(self.shares[each] for each in ON_THE_GPU) if self.shares else None

    @property
    def limit(self) -> str | None:
        """What keeps it from being faster: of the GPU's work, or of what it waits for, whichever is more; or None."""
        if self.busy_frac is None:
            return None
        busy = self.busy_frac >= 0.5
        return max((each for each in LIMITS if (each in ON_THE_GPU) == busy), key=lambda each: self.shares[each])

    @property
    def joules_range(self) -> tuple[float, float] | None:
        """Of a step: at idle power while the GPU waits, and at half to all of its limit while it works."""
        if self.busy_frac is None or self.range_ns is None:
            return None
        above_w = (self.spec.power_limit_w - self.spec.idle_w) * self.busy_frac
        watts = [self.spec.idle_w + frac * above_w for frac in POWER_FRACS]
        return watts[0] * self.range_ns[0] / 1e9, watts[1] * self.range_ns[1] / 1e9


def measure(step: Step, gpu: str, batch: int | None = None, *, runner: Runner) -> Measured:
    """A step as it is once the optimizer has its state.

    Raises what the step raises, and RunError for no such GPU.
    """
    wanted = resolve(gpu)
    with playing(runner, wanted, keep=True) as played:
        told = whole(played, stretch(played, wanted, begun(step, batch), batch))
    return replace(told, shares=shares(played.run))


def tried(step: Step, wanted: GpuSpec, batch: int, *, runner: Runner) -> tuple[Measured, Script]:
    """The same without its range and what its time goes to, which is quicker; and what was asked of the memory."""
    with playing(runner, wanted, keep=False) as played:
        script = noted(played)
        body = begun(step, batch)
        script.end_part()
        told = whole(played, stretch(played, wanted, body, batch, ranged=False))
        script.end_part()
    return told, script


def noted(played: Played) -> Script:
    """What is asked of its memory from now on."""
    played.memory.script = Script()
    return played.memory.script


def whole(played: Played, told: Measured) -> Measured:
    """A step that had no room the first time has none."""
    return replace(told, retries=played.memory.retries, refused=played.memory.refused)


@contextmanager
def playing(runner: Runner, wanted: GpuSpec, *, keep: bool) -> Iterator[Played]:
    """A virtual GPU that gives out memory without end; `keep`: all of it becomes a run."""
    played = runner(wanted.name)
    played.start()
    try:
        played.memory.limited = False
        yield played
    except BaseException:
        played.abandon()
        raise
    if keep:
        played.stop()
    else:
        played.abandon()


def shares(run: Run | None) -> dict[str, float]:
    """What the last step of a run went to, by LIMITS; empty where nothing of it was recorded on a GPU."""
    if run is None:
        return {}
    found = steps(run)
    last = np.arange(len(found)) == len(found) - 1
    accounts = ledger(run, replace(found, interior=last))
    if accounts is None or accounts.device != "gpu":
        return {}
    return {limit: accounts.frac(*parts) for limit, parts in LIMITS.items()}


def begun(step: Step, batch: int | None) -> Step:
    """Run the first step; gives what runs the following ones, which a step that only builds returns."""
    made = _call(step, batch)
    if not (inspect.isroutine(made) or isinstance(made, functools.partial)):
        return step
    _call(made, batch)
    return made


def _call(step: Step, batch: int | None) -> object:
    given = takes_one(step)
    if given is None or (batch is None and given.default is not inspect.Parameter.empty):
        return step()
    if batch is None:
        raise RunError("The step cannot be run.", why="it takes a batch size", fix="say which: batch=32")
    return step(batch)


def takes_one(step: Step) -> inspect.Parameter | None:
    """The parameter of a step that is its batch size; None where it has none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return next((each for each in inspect.signature(step).parameters.values() if each.kind in kinds), None)


def stretch(
    played: Played, wanted: GpuSpec, body: Step, batch: int | None, *, collect: bool = True, ranged: bool = True
) -> Measured:
    """One step, timed, with what it needs at most; its range takes some more time."""
    if collect:  # a model that the step before made and dropped may still hang in a cycle
        collect_garbage()
    memory = played.memory
    memory.reset_peak()
    held, retries, refused = memory.use(), memory.retries, memory.refused
    _settle()
    played.mark()
    _call(body, batch)
    peak = memory.peak()
    phases = tuple(memory.peak(phase) for phase in memory.phases)
    rebuilt = Role.PARAMETER in peak.by_role and Role.PARAMETER not in held.by_role
    peak, state = _with_state(phases) if rebuilt else (peak, 0)
    return Measured(
        spec=wanted,
        batch=batch,
        step_ns=played.step_ns,
        range_ns=played.step_range_ns if ranged else None,
        peak=peak,
        phases=phases,
        reserved_bytes=memory.max_reserved_bytes + state,
        outside_bytes=sum(each.bytes for each in allowances(wanted)),
        usable_bytes=memory.capacity_bytes,
        rebuilt=rebuilt,
        state_bytes=state,
        retries=memory.retries - retries,
        refused=memory.refused - refused,
        assumptions=played.assumptions,
        from_host=played.from_host,
    )


def _settle() -> None:
    """Call PyTorch once: the Python time before a call is the call's, and ours is none of the step's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.empty(0, device="cuda")


def _with_state(phases: Sequence[Use]) -> tuple[Use, int]:
    """The peak of a step with the optimizer's state in it from the start, and how much that adds to the highest."""
    state = max(use.by_role.get(Role.OPTIMIZER, 0) for use in phases)
    lacking = {use.phase: state - use.by_role.get(Role.OPTIMIZER, 0) for use in phases}
    most = max(phases, key=lambda use: use.bytes + lacking[use.phase])
    by_role = {**most.by_role, **({Role.OPTIMIZER: state} if state else {})}
    whole = most.bytes + lacking[most.phase]
    return Use(whole, most.phase, by_role), whole - max(use.bytes for use in phases)
