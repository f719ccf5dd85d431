"""Run, Machine and the settings recorded with them: frozen values. Analyses read a run and store nothing in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
    PHASES,
    SHAPES,
    STALLS,
    WAITS,
    WORKER_SAMPLES,
)
from gpulab.tables import TABLE_FIELDS as TABLE_FIELDS
from gpulab.tables import TRACE_TABLES as TRACE_TABLES
from gpulab.user_objects import Described
from gpulab.user_objects import DiscardedGradients as DiscardedGradients
from gpulab.user_objects import DropoutTimes as DropoutTimes
from gpulab.user_objects import EvaluatedModule as EvaluatedModule
from gpulab.user_objects import FrozenModel as FrozenModel
from gpulab.user_objects import GrowingInput as GrowingInput
from gpulab.user_objects import LayerTimes as LayerTimes
from gpulab.user_objects import Loader as Loader
from gpulab.user_objects import Model as Model
from gpulab.user_objects import Optimizer as Optimizer
from gpulab.user_objects import RepeatedInputs as RepeatedInputs
from gpulab.user_objects import SeparateModules as SeparateModules
from gpulab.user_objects import SparseOperand as SparseOperand
from gpulab.wording import clean, count, duration, shorten

if TYPE_CHECKING:
    import pandas as pd

    from gpulab.views.sheet.view import View
    from gpulab.views.whatif.whatif import WhatIf


TRACED_WORK = "operators and kernels"  # begins `Gap.what` if part of the trace is missing
KILLED = "killed"  # outcome of a run whose process was killed; gpulab.recover() builds it from what is on disk


@dataclass(frozen=True, kw_only=True)
class Gpu(Described):
    """One GPU as the driver describes it. None: unknown."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None  # the factory limit
    sm_clock_max_mhz: float | None = None
    link_generation_max: int | None = None  # the highest that both GPU and slot support
    link_width_max: int | None = None
    mig: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that gpulab cannot measure here: what, why, and the fix."""

    what: str
    why: str
    fix: str

    @property
    def concerns_trace(self) -> bool:
        """Whether part of the trace is missing."""
        return self.what.startswith(TRACED_WORK)


@dataclass(frozen=True, kw_only=True)
class Machine(Described):
    """The machine on which a run was recorded. None: unknown."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cores: int | None = None
    cores_allowed: float | None = None  # by CPU affinity and cgroup quota: what this process may use
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None  # of the cgroup
    container: str | None = None
    cuda_visible_devices: str | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def device(self) -> str:
        """Name of the device that computes: the first GPU, else the CPU."""
        if self.gpus:
            return self.gpus[0].name
        return self.cpu or "unknown device"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The origin of a run's numbers; printed with every number."""

    how: str  # "measured", "recorded", "virtual" or "predicted"
    device: str
    date: str | None = None  # ISO date; None if the trace does not contain it
    of: str | None = None  # for a predicted run: `how` of the run that it was predicted from

    def __str__(self) -> str:
        # In full: views shorten it to the width that they have.
        device, date = clean(self.device, len(self.device)), clean(self.date or "", 60)
        if self.how == "measured":
            return f"measured here on {device}"
        if self.how == "virtual":
            return f"virtual {device}, estimated"
        if self.how == "predicted":
            origin = Source(how=self.of or "recorded", device=self.device, date=self.date)
            return f"predicted from a run {'on a ' * (origin.how == 'virtual')}{origin}"
        return f"recorded on {device}" + (f", {date}" if date else "")


@dataclass(frozen=True, kw_only=True)
class Failure(Described):
    """The out-of-memory error that ended the recorded code. None: unknown."""

    message: str  # the first line of PyTorch's error message
    device: int | None = None  # GPU index; None: host memory
    simulated: bool = False
    needed_bytes: int | None = None
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None  # by PyTorch's caching allocator, to tensors
    reserved_bytes: int | None = None  # by the caching allocator: allocated or cached
    others_bytes: int | None = None  # used by other processes
    phase: str | None = None  # "forward", "backward", "optimizer" or "evaluation"
    where: str | None = None  # the user's line that requested the memory: "train (cell line 12)"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """How a run was recorded: profiler settings, recorded windows, and what was not recorded and why."""

    level: str = "trace"  # "sensors", "trace" or "deep"
    windows_ns: tuple[tuple[int, int], ...] = ()  # when the profiler recorded events
    pauses_ns: tuple[tuple[int, int], ...] = ()  # when gpulab itself blocked the main thread; no step contains them
    activities: tuple[str, ...] = ()  # "cpu", "cuda"
    options: tuple[str, ...] = ()  # enabled profiler options
    left_out: tuple[Gap, ...] = ()  # what was not recorded
    lost: Mapping[str, int] = field(default_factory=dict)  # number of events lost in a damaged trace, by cause


