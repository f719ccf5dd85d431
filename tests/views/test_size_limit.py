"""A page has a limited size, whatever a file holds; what is cut is counted. Ordinary sheets are not changed."""

from __future__ import annotations

import dataclasses

import pytest

import gpulab
from gpulab.run import Failure, Gap, Gpu, Source
from gpulab.tables import HOLDERS, EventKind
from gpulab.views.info import info
from gpulab.views.sheet.sheet import Answer, Code, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.size_limit import MAX_CHARACTERS, MAX_ENTRIES, limit_sheet
from tests.support.runs.made_runs import event, gpu_samples, on_gpu, stepped

MAX_BYTES = 2_500_000
LONG = "x" * 500
GAPS = tuple(Gap(what=f"w{number} {LONG}", why=LONG, fix=LONG) for number in range(5_000))
LOSSES = {f"{number}{LONG}": number for number in range(5_000)}


def _gpus(count):
    return tuple(Gpu(index=number, name=LONG) for number in range(count))


def _run():
    return on_gpu(stepped(lambda at: [event(EventKind.KERNEL, "k", at + 5, 50)]))


CHANGES = {
    "losses": lambda run: {"recording": dataclasses.replace(run.recording, lost=LOSSES)},
    "gaps": lambda run: {"recording": dataclasses.replace(run.recording, left_out=GAPS)},
    "gaps of the machine": lambda run: {"machine": dataclasses.replace(run.machine, gaps=GAPS)},
    "assumptions": lambda _: {
        "facts": {f"assumed: {n}{LONG}": LONG for n in range(5_000)}, "source": Source(how="virtual", device="H100")
    },
    "GPUs": lambda run: {
        "machine": dataclasses.replace(run.machine, gpus=_gpus(1_000)),
        "gpu_rows": gpu_samples(*[{"util_frac": 0.5, "power_w": 300.0}] * 1_000, count=3),
    },
    "holders": lambda _: {
        "failure": Failure(message="CUDA out of memory", device=0, capacity_bytes=2**36),
        "holder_rows": HOLDERS.of([[f"{n}{LONG}", "variable", 0, 2**20, 1, LONG] for n in range(5_000)]),
    },
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_small_file_makes_no_large_page(change, tmp_path):
    run = _run()
    run = dataclasses.replace(run, **change(run))
    report = gpulab.report(run)
    texts = [repr(report), report._repr_html_(), info(run.machine).html_page()]
    texts += [report.save(tmp_path / name).read_text(encoding="utf-8") for name in ("a.html", "a.md")]
    texts.append(gpulab.timeline(run, live=False).save(tmp_path / "t.html").read_text(encoding="utf-8"))
    assert max(map(len, texts)) < MAX_BYTES


def test_what_is_cut_is_counted():
    lines = tuple(Line(f"line {number}") for number in range(MAX_ENTRIES + 7))
    table = TableBlock(header=("a", "b"), rows=tuple(Row((str(number), "1")) for number in range(MAX_ENTRIES + 7)))
    facts = Facts(tuple((str(number), "value") for number in range(MAX_ENTRIES + 7)))
    answer = Answer(claim="x", leading=True, notes=facts.rows)
    section, rows, pairs = limit_sheet(Sheet("x", (Section("lines", lines), table, facts))).blocks
    (claim,) = limit_sheet(Sheet("x", (answer,))).blocks
    assert len(section.blocks) == len(rows.rows) == len(pairs.rows) == len(claim.notes) == MAX_ENTRIES + 1
    cut = (section.blocks[-1].text, rows.rows[-1].cells[0], pairs.rows[-1][1], claim.notes[-1][1])
    assert all(text.startswith("7 more entries") for text in cut)
    assert section.blocks[0] == lines[0]


def test_a_sheet_of_long_texts_ends_where_it_would_be_too_large():
    blocks = tuple(Section(str(number), tuple(Line("x" * 1000) for _ in range(50))) for number in range(50))
    shown = limit_sheet(Sheet("x", blocks))
    characters = sum(len(line.text) for section in shown.blocks for line in getattr(section, "blocks", ()))
    assert 0.5 * MAX_CHARACTERS < characters <= MAX_CHARACTERS
    assert "more entries not shown" in shown.blocks[-1].text


def test_an_ordinary_sheet_is_unchanged():
    sheet = gpulab.report(_run()).sheet
    assert limit_sheet(sheet) is sheet
    small = Sheet("x", (Line("a"), Code("b"), Facts((("c", "d"),))))
    assert limit_sheet(small) is small
