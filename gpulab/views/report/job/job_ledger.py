"""The ledger of a job: each part of the step as the mean over ranks, with the ranks that have least and most of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpulab.analysis.ranks.waits import JobWaits
from gpulab.analysis.steps.ledger import Ledger, Part
from gpulab.run import Run
from gpulab.views.report.job.rank_choice import choice_sentence, most_telling_ranks, rank_label
from gpulab.views.report.ledger_table import ledger_bar
from gpulab.views.sheet.sheet import Bar, Block, Line, Row, TableBlock
from gpulab.wording import count, percent, scale

_MAX_BARS = 8


def job_ledger(ranks: Sequence[tuple[Run, Ledger]], waits: JobWaits | None) -> tuple[Block, ...]:
    """Return the job's ledger as a table and the ledger of each rank as a bar; () without two ranks.

    `waits` chooses the bars if there are more ranks than fit; without it, the longest steps do.
    """
    if len(ranks) < 2:
        return ()
    return (_table(ranks), *_bars(ranks, waits))


def _parts(ranks: Sequence[tuple[Run, Ledger]]) -> list[Part]:
    """Return the parts that took time on some rank, each once, busy parts first."""
    parts = {part.key: part for _, ledger in ranks for part in ledger.parts if ledger.part_ns[part.key].any()}
    return sorted(parts.values(), key=lambda part: not part.busy)


def _table(ranks: Sequence[tuple[Run, Ledger]]) -> TableBlock:
    means_ns = {
        part.key: np.array([float(ledger.sum_ns(part.key).mean()) for _, ledger in ranks]) for part in _parts(ranks)
    }
    steps_ns = np.array([float(ledger.step_ns.mean()) for _, ledger in ranks])
    unit = scale(float(steps_ns.max()), figures=4)
    names = [rank_label(run, index) for index, (run, _) in enumerate(ranks)]

    def row(label: str, values_ns: np.ndarray[tuple[int], np.dtype[np.float64]], key: str | None, kind: str) -> Row:
        least, most = int(values_ns.argmin()), int(values_ns.argmax())
        mean_ns = float(values_ns.mean())
        cells = (
            label,
            unit.number(mean_ns),
            percent(mean_ns / max(1.0, float(steps_ns.mean())), 1),
            unit.number(float(values_ns[least])),
            names[least],
            unit.number(float(values_ns[most])),
            names[most],
        )
        return Row(cells, key=key, kind=kind)

    rows = [row(part.label, means_ns[part.key], part.key, "plain") for part in _parts(ranks)]
    return TableBlock(
        header=("", f"{unit.unit} per step", "share", "least", "on rank", "most", "on rank"),
        rows=(*rows, row("step", steps_ns, None, "total")),
        caption=f"Mean over {count(len(ranks), 'rank')} and their traced steps, so that the parts sum to the step. "
        "Exposed communication contains the wait for other ranks.",
    )


def _bars(ranks: Sequence[tuple[Run, Ledger]], waits: JobWaits | None) -> tuple[Bar | Line, ...]:
    steps_ns = [float(ledger.step_ns.mean()) for _, ledger in ranks]
    if len(ranks) <= _MAX_BARS:
        chosen = tuple(range(len(ranks)))
    elif waits is not None and len(waits.matched.ranks) == len(ranks):
        chosen = most_telling_ranks(waits, _MAX_BARS)
    else:
        chosen = tuple(sorted(np.argsort(-np.array(steps_ns), kind="stable")[:_MAX_BARS].tolist()))
    longest, unit = max(1.0, *steps_ns), scale(max(steps_ns), figures=4)
    bars = [
        ledger_bar(
            ranks[index][1],
            f"Step of rank {rank_label(ranks[index][0], index)}",
            name=f"rank {rank_label(ranks[index][0], index)}: {unit(steps_ns[index])}",
            length=steps_ns[index] / longest,
        )
        for index in chosen
    ]
    text = choice_sentence(chosen, len(ranks)).strip() if waits is not None else ""
    if len(chosen) < len(ranks) and not text:
        text = f"The {len(chosen)} of {len(ranks):,} ranks with the longest steps."
    return (*bars, *((Line(text, soft=True),) if text else ()))
