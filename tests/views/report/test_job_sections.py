"""The part of a report about a job: the same numbers as the analysis, for few ranks and for many."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import gpulab
from gpulab.analysis.ranks.bandwidth import bandwidths
from gpulab.analysis.ranks.waits import job_waits
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.views.report.job.bandwidth_table import bandwidth_blocks
from gpulab.views.report.job.job_ledger import job_ledger
from gpulab.views.report.job.rank_choice import MAX_RANKS, most_telling_ranks
from gpulab.views.report.job.rank_lanes import rank_lanes
from gpulab.views.report.job.sections import job_sections
from gpulab.views.report.job.skew_map import skew_map
from gpulab.views.report.job.wait_matrix import group_lines, wait_matrix
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Bar, Sheet, TableBlock
from tests.support.runs.made_jobs import job
from tests.support.runs.mesh_jobs import Exchange, mesh_job

MS = 1e6
MANY = 40


def late(rank, more_ms):
    return lambda each, step: 40.0 + more_ms * (each == rank)


def random_job(ranks=MANY, steps=12, slow=17):
    draw = np.random.default_rng(3).exponential(4.0, (ranks, steps))
    everyone = [Exchange("0", tuple(range(ranks)))]
    return mesh_job(
        lambda step: [(lambda rank: 20.0 + draw[rank, step] + 30.0 * (rank == slow), everyone)],
        ranks=ranks,
        steps=steps,
    ).runs


def titles(runs):
    return [section.title for section in job_sections(runs)]


def test_the_cells_of_the_matrix_sum_to_its_last_column():
    runs = job(lambda rank, step: 40.0 + 5 * rank * ((step + rank) % 3))
    *rows, total = wait_matrix(job_waits(runs)).rows
    assert [row.cells[0] for row in rows] == ["0", "1", "2", "3"]
    for row in (*rows, total):
        *cells, in_all = (0.0 if cell == "·" else float(cell) for cell in row.cells[1:])
        assert sum(cells) == pytest.approx(in_all, abs=0.3)


def test_only_ranks_that_others_wait_for_have_a_column_and_the_longest_wait_is_shaded_most():
    table = wait_matrix(job_waits(job(late(2, 15))))
    assert table.header == ("", "for 2", "in all")
    assert [row.shades for row in table.rows[:4]] == [(1.0,), (1.0,), (0.0,), (1.0,)]


def test_of_many_ranks_the_straggler_and_those_that_wait_most_are_listed():
    waits = job_waits(random_job())
    chosen = most_telling_ranks(waits)
    assert len(chosen) == MAX_RANKS
    assert 17 in chosen
    assert int(waits.waits_ns.argmax()) in chosen
    assert list(chosen) == sorted(set(chosen))


@pytest.mark.parametrize(
    ("compute_ms", "pattern"),
    [(late(2, 15), "persistent"), (lambda rank, step: 40.0 + 15 * (rank == step % 4), "take turns")],
)
def test_a_line_tells_a_persistent_straggler_from_ranks_that_take_turns(compute_ms, pattern):
    (line,) = group_lines(job_waits(job(compute_ms)))
    assert pattern in line.text


def test_one_rank_that_is_always_last_by_little_takes_no_turns():
    (line,) = group_lines(job_waits(job(late(2, 0.5))))
    assert "straggler" not in line.text
    assert "rank 2 is last in 100 %" in line.text.lower()
    assert "turns" not in line.text


def test_the_heat_map_has_a_cell_for_each_rank_and_step():
    waits = job_waits(job(lambda rank, step: 40.0 + 15 * (rank == step % 4)))
    picture = skew_map(waits)
    paths = [path for path in ElementTree.fromstring(picture.svg) if path.tag.endswith("path")]
    cells = {float(path.get("fill-opacity")): path.get("d").count("M") for path in paths}
    ranks, steps = waits.skew_ns.shape
    assert sum(cells.values()) == ranks * steps
    assert cells[1.0] == int((waits.skew_ns == waits.skew_ns.max()).sum())
    assert len(picture.lane_names) == ranks


def test_a_long_recording_has_a_small_picture_that_keeps_the_latest_arrival():
    runs = mesh_job(
        lambda step: [(lambda rank: 5.0 + 20.0 * (rank == 1 and step == 301), [Exchange("0", (0, 1))])],
        ranks=2,
        steps=500,
    ).runs
    picture = skew_map(job_waits(runs))
    assert len(picture.svg) < 20_000
    assert 'fill-opacity="1.00"' in picture.svg
    assert "step 302" in picture.alt


def communication_columns(runs):
    """The shape of the communication in each rank's lane: the path in its colour."""
    picture = rank_lanes(job_waits(runs))
    lanes = [element for element in ElementTree.fromstring(picture.svg) if element.tag.endswith("g")]
    return [[path.get("d") for path in lane if path.get("fill") == colour("communication")] for lane in lanes]


