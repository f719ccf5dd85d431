"""Run and Machine: what was recorded, frozen. Analyses read a run; nothing computed is stored in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from gpulab.rows import Rows
from gpulab.tables import (
    ALLOCATOR,
    COLLECTIVES,
    EVENTS,
    GPU_SAMPLES,
    GRIDS,
    HOLDERS,
    HOST_SAMPLES,
    MARKS,
    MEMORY,
    SHAPES,
    STALLS,
    WAITS,
    WORKER_SAMPLES,
)

if TYPE_CHECKING:
    import pandas as pd

    from gpulab.views.sheet.view import View
    from gpulab.views.whatif.whatif import WhatIf


# The fields of a Run that are tables: what a trace fills, and all of them.
TRACED = {
    "event_rows": EVENTS,
    "grid_rows": GRIDS,
    "shape_rows": SHAPES,
    "collective_rows": COLLECTIVES,
    "wait_rows": WAITS,
    "memory_rows": MEMORY,
}
FIELDS = {
    **TRACED,
    "mark_rows": MARKS,
    "gpu_rows": GPU_SAMPLES,
    "host_rows": HOST_SAMPLES,
    "worker_rows": WORKER_SAMPLES,
    "stall_rows": STALLS,
    "allocator_rows": ALLOCATOR,
    "holder_rows": HOLDERS,
}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the driver names it; None where the driver does not say."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None  # the limit it comes with
    sm_clock_max_mhz: float | None = None
    link_generation_max: int | None = None  # what GPU and slot can do together
    link_width_max: int | None = None
    mig: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something gpulab cannot measure here: what, why, and what would mend it."""

    what: str
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run was recorded; None where it is not known."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cores: int | None = None
    cores_allowed: float | None = None  # by affinity and cgroup quota: what may really be used
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None  # by cgroup
    container: str | None = None
    cuda_visible_devices: str | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def device(self) -> str:
        """The name of what computes: the first GPU, else the CPU."""
        if self.gpus:
            return self.gpus[0].name
        return self.cpu or "unknown device"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the numbers of a run come from; printed with every number."""

    how: str  # "measured", "recorded", "virtual" or "predicted"
    device: str
    date: str | None = None  # ISO date; None where a trace does not tell
    of: str | None = None  # of a predicted run: how the one it was predicted from was obtained

    def __str__(self) -> str:
        if self.how == "measured":
            return f"measured here on {self.device}"
        if self.how == "virtual":
            return f"virtual {self.device}, estimated"
        if self.how == "predicted":
            came = Source(how=self.of or "recorded", device=self.device, date=self.date)
            return f"predicted from a run {'on a ' * (came.how == 'virtual')}{came}"
        return f"recorded on {self.device}" + (f", {self.date}" if self.date else "")


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How a DataLoader was set up; None where it is not known (a trace tells only whether it has workers)."""

    workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    batches: int | None = None  # per epoch; None for an iterable of unknown length
    dataset: str | None = None  # its class name
    name: str | None = None  # the user's variable that holds the DataLoader
    dataset_name: str | None = None  # the user's variable that holds the dataset
    location: str | None = None  # the kind of file system its files lie on, as "nfs4"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How an optimizer was set up; None where it is not known."""

    kind: str  # its class: "AdamW"
    name: str | None = None  # the user's variable that holds it
    tensors: int | None = None  # how many parameters it updates
    elements: int | None = None  # numbers in them
    foreach: bool | None = None  # as asked for; None: PyTorch decides
    fused: bool | None = None
    device: str | None = None  # where its parameters lie: "cuda", "cpu", "cpu and cuda"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that an optimizer trains; None where it is not known."""

    kind: str  # its class: "ResNet"
    name: str | None = None  # the user's variable that holds it
    tensors: int | None = None
    bytes: int | None = None  # of its parameters
    dtypes: tuple[str, ...] = ()  # of its parameters, most first: ("float32",)
    device: str | None = None
    compiled: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What ended the recorded code, where that was memory running out; None where it was not told."""

    message: str  # the first line of the error, as PyTorch words it
    device: int | None = None  # GPU index; None: host memory
    simulated: bool = False
    needed_bytes: int | None = None
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None  # given out by PyTorch's allocator
    reserved_bytes: int | None = None  # held by it, given out or not
    others_bytes: int | None = None  # held by other processes
    phase: str | None = None  # "forward", "backward", "optimizer" or "evaluation"
    where: str | None = None  # the user's line that asked: "train (cell line 12)"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """How a run was recorded: what was on, for which part, and what was left out and why."""

    level: str = "trace"  # "sensors", "trace" or "deep"
    windows_ns: tuple[tuple[int, int], ...] = ()  # when the profiler recorded events
    pauses_ns: tuple[tuple[int, int], ...] = ()  # when gpulab itself held the main thread; part of no step
    activities: tuple[str, ...] = ()  # "cpu", "cuda"
    options: tuple[str, ...] = ()  # profiler options that were on
    left_out: tuple[Gap, ...] = ()  # what was not recorded
    lost: Mapping[str, int] = field(default_factory=dict)  # events a damaged trace lost, by cause


@dataclass(frozen=True, kw_only=True, eq=False)  # eq=False: comparing arrays has no yes/no answer
class Run:
    """One recorded execution.

    Times are int64 ns from the start of the run. `events`, `memory`, `marks`, `gpu_samples`, `host_samples` and their
    like are pandas DataFrames for people; the `*_rows` are the numpy columns that analyses read. What only some events
    have stands in side tables, whose `event` is the row of the event:
    `run.events.join(run.grids.set_index("event"))`. gpulab.tables.describe() explains every column.
    """

    name: str
    source: Source
    machine: Machine
    span_ns: int  # from the first moment of the run to its last
    began_ns: int | None = None  # UNIX time in ns of moment zero; None where unknown
    outcome: str = "ok"  # or the name of the exception that ended it
    rank: int | None = None
    recording: Recording = field(default_factory=Recording)
    failure: Failure | None = None
    loaders: tuple[Loader, ...] = ()
    models: tuple[Model, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    threads: tuple[str, ...] = ()
    main_thread: int = 0  # index into threads
    facts: Mapping[str, str] = field(default_factory=dict)  # settings read when it was recorded, such as "threads"
    event_rows: Rows = field(default_factory=EVENTS.empty)
    grid_rows: Rows = field(default_factory=GRIDS.empty)
    shape_rows: Rows = field(default_factory=SHAPES.empty)
    collective_rows: Rows = field(default_factory=COLLECTIVES.empty)
    wait_rows: Rows = field(default_factory=WAITS.empty)
    memory_rows: Rows = field(default_factory=MEMORY.empty)
    mark_rows: Rows = field(default_factory=MARKS.empty)
    gpu_rows: Rows = field(default_factory=GPU_SAMPLES.empty)
    host_rows: Rows = field(default_factory=HOST_SAMPLES.empty)
    worker_rows: Rows = field(default_factory=WORKER_SAMPLES.empty)
    stall_rows: Rows = field(default_factory=STALLS.empty)
    allocator_rows: Rows = field(default_factory=ALLOCATOR.empty)
    holder_rows: Rows = field(default_factory=HOLDERS.empty)

    def __repr__(self) -> str:
        size = f"{len(self.event_rows):,} events, {self.span_ns / 1e9:.2f} s"
        end = "" if self.outcome == "ok" else f", ended by {self.outcome}"
        return f"Run({self.name!r}, {self.source}, {size}{end})"

    def report(self) -> Any:
        """The diagnosis of this run as a view: `gpulab.report(run)`."""
        return _view("report", self)

    def timeline(self, beside: Any = None) -> Any:
        """The zoomable timeline, with another run or a prediction below it: `gpulab.timeline(run, beside)`."""
        return _view("timeline", self, beside)

    @overload
    def whatif(self, *, samples: int = ...) -> View: ...
    @overload
    def whatif(self, rewrites: str, *, samples: int = ...) -> WhatIf: ...
    def whatif(self, rewrites: str = "", **options: int) -> View:
        """The step with these changes made: `run.whatif("workers=6, amp=bf16")`; without any, every change ranked."""
        answer: View = _view("whatif", self, rewrites, **options)
        return answer

    def to_perfetto(self, path: Any) -> Any:
        """Write a trace that ui.perfetto.dev and chrome://tracing open: `gpulab.to_perfetto(run, path)`."""
        return _view("to_perfetto", self, path)

    @property
    def events(self) -> pd.DataFrame:
        """Every recorded event: columns of gpulab.tables.EVENTS."""
        return self.event_rows.frame()

    @property
    def grids(self) -> pd.DataFrame:
        """How each kernel was launched: columns of gpulab.tables.GRIDS."""
        return self.grid_rows.frame()

    @property
    def shapes(self) -> pd.DataFrame:
        """The inputs of each operator, where they were recorded: columns of gpulab.tables.SHAPES."""
        return self.shape_rows.frame()

    @property
    def collectives(self) -> pd.DataFrame:
        """What each collective moved between whom: columns of gpulab.tables.COLLECTIVES."""
        return self.collective_rows.frame()

    @property
    def waits(self) -> pd.DataFrame:
        """What each synchronisation waited for: columns of gpulab.tables.WAITS."""
        return self.wait_rows.frame()

    @property
    def memory(self) -> pd.DataFrame:
        """Every piece of memory given out or taken back: columns of gpulab.tables.MEMORY."""
        return self.memory_rows.frame()

    @property
    def marks(self) -> pd.DataFrame:
        """Every step mark: columns of gpulab.tables.MARKS."""
        return self.mark_rows.frame()

    @property
    def gpu_samples(self) -> pd.DataFrame:
        """Every reading of the GPU sensors: columns of gpulab.tables.GPU_SAMPLES."""
        return self.gpu_rows.frame()

    @property
    def host_samples(self) -> pd.DataFrame:
        """Every reading of the host sensors: columns of gpulab.tables.HOST_SAMPLES."""
        return self.host_rows.frame()

    @property
    def worker_samples(self) -> pd.DataFrame:
        """Every reading of a DataLoader worker: columns of gpulab.tables.WORKER_SAMPLES."""
        return self.worker_rows.frame()

    @property
    def stalls(self) -> pd.DataFrame:
        """Garbage collections and compilations: columns of gpulab.tables.STALLS."""
        return self.stall_rows.frame()

    @property
    def allocator(self) -> pd.DataFrame:
        """PyTorch's CUDA allocator where each step began: columns of gpulab.tables.ALLOCATOR."""
        return self.allocator_rows.frame()

    @property
    def holders(self) -> pd.DataFrame:
        """Who held memory when it ran out: columns of gpulab.tables.HOLDERS."""
        return self.holder_rows.frame()


def _view(name: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of the package root, which imports what it offers on demand; this module imports no view."""
    return getattr(sys.modules["gpulab"], name)(*arguments, **options)
