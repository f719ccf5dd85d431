"""Export a run as a trace for Perfetto: its events, and tracks for steps, ledger, findings and sensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpulab.columns import Display
from gpulab.intervals import Ints, Spans, longest_spans
from gpulab.questions import diagnose
from gpulab.questions.run_names import RunLike, find_run
from gpulab.rows import Rows
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.trace.perfetto import Counter, Track, gzip_compressed, write_trace
from gpulab.views import sensor_columns
from gpulab.views.report.headline import finding_text
from gpulab.views.report.provenance import how_detected
from gpulab.views.sheet.view import write_file
from gpulab.wording import clean

MAX_SPANS = 20_000  # the longest of each finding; a viewer cannot separate more


def to_perfetto(subject: RunLike | Diagnosis, path: str | Path) -> Path:
    """Write a run as `.json` or `.json.gz` for ui.perfetto.dev or chrome://tracing, and return the path.

    The trace has tracks for steps, ledger parts and the evidence of each finding, and counters for the sensors.
    `gpulab.load` reads the events back.
    """
    path = Path(path)
    diagnosis = subject if isinstance(subject, Diagnosis) else diagnose(find_run(subject))
    content = write_trace(diagnosis.run, tuple(_tracks(diagnosis)), _counters(diagnosis.run))
    return write_file(path, gzip_compressed(content) if path.suffix == ".gz" else content)


def _tracks(diagnosis: Diagnosis) -> Iterator[Track]:
    steps = diagnosis.steps
    names = [f"step {number}" for number in range(1, len(steps) + 1)]
    if steps.detected_by != "whole run":
        yield Track("gpulab: steps", steps.start_ns, steps.dur_ns, names, clean(how_detected(steps), 200))
    if diagnosis.ledger is not None:
        yield _ledger(diagnosis)
    for number, finding in enumerate(diagnosis.findings, start=1):
        spans = longest_spans(finding.spans, MAX_SPANS)
        if len(spans.start_ns):
            claim = clean(finding.claim, 200)
            name = f"gpulab: finding {number}, {clean(finding.rule, 60)}"
            yield Track(name, *_boxes(spans), [claim] * len(spans.start_ns), clean(finding_text(finding), 2000))


def _ledger(diagnosis: Diagnosis) -> Track:
    """Return every instant of the interior steps, labelled with its part of the ledger."""
    ledger = diagnosis.ledger
    assert ledger is not None, "called only if there is a ledger"
    parts = [(part.label, ledger.spans[part.key]) for part in ledger.parts]
    part_index = np.repeat(np.arange(len(parts)), [len(spans.start_ns) for _, spans in parts])
    start = np.concatenate([spans.start_ns for _, spans in parts])
    end = np.concatenate([spans.end_ns for _, spans in parts])
    order = np.argsort(start, kind="stable")
    labels = [label for label, _ in parts]
    about = f"where the step time goes, with the labels of gpulab's report; {ledger.device} time"
    return Track(
        "gpulab: ledger", start[order], (end - start)[order], [labels[n] for n in part_index[order].tolist()], about
    )


def _boxes(spans: Spans) -> tuple[Ints, Ints]:
    return spans.start_ns, spans.end_ns - spans.start_ns


def _counters(run: Run) -> Iterator[Counter]:
    for device in np.unique(run.gpu_rows["device"]).tolist():
        samples = run.gpu_rows.select(run.gpu_rows["device"] == device)
        yield from _sensors(samples, f"GPU {device} ")
    yield from _sensors(run.host_rows)
    memory = run.memory_rows
    for device in np.unique(memory["device"]).tolist():
        rows = memory.select(memory["device"] == device)
        owner = f"GPU {device}" if device >= 0 else "host"
        for column, name in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")):
            values = np.where(rows[column] >= 0, rows[column] / 2**20, np.nan)
            yield Counter(f"{owner} memory {name} by PyTorch, MiB", rows["at_ns"], values)


def _sensors(samples: Rows, prefix: str = "") -> Iterator[Counter]:
    """Yield a counter for each sensor that a view shows."""
    for column in samples.table.displayed(Display.EVERYWHERE):
        at_ns, values = sensor_columns.readings(samples, column)
        label = sensor_columns.axis_label(column, column.unit.symbol)
        yield Counter(prefix + label, at_ns, values * column.unit.scale)
