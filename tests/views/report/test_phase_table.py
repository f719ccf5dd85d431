"""The table of phases: a row for each, with its share, its work and the largest part of its own ledger."""

from dataclasses import replace
from pathlib import Path

import gpulab
from gpulab.analysis.steps.phases import PhaseKind, find_phases
from gpulab.rules import diagnose
from gpulab.views.report.phase_table import largest_parts, phase_section
from tests.cases.data.slow_evaluation.case import evaluated
from tests.cases.steps.frequent_evaluation.case import estimated


def section(run):
    return phase_section(diagnose(run))


def column(table, heading):
    index = table.header.index(heading)
    return {row.cells[0]: row.cells[index] for row in table.rows}


def test_an_evaluation_without_a_dataloader_has_a_row_with_its_function_and_its_largest_part():
    sentence, table = section(estimated()).blocks
    assert column(table, "work")["evaluation (estimate_loss)"] == "3 evaluations"
    assert column(table, "share")["evaluation (estimate_loss)"] == "52.9 %"
    assert column(table, "largest part")["evaluation (estimate_loss)"] == "long operators 80 %"
    assert "evaluation (estimate_loss) 53 %" in sentence.text
    assert "long operators (>= 10 us), 80 %" in sentence.text


def test_what_was_not_recorded_is_no_number():
    run = estimated()
    first_steps = replace(run.recording, windows_ns=((0, 150_000_000),))
    sentence, table = section(replace(run, recording=first_steps)).blocks
    assert column(table, "largest part")["evaluation (estimate_loss)"] == "not recorded"
    assert "No event of evaluation (estimate_loss) was recorded." in sentence.text


def test_without_events_the_waits_for_batches_are_what_is_known_of_an_evaluation():
    sentence, table = section(evaluated()).blocks
    assert "largest part" not in table.header
    assert column(table, "waiting for data")["evaluation (val_loader)"] == "80 %"
    assert "waits for data for 80 %" in sentence.text


def test_the_training_has_the_largest_part_of_its_typical_step():
    diagnosis = diagnose(gpulab.load(Path(__file__).parents[3] / "recorded_runs" / "case03" / "run.gpulab"))
    phases = find_phases(diagnosis.run)
    values = largest_parts(diagnosis.run, phases, diagnosis.ledger, diagnosis.step)
    parts = dict(zip((phase.kind for phase in phases), values, strict=True))
    label, share = parts[PhaseKind.TRAINING]
    ledger, step = diagnosis.ledger, diagnosis.step
    assert share == max(step.frac(part.key) for part in ledger.parts)
    assert label in {part.label for part in ledger.parts}


def test_a_run_that_only_trains_has_no_table():
    assert section(estimated(evaluation_ms=0.0)) is None