@dataclass(frozen=True, kw_only=True, eq=False)  # eq=False: arrays have no single truth value
class Run:
    """One recorded execution.

    Times are int64 ns from the start of the run. `events`, `memory`, `marks`, `gpu_samples`, `host_samples` and similar
    properties are pandas DataFrames for interactive use; the `*_rows` fields hold the same tables as numpy columns, for
    analyses. Columns that only some events have are in side tables. Their `event` column is the row number of the
    event: `run.events.join(run.grids.set_index("event"))`. gpulab.tables.describe() explains every column.
    """

    name: str
    source: Source
    machine: Machine
    span_ns: int  # duration of the run
    began_ns: int | None = None  # UNIX time in ns of the start of the run; None if unknown
    outcome: str = "ok"  # or the name of the exception that ended it, or KILLED
    rank: int | None = None
    recording: Recording = field(default_factory=Recording)
    failure: Failure | None = None
    loaders: tuple[Loader, ...] = ()
    models: tuple[Model, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    frozen_models: tuple[FrozenModel, ...] = ()
    repeated_inputs: tuple[RepeatedInputs, ...] = ()
    repeated_in_evaluations: tuple[RepeatedInputs, ...] = ()
    evaluated_modules: tuple[EvaluatedModule, ...] = ()
    growing_inputs: tuple[GrowingInput, ...] = ()
    discarded_gradients: tuple[DiscardedGradients, ...] = ()
    sparse_operands: tuple[SparseOperand, ...] = ()
    separate_modules: tuple[SeparateModules, ...] = ()
    layer_times: LayerTimes | None = None
    dropout_times: DropoutTimes | None = None
    threads: tuple[str, ...] = ()
    main_thread: int = 0  # index into threads
    facts: Mapping[str, str] = field(default_factory=dict)  # settings at the time of recording, such as "threads"
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
    phase_rows: Rows = field(default_factory=PHASES.empty)

    @cached_property
    def results(self) -> dict[object, Any]:
        """Results of analyses of this run, by what they are results of: a run never changes."""
        return {}

    def __getstate__(self) -> dict[str, Any]:  # a copy computes its own results
        return {name: value for name, value in vars(self).items() if name != "results"}

    def __repr__(self) -> str:
        size = f"{count(len(self.event_rows), 'event')}, {duration(self.span_ns)}"
        end = {"ok": "", KILLED: ", killed"}.get(self.outcome, f", ended by {clean(self.outcome, 200)}")
        return f"Run({shorten(self.name, 200)!r}, {shorten(str(self.source), 300)}, {size}{end})"

    def report(self) -> Any:
        """Show the diagnosis of this run: `gpulab.report(run)`."""
        return _view("report", self)

    def timeline(self, other: Any = None) -> Any:
        """Show the timeline, with another run or a prediction below it if given: `gpulab.timeline(run, beside)`."""
        return _view("timeline", self, other)

    @overload
    def whatif(self, *, samples: int = ...) -> View: ...
    @overload
    def whatif(self, rewrites: str, *, samples: int = ...) -> WhatIf: ...
    def whatif(self, rewrites: str = "", **options: int) -> View:
        """Predict the step time with changes: `run.whatif("workers=6, amp=bf16")`; without any, rank all changes."""
        view: View = _view("whatif", self, rewrites, **options)
        return view

    def summary(self) -> dict[str, float | int | str]:
        """Return verdict, step time, shares, gain and energy as one flat dict: gpulab.run_summary.FIELDS."""
        figures: dict[str, float | int | str] = _view("summary", self)
        return figures

    def to_perfetto(self, path: Any) -> Any:
        """Write a trace for ui.perfetto.dev or chrome://tracing: `gpulab.to_perfetto(run, path)`."""
        return _view("to_perfetto", self, path)

    @property
    def events(self) -> pd.DataFrame:
        """Every recorded event: columns of gpulab.tables.EVENTS."""
        return self.event_rows.frame()

    @property
    def grids(self) -> pd.DataFrame:
        """Launch configuration of each kernel: columns of gpulab.tables.GRIDS."""
        return self.grid_rows.frame()

    @property
    def shapes(self) -> pd.DataFrame:
        """Shapes and types of operator inputs, if recorded: columns of gpulab.tables.SHAPES."""
        return self.shape_rows.frame()

    @property
    def collectives(self) -> pd.DataFrame:
        """Operation, size and process group of each collective: columns of gpulab.tables.COLLECTIVES."""
        return self.collective_rows.frame()

    @property
    def waits(self) -> pd.DataFrame:
        """The stream or event that each synchronisation waited for: columns of gpulab.tables.WAITS."""
        return self.wait_rows.frame()

    @property
    def memory(self) -> pd.DataFrame:
        """Every memory allocation and free: columns of gpulab.tables.MEMORY."""
        return self.memory_rows.frame()

    @property
    def marks(self) -> pd.DataFrame:
        """Every step mark: columns of gpulab.tables.MARKS."""
        return self.mark_rows.frame()

    @property
    def gpu_samples(self) -> pd.DataFrame:
        """Samples of the GPU sensors: columns of gpulab.tables.GPU_SAMPLES."""
        return self.gpu_rows.frame()

    @property
    def host_samples(self) -> pd.DataFrame:
        """Samples of the host sensors: columns of gpulab.tables.HOST_SAMPLES."""
        return self.host_rows.frame()

    @property
    def worker_samples(self) -> pd.DataFrame:
        """Samples of the DataLoader workers: columns of gpulab.tables.WORKER_SAMPLES."""
        return self.worker_rows.frame()

    @property
    def stalls(self) -> pd.DataFrame:
        """Garbage collections and compilations: columns of gpulab.tables.STALLS."""
        return self.stall_rows.frame()

    @property
    def allocator(self) -> pd.DataFrame:
        """State of PyTorch's CUDA caching allocator at the start of each step: columns of gpulab.tables.ALLOCATOR."""
        return self.allocator_rows.frame()

    @property
    def holders(self) -> pd.DataFrame:
        """What referenced the allocated memory when it ran out: columns of gpulab.tables.HOLDERS."""
        return self.holder_rows.frame()

    @property
    def phases(self) -> pd.DataFrame:
        """Every phase named by gpulab.phase() or by a callback: columns of gpulab.tables.PHASES."""
        return self.phase_rows.frame()


def _view(name: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of the `gpulab` package, which imports views lazily; this module imports none."""
    return getattr(sys.modules["gpulab"], name)(*arguments, **options)
