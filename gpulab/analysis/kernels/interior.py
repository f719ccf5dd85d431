"""The kernels of the busiest GPU in the interior steps: which, when, and what a part of them costs a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import Mask, Work
from gpulab.analysis.events.enclosing_operator import holders
from gpulab.analysis.host.launch_delays import calls_of
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Ints, Spans, clip, covered_ns, intersect, subtract, union
from gpulab.rows import Array
from gpulab.run import Gpu, Run
from gpulab.tables import Kind


@dataclass(frozen=True, eq=False)
class Interior:
    """Kernels that run in interior steps, in order of their beginning; collectives are not among them.

    One that reaches in from the step before is among them, for its time here is part of these steps: spans are cut at
    the window's ends, so that all together are as long as the ledger says. It is counted where it began: see `begun`.
    """

    run: Run
    steps: Steps
    gpu: Gpu | None  # what they ran on; None where the trace does not tell
    event: Ints  # which row of the events each is

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, column: str) -> Array:
        return self.run.event_rows[column][self.event]

    @cached_property
    def start_ns(self) -> Ints:
        """When each began."""
        return np.asarray(self["start_ns"], np.int64)

    @cached_property
    def end_ns(self) -> Ints:
        """When each ended."""
        return self.start_ns + self["dur_ns"]

    @cached_property
    def begun(self) -> Mask:
        """Which of them began in these steps: who counts them, or their work, counts each in one step only."""
        opens, closes = self.steps.interior_bounds_ns
        return np.asarray((self.start_ns >= opens.min()) & (self.start_ns < closes.max()), bool)

    def per_step(self, mask: Mask) -> float:
        """How many of these a step begins, on average."""
        return int((mask & self.begun).sum()) / max(1, self.many)

    @cached_property
    def code(self) -> NDArray[np.int32]:
        """The name of each, as a code of the run's vocabulary."""
        return np.asarray(self["name"], np.int32)

    @cached_property
    def codes(self) -> Ints:
        """The names that occur."""
        found = np.unique(self.code)
        return np.asarray(found[found >= 0], np.int64)

    def name(self, code: int) -> str:
        """The name that a code stands for."""
        return self.run.event_rows.words("name").vocabulary[code]

    def answers(self, ask: Callable[[str], int | None]) -> Ints:
        """For each kernel, what is answered of its name; -1 for None, and for one without a name."""
        told = np.full(len(self.run.event_rows.words("name").vocabulary) + 1, -1, np.int64)
        for code in self.codes.tolist():
            answer = ask(self.name(code))
            told[code] = -1 if answer is None else int(answer)
        return told[self.code]

    def which(self, ask: Callable[[str], bool]) -> Mask:
        """The kernels of whose name this is true."""
        return np.asarray(self.answers(ask) == 1, bool)

    @cached_property
    def window(self) -> Spans:
        """The interior steps."""
        return self.steps.interior_spans

    def spans(self, mask: Mask) -> Spans:
        """When at least one of these kernels ran, within the interior steps."""
        return self._inside(union(self.start_ns[mask], self.end_ns[mask]))

    def exposed(self, mask: Mask) -> Spans:
        """When these kernels ran and no other did: to be rid of them is to be rid of this time."""
        return self._inside(subtract(union(self.start_ns[mask], self.end_ns[mask]), self.spans(~mask)))

    def _inside(self, spans: Spans) -> Spans:
        window = self.window
        if len(window.start_ns) == 1:
            return clip(spans, int(window.start_ns[0]), int(window.end_ns[0]))
        return intersect(spans, window)

    def typical_ns(self, spans: Spans) -> int:
        """So much of these spans lies in a typical step."""
        start, end = self.steps.interior_bounds_ns
        real = end > start
        return typical_ns(covered_ns(spans, start[real], end[real]), self.steps.burst)

    def cost_ns(self, mask: Mask) -> int:
        """What these kernels cost a typical step."""
        return self.typical_ns(self.exposed(mask))

    @cached_property
    def call(self) -> Ints:
        """The call that launched each, a row of the events; -1 where the trace holds none."""
        return calls_of(Work(self.run.event_rows, self.event))

    @cached_property
    def op(self) -> Ints:
        """The innermost operator that launched each, a row of the events; -1 where none did, or it is not known."""
        return holders(self.run.event_rows, self.call)

    @property
    def many(self) -> int:
        """How many interior steps there are."""
        return int(self.steps.interior.sum())

    def most(self, mask: Mask) -> tuple[str, int] | None:
        """The name among these kernels that takes most time, and how much of it a step; None where there is none."""
        if not mask.any():
            return None
        mask = mask & self.begun if (mask & self.begun).any() else mask
        total = np.bincount(self.code[mask] + 1, weights=self["dur_ns"][mask])
        code = int(total.argmax()) - 1
        name = self.name(code) if code >= 0 else "a kernel without a name"
        return name, round(float(total.max()) / max(1, self.many))


def interior(run: Run, steps: Steps, ledger: Ledger) -> Interior | None:
    """The kernels of the interior steps; None where there are none."""
    if ledger.device != "gpu":
        return None
    events = run.event_rows
    device = main_device(run)
    kernel = np.flatnonzero(events["kind"] == Kind.KERNEL)
    kernel = kernel[np.maximum(events["device"][kernel], 0) == device]
    start = events["start_ns"][kernel]
    opens, closes = steps.interior_bounds_ns
    if not len(opens):
        return None
    # Steps follow one another: a kernel reaches into one of them if it does into their extent and into no gap.
    within = (start < closes.max()) & (start + events["dur_ns"][kernel] > opens.min())
    kernel, start = kernel[within], start[within]
    if (start[1:] < start[:-1]).any():
        kernel = kernel[np.argsort(start, kind="stable")]
    gpu = next((each for each in run.machine.gpus if each.index == device), None)
    return Interior(run, steps, gpu, kernel) if len(kernel) else None


def short(name: str) -> str:
    """A kernel's name for a sentence: without its templates, arguments and namespaces."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    bare = bare.partition("Kernel2<")[2] or bare.partition("::Kernel<")[2] or bare
    bare = re.split(r"[<>(]", bare, maxsplit=1)[0]
    return bare.rpartition("::")[2].strip() or name[:60]
