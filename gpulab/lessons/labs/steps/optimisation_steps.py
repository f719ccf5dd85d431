"""Changes to one training, made one after the other: what each gives where it is made, and what is named next.

The training is the notebook's own `train`; a set of changes is trained with once and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpulab.analysis.steps.detection import steps
from gpulab.errors import GpulabError
from gpulab.lessons.labs.data.snapshots import changed, drawn
from gpulab.questions import diagnose
from gpulab.run import Run
from gpulab.views.sheet.sheet import Row, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.views.wording import percent, sentence, times

if TYPE_CHECKING:
    from torch import Tensor

    from gpulab.lessons.lesson_lab import Lab

FEW, MANY = 64, 512  # photographs in a step
SELDOM = 100  # steps between two fetches of the loss
CHANGES: Mapping[str, str] = {
    "batch": f"{MANY} photographs in a step in place of {FEW}",
    "fetch": f"the loss is fetched in every {SELDOM}th step",
    "layout": "model and images with the channels last",
    "pin": "each batch is pinned by hand before it is copied",
    "precision": "autocast to bfloat16",
}


@dataclass(frozen=True, eq=False)
class Mending:
    """One training that is fed from decoded photographs, with any of the changes.

    `known`: runs that there are already, by their changes.
    """

    lab: Lab
    train: Callable[..., None]
    kept: tuple[Tensor, Tensor]
    count: int  # of steps
    known: Mapping[tuple[str, ...], Run]
    _runs: dict[frozenset[str], Run] = field(default_factory=dict)

    def run(self, *changes: str) -> Run:
        """The training with these changes, recorded at the first call. Raises GpulabError for one that there is not."""
        made = frozenset(changes)
        if unknown := sorted(made - set(CHANGES)):
            raise GpulabError(
                f"There is no change {unknown[0]!r}.", why=f"there are {', '.join(CHANGES)}", fix="use their names"
            )
        if not self._runs:
            self._runs.update({frozenset(names): run for names, run in self.known.items()})
        if made not in self._runs:
            self._runs[made] = self._recorded(made)
        return self._runs[made]

    def photo_us(self, *changes: str) -> float:
        """Microseconds that one photograph takes with these changes."""
        return photo_us(self.run(*changes), MANY if "batch" in changes else FEW)

    def gain(self, *changes: str) -> float:
        """How many times as fast a photograph is with these changes as without any."""
        return self.photo_us() / self.photo_us(*changes)

    def needed(self, order: Sequence[str], target: float) -> int | None:
        """How many changes were made, where together they make a photograph `target` times as fast; else None."""
        order = _listed(order)
        return len(set(order)) if order and self.gain(*order) >= target else None

    def path(self, order: Sequence[str]) -> View:
        """What each change gives, made after those before it, and what the report names then."""
        order = _listed(order)
        rows = []
        for count in range(len(order) + 1):
            made, last = order[:count], self.photo_us(*order[: max(0, count - 1)])
            told = diagnose(self.run(*made))
            gave = times(last / self.photo_us(*made)) if count else ""
            computes = percent(told.ledger.busy_frac) if told.ledger else ""
            name = order[count - 1] if count else "none yet"
            rows.append(Row((name, sentence(told.verdict), f"{self.photo_us(*made):.0f} us", gave, computes)))
        header = ("change", "what the report names then", "a photograph", "gain", "GPU busy")
        caption = f"Each change is made with those above it; {self.run().source}."
        table = Table(header=header, rows=tuple(rows), left=2, caption=caption)
        return View(Sheet("gpulab: the path", (table,)))

    def early_and_late(self, order: Sequence[str]) -> View:
        """What each change of a path gives in its place there, and what it would have given as the first."""
        order = _listed(order)
        rows = []
        for place, name in enumerate(order):
            late = self.photo_us(*order[:place]) / self.photo_us(*order[: place + 1])
            rows.append(Row((name, CHANGES[name], times(self.gain(name)), times(late))))
        header = ("change", "", "made first", "made in this order")
        table = Table(header=header, rows=tuple(rows), left=2, caption=f"Times as fast; {self.run().source}.")
        return View(Sheet("gpulab: early and late", (table,)))

    def _recorded(self, made: frozenset[str]) -> Run:
        import torch

        from gpulab.capture.run_registry import runs  # what `lab.gpu` records into

        name = "+".join(sorted(made)) or "unchanged"
        batches: Any = drawn(self.kept, MANY if "batch" in made else FEW, self.count)
        if "pin" in made:
            batches = ((images.pin_memory(), labels.pin_memory()) for images, labels in batches)
        arguments: dict[str, Any] = {"change": changed}
        if "precision" in made:
            arguments["precision"] = torch.bfloat16
        if "layout" in made:
            arguments["layout"] = torch.channels_last
        if "fetch" in made:
            arguments["fetch_every"] = SELDOM
        with self.lab.gpu(name):
            self.train(batches, **arguments)
        return runs[name]


def photo_us(run: Run, batch: int = FEW) -> float:
    """Microseconds of one photograph in a run of so many a step. Raises GpulabError where no step was found."""
    step_ns = steps(run).step_ns
    if step_ns is None:
        raise GpulabError(f"{run.name} has no steps.", why="it ended before", fix="record some")
    return step_ns / batch / 1e3


def _listed(order: Sequence[str]) -> tuple[str, ...]:
    return (order,) if isinstance(order, str) else tuple(order)
