"""A run as a trace for Perfetto: its events, and beside them what gpulab saw: steps, ledger, findings, sensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpulab.columns import Display
from gpulab.intervals import Ints, Spans, longest
from gpulab.questions import diagnose
from gpulab.rows import Rows
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.trace.perfetto import Counter, Track, packed, pieces
from gpulab.views import sensor_columns
from gpulab.views.report.headline import answer_words
from gpulab.views.sheet.view import written
from gpulab.views.wording import clean

MOST_SPANS = 20_000  # of one finding: the longest; beyond that a viewer shows a smear


def to_perfetto(what: Run | Diagnosis, path: str | Path) -> Path:
    """Write a run as `.json` or `.json.gz` for ui.perfetto.dev or chrome://tracing; gives the path.

    Beside the events stand the steps, the ledger's parts, each finding at its evidence, and the sensors as curves.
    `gpulab.load` reads the events back.
    """
    path = Path(path)
    diagnosis = what if isinstance(what, Diagnosis) else diagnose(what)
    content = pieces(diagnosis.run, tuple(_tracks(diagnosis)), _counters(diagnosis.run))
    return written(path, packed(content) if path.suffix == ".gz" else content)


def _tracks(diagnosis: Diagnosis) -> Iterator[Track]:
    steps = diagnosis.steps
    names = [f"step {number}" for number in range(1, len(steps) + 1)]
    if steps.found_by != "whole run":
        yield Track("gpulab: steps", steps.start_ns, steps.dur_ns, names, f"found by {clean(steps.found_by, 200)}")
    if diagnosis.ledger is not None:
        yield _ledger(diagnosis)
    for number, finding in enumerate(diagnosis.findings, start=1):
        spans = longest(finding.shown_by, MOST_SPANS)
        if len(spans.start_ns):
            claim = clean(finding.claim, 200)
            name = f"gpulab: finding {number}, {clean(finding.rule, 60)}"
            yield Track(name, *_boxes(spans), [claim] * len(spans.start_ns), clean(answer_words(finding), 2000))


def _ledger(diagnosis: Diagnosis) -> Track:
    """Every instant of the interior steps, by what it went to."""
    ledger = diagnosis.ledger
    assert ledger is not None, "asked for only where there is one"
    some = [(part.label, ledger.spans[part.key]) for part in ledger.parts]
    which = np.repeat(np.arange(len(some)), [len(spans.start_ns) for _, spans in some])
    start = np.concatenate([spans.start_ns for _, spans in some])
    end = np.concatenate([spans.end_ns for _, spans in some])
    order = np.argsort(start, kind="stable")
    labels = [label for label, _ in some]
    about = f"where the time of a step goes, in the words of gpulab's report; {ledger.device} time"
    return Track(
        "gpulab: ledger", start[order], (end - start)[order], [labels[n] for n in which[order].tolist()], about
    )


def _boxes(spans: Spans) -> tuple[Ints, Ints]:
    return spans.start_ns, spans.end_ns - spans.start_ns


def _counters(run: Run) -> Iterator[Counter]:
    for device in np.unique(run.gpu_rows["device"]).tolist():
        samples = run.gpu_rows.where(run.gpu_rows["device"] == device)
        yield from _sensors(samples, f"GPU {device} ")
    yield from _sensors(run.host_rows)
    memory = run.memory_rows
    for device in np.unique(memory["device"]).tolist():
        rows = memory.where(memory["device"] == device)
        where = f"GPU {device}" if device >= 0 else "host"
        for column, name in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")):
            values = np.where(rows[column] >= 0, rows[column] / 2**20, np.nan)
            yield Counter(f"{where} memory {name} by PyTorch, MiB", rows["at_ns"], values)


def _sensors(samples: Rows, prefix: str = "") -> Iterator[Counter]:
    """Each sensor that any view shows."""
    for column in samples.table.displayed(Display.EVERYWHERE):
        at, values = sensor_columns.readings(samples, column)
        label = sensor_columns.axis_label(column, column.unit.symbol)
        yield Counter(prefix + label, at, values * column.unit.scale)