def test_lanes_of_ranks_look_the_same_however_far_their_clocks_are_apart():
    shifted = job(late(2, 15), offset_ms=lambda rank: 700.0 * rank)
    assert communication_columns(shifted) == communication_columns(job(late(2, 15)))


def test_in_the_lanes_all_ranks_leave_a_collective_together_and_the_last_enters_it_late():
    first, *_, third, _last = (path for (path,) in communication_columns(job(late(2, 15))))
    begins = [[int(start) for start in re.findall(r"M(\d+)", path)] for path in (first, third)]
    ends = [[int(end) for end in re.findall(r"H(\d+)(?:M|V0z)", path)] for path in (first, third)]
    assert all(early < late_ for early, late_ in zip(*begins, strict=True))
    assert ends[0] == ends[1]


def test_lanes_of_many_ranks_are_few_and_include_the_straggler():
    picture = rank_lanes(job_waits(random_job()))
    assert len(picture.lane_names) == MAX_RANKS
    assert "rank 17" in picture.lane_names
    assert len(picture.svg) <= 120_000


def test_the_parts_of_the_job_s_ledger_sum_to_its_step():
    runs = job(late(2, 15))
    with_ledger = [(run, build_ledger(run, find_steps(run))) for run in runs]
    table, *bars = job_ledger(with_ledger, job_waits(runs))
    *parts, step = (float(row.cells[1]) for row in table.rows)
    assert sum(parts) == pytest.approx(step, abs=0.05)
    assert [bar.name.partition(":")[0] for bar in bars] == [f"rank {rank}" for rank in range(4)]
    for bar in bars:
        assert sum(segment.frac for segment in bar.segments) == pytest.approx(1)


def test_a_large_job_has_a_few_bars():
    runs = random_job()
    sections = {section.title: section.blocks for section in job_sections(runs)}
    bars = [block for block in sections["Where the step time of all ranks goes"] if isinstance(block, Bar)]
    assert 2 <= len(bars) <= 8
    assert any(bar.name.startswith("rank 17:") for bar in bars)


def test_the_table_of_bandwidths_names_the_link_or_says_why_it_is_unknown():
    table, line = bandwidth_blocks(bandwidths(job(late(2, 15))))
    assert isinstance(table, TableBlock)
    assert table.rows[0].cells[0] == "all-reduce"
    assert "unknown" in line.text
    (absent,) = bandwidth_blocks(())
    assert "not known" in absent.text


def test_ranks_that_do_not_wait_get_a_sentence_instead_of_a_picture():
    assert "Skew of the ranks in each step" not in titles(job(late(2, 0)))
    assert "Skew of the ranks in each step" in titles(job(late(2, 15)))


def test_a_single_run_has_no_sections_of_a_job():
    assert job_sections(job(late(2, 15))[:1]) == ()


def test_names_of_groups_cannot_add_markup_to_the_page():
    name = "<script>alert(1)</script>"
    runs = mesh_job(
        lambda step: [
            (lambda rank: 20.0 + 9 * rank, [Exchange(name, (0, 1))]),
            (lambda rank: 9.0 - rank, [Exchange("b", (0, 1))]),
        ],
        ranks=2,
    ).runs
    page = fragment(Sheet("job", job_sections(runs)))
    assert "alert(1)" in page
    assert "<script" not in page


def test_all_forms_of_the_report_have_the_sections():
    report = gpulab.report(job(late(2, 15)))
    for text in (repr(report), report._repr_html_()):
        assert re.search("Who waits for whom", text)
        assert re.search("Bandwidth of collectives", text)
