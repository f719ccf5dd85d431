"""Apply optimisations to a training loop one after the other: the gain of each, and the report's next finding.

The training loop is the notebook's `train`; each set of changes is recorded once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpulab.analysis.steps.detection import find_steps
from gpulab.errors import GpulabError, RunError
from gpulab.lessons.labs.data.page_photos import augment_batch, sample_batches
from gpulab.questions import diagnose, predict
from gpulab.run import Run
from gpulab.views.sheet.sheet import Row, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import duration, percent, ratio, sentence

if TYPE_CHECKING:
    from torch import Tensor

    from gpulab.lessons.lesson_lab import Lab

SMALL_BATCH, LARGE_BATCH = 64, 512  # photos per step
FETCH_INTERVAL = 100  # steps between two reads of the loss
OPTIMISATIONS: Mapping[str, str] = {
    "batch": f"{LARGE_BATCH} photos per step instead of {SMALL_BATCH}",
    "fetch": f"the loss is read every {FETCH_INTERVAL} steps",
    "layout": "channels_last memory format for model and images",
    "pin": "each batch is pinned in the loop before it is copied",
    "precision": "autocast to bfloat16",
}
# The same changes in gpulab.whatif, which predicts them from the run before.
WHATIF_CHANGES: Mapping[str, str] = {
    "batch": f"batch=x{LARGE_BATCH // SMALL_BATCH}",
    "fetch": f"sync_every={FETCH_INTERVAL}",
    "layout": "channels_last",
    "pin": "pin_memory",
    "precision": "amp=bf16",
}


@dataclass(frozen=True, eq=False)
class OptimisationPath:
    """A training loop on decoded photos, recorded with any set of the changes.

    `known`: existing runs by their changes.
    """

    lab: Lab
    train: Callable[..., None]
    decoded_images: tuple[Tensor, Tensor]
    count: int  # steps
    recorded_runs: Mapping[tuple[str, ...], Run]
    _runs: dict[frozenset[str], Run] = field(default_factory=dict)

    def run(self, *changes: str) -> Run:
        """Return the run with these changes; record it on the first call. Raises GpulabError for an unknown change."""
        applied = frozenset(changes)
        if unknown := sorted(applied - set(OPTIMISATIONS)):
            raise GpulabError(
                f"There is no change {unknown[0]!r}.",
                why=f"the changes are {', '.join(OPTIMISATIONS)}",
                fix="use one of these",
            )
        if not self._runs:
            self._runs.update({frozenset(names): run for names, run in self.recorded_runs.items()})
        if applied not in self._runs:
            self._runs[applied] = self._recorded(applied)
        return self._runs[applied]

    def photo_us(self, *changes: str) -> float:
        """Return the time per photo with these changes, in us."""
        return photo_us(self.run(*changes), LARGE_BATCH if "batch" in changes else SMALL_BATCH)

    def gain(self, *changes: str) -> float:
        """Return the speedup per photo of these changes."""
        return self.photo_us() / self.photo_us(*changes)

    def predicted_gain(self, name: str, *before: str) -> float | None:
        """Return the speedup per photo that a what-if of the run with `before` predicts for one more change.

        None: it cannot be predicted from that run.
        """
        try:
            prediction = predict(self.run(*before), WHATIF_CHANGES[name])
        except RunError:
            return None
        samples = LARGE_BATCH // SMALL_BATCH if name == "batch" else 1
        return samples * prediction.step_ns / prediction.likely_ns

    def changes_needed(self, order: Sequence[str], target: float) -> int | None:
        """Return the number of changes if together they reach a speedup of `target`; else None."""
        order = _as_tuple(order)
        return len(set(order)) if order and self.gain(*order) >= target else None

    def path_view(self, order: Sequence[str]) -> View:
        """Tabulate the gain of each change on top of those before it, and the report's finding after it."""
        order = _as_tuple(order)
        rows = []
        for count in range(len(order) + 1):
            applied, previous_us = order[:count], self.photo_us(*order[: max(0, count - 1)])
            diagnosis = diagnose(self.run(*applied))
            gain = ratio(previous_us / self.photo_us(*applied)) if count else ""
            predicted = self.predicted_gain(applied[-1], *applied[:-1]) if count else None
            forecast = ratio(predicted) if predicted else "" if not count else "unknown"
            busy = percent(diagnosis.ledger.busy_frac) if diagnosis.ledger else ""
            name = order[count - 1] if count else "none yet"
            rows.append(
                Row((name, sentence(diagnosis.verdict), duration(1e3 * self.photo_us(*applied)), forecast, gain, busy))
            )
        header = ("change", "report after it", "per photo", "predicted gain", "gain", "GPU busy")
        caption = (
            f"Each change includes those above it; {self.run().source}. Predicted gain: by a what-if of the run above."
        )
        table = TableBlock(header=header, rows=tuple(rows), text_columns=2, caption=caption)
        return View(Sheet("gpulab: one change after another", (table,)))

    def order_view(self, order: Sequence[str]) -> View:
        """Compare the gain of each change in this order with its gain as the first change."""
        order = _as_tuple(order)
        rows = []
        for index, name in enumerate(order):
            gain = self.photo_us(*order[:index]) / self.photo_us(*order[: index + 1])
            rows.append(Row((name, OPTIMISATIONS[name], ratio(self.gain(name)), ratio(gain))))
        header = ("change", "", "speedup as first change", "speedup in this order")
        table = TableBlock(
            header=header, rows=tuple(rows), text_columns=2, caption=f"Speedup per photo; {self.run().source}."
        )
        return View(Sheet("gpulab: gain by order", (table,)))

    def _recorded(self, applied: frozenset[str]) -> Run:
        import torch

        from gpulab.capture.run_registry import runs  # what `lab.gpu` records into

        name = "+".join(sorted(applied)) or "unchanged"
        batches: Any = sample_batches(
            self.decoded_images, LARGE_BATCH if "batch" in applied else SMALL_BATCH, self.count
        )
        if "pin" in applied:
            batches = ((images.pin_memory(), labels.pin_memory()) for images, labels in batches)
        arguments: dict[str, Any] = {"change": augment_batch}
        if "precision" in applied:
            arguments["precision"] = torch.bfloat16
        if "layout" in applied:
            arguments["layout"] = torch.channels_last
        if "fetch" in applied:
            arguments["fetch_every"] = FETCH_INTERVAL
        with self.lab.gpu(name):
            self.train(batches, **arguments)
        return runs[name]


def photo_us(run: Run, batch: int = SMALL_BATCH) -> float:
    """Return the time per photo in a run with this batch size, in us. Raises GpulabError if it has no steps."""
    step_ns = find_steps(run).step_ns
    if step_ns is None:
        raise GpulabError(
            f"Run {run.name} has no steps.", why="it ended before the first one did", fix="record more steps"
        )
    return step_ns / batch / 1e3


def _as_tuple(order: Sequence[str]) -> tuple[str, ...]:
    return (order,) if isinstance(order, str) else tuple(order)
