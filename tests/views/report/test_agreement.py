"""The headline, the predicted gain and the ledger of a report agree: one step time, and one share of it.

For the first finding of every shipped dataset, every case and every shared trace. A finding about whole parts of the
ledger has their share; one about something within a part, such as garbage collection, has at most its share.
The gain is compared if it is that of removing the cause with the rest of the step unchanged; making kernels faster
leaves some of their time.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import gpulab
from gpulab.rules.engine.finding import Gain
from gpulab.rules.kernels.device_bound import BUSY_PARTS
from gpulab.views.report.headline import (
    OF_LOOP,
    PREDICTED,
    UPPER_BOUND,
    expected_facts,
    finding_answer,
    headline,
    speedups_text,
)
from gpulab.views.report.ledger_table import ledger_blocks
from gpulab.views.sheet.sheet import TableBlock
from tests.cases.steps.frequent_evaluation.case import provoked_by_code_in_eval_mode
from tests.support.runs.cases import ALL, diagnosis_of
from tests.support.runs.made_runs import MS
from tests.support.tiers import every_nth

DATASETS = sorted((Path(__file__).parents[3] / "recorded_runs").glob("*/*.gpulab"))
PATHS = [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in DATASETS]
POINTS = 2.0
ROUNDED = 0.5  # a claim shows whole per cents
ABOUT_WHOLE_PARTS = {
    *("no_workers", "too_few_workers", "slow_storage", "cpu_bound_loading"),
    *("exposed_communication", "allocator_thrash"),
}


def busy_disagreement(diagnosis):
    """What contradicts the claim that the device computes nearly all the time, as a list."""
    busy = next((finding for finding in diagnosis.findings if finding.rule == "device_bound"), None)
    if busy is None or diagnosis.step is None or diagnosis.step.is_mean:
        return []
    claimed = float(re.search(r"(\d+(?:\.\d+)?) %", busy.claim)[1])
    in_ledger = 100 * diagnosis.step.frac(*BUSY_PARTS)
    if abs(claimed - in_ledger) > ROUNDED:
        return [f"device_bound: {claimed} % claimed, {in_ledger:.1f} % in the ledger"]
    return []


def disagreements(diagnosis):
    """What contradicts what in a report, as text."""
    return [*busy_disagreement(diagnosis), *bound_disagreement(diagnosis), *first_disagreements(diagnosis)]


def bound_disagreement(diagnosis):
    """What contradicts the bound of the first finding and the others together, as a list: it is never the lower one."""
    first, together = diagnosis.first, diagnosis.combined_bound
    if together is None:
        return []
    if first is None or first.gain is None:
        return ["a bound for the first finding and others, without a first finding that has one"]
    if together < first.gain.cold_bound * (1 - ROUNDED / 100):
        return [f"{first.rule}: at most {first.gain.cold_bound:.2f}x alone, {together:.2f}x with the others"]
    return []


def first_disagreements(diagnosis):
    """What contradicts the first finding; nothing if it is not about parts of the ledger."""
    first, step = diagnosis.first, diagnosis.step
    if first is None or step is None or not first.ledger_parts:
        return []
    shown = re.search(r"(\d+(?:\.\d+)?) %", first.claim)
    if shown is None:
        return []
    claimed, in_ledger = float(shown[1]), 100 * step.frac(*first.ledger_parts)
    problems = []
    if claimed > in_ledger + POINTS + ROUNDED:
        problems.append(f"{first.rule}: {claimed} % claimed, {in_ledger:.1f} % in the ledger")
    if first.rule in ABOUT_WHOLE_PARTS and claimed < in_ledger - POINTS - ROUNDED:
        problems.append(f"{first.rule}: only {claimed} % claimed, {in_ledger:.1f} % in the ledger")
    if first.gain is not None and "exposed_frac" in first.numbers:
        gain = first.gain
        saved = 100 * (1 - (gain.cold_floor_ns or gain.floor_ns) / gain.step_ns)
        # A bound holds without the profiler, too; by how much that shortens the rest may not have been measured.
        is_explained = saved > claimed and ("which also cuts" in gain.basis or diagnosis.steps.unprofiled_ns is None)
        if abs(saved - claimed) > POINTS + ROUNDED and not is_explained:
            problems.append(f"{first.rule}: {claimed} % claimed, {saved:.1f} % saved at most")
        if gain.step_ns != step.step_ns:
            problems.append(f"{first.rule}: a step of {gain.step_ns} ns is predicted from, one of {step.step_ns} shown")
    return problems


def speedups(text):
    """The speed-ups in a text: of "1.40-1.92x", both."""
    return [float(number) for number in re.findall(r"([\d.]+)(?=-[\d.]+x|x)", text)]


def ranges_above_bounds(diagnosis):
    """Where a range in a report reaches above a bound for the same fix, or above one for all of them, as text."""
    problems, best_of_all = [], 0.0
    for finding in filter(lambda each: each.gain, diagnosis.findings):
        facts = dict(expected_facts(finding.gain))
        (*_, best), bounds = speedups(facts[PREDICTED].partition(", for")[0]), facts[UPPER_BOUND]
        best_of_all = max(best_of_all, best)
        problems += [f"{finding.rule}: {facts[PREDICTED]}, but {bounds}" for bound in speedups(bounds) if bound < best]
    together = dict(headline(diagnosis).facts)
    for name, text in together.items():
        if name.startswith("Upper bound with") and speedups(text)[0] < best_of_all:
            problems.append(f"{name}: {text}, but a range reaches {best_of_all}x")
    return problems


@pytest.mark.parametrize("make", [pytest.param(make, id=f"{rule}-{name}") for rule, _, name, make in ALL])
def test_no_range_in_the_report_of_a_case_reaches_above_a_bound(make):
    assert ranges_above_bounds(diagnosis_of(make)) == []


@pytest.mark.parametrize("path", every_nth(PATHS, 3))
def test_no_range_in_the_report_of_a_dataset_reaches_above_a_bound(path):
    assert ranges_above_bounds(gpulab.diagnose(gpulab.load(path))) == []


def test_a_gain_of_steps_is_also_given_for_the_loop_with_its_evaluations():
    diagnosis = diagnosis_of(provoked_by_code_in_eval_mode)  # training takes 8 of 17 parts of the time
    gain = Gain(step_ns=80 * MS, best_ns=20 * MS, worst_ns=40 * MS, floor_ns=10 * MS, basis="")
    steps = replace(diagnosis.first, gain=gain, from_steps=True)
    facts = dict(finding_answer(steps, diagnosis).facts)
    assert speedups(facts[PREDICTED]) == [2.0, 4.0]
    assert speedups(facts[OF_LOOP]) == [round(170 / 130, 2), round(170 / 110, 2)]
    # A gain of the mean step counts the evaluations already.
    assert OF_LOOP not in dict(finding_answer(diagnosis.first, diagnosis).facts)


@pytest.mark.parametrize(
    ("worst", "best", "text"),
    [(1.5, 2.5, "1.50-2.50x"), (2.0, 2.0, "2.00x"), (1.55, 62.3, "1.55x to over 20x"), (30, 62, "over 20x")],
)
def test_a_range_has_no_larger_end_than_a_bound_may_have(worst, best, text):
    assert speedups_text(worst, best) == text


@pytest.mark.parametrize("make", [pytest.param(make, id=f"{rule}-{name}") for rule, _, name, make in ALL])
def test_the_report_of_a_case_agrees_with_itself(make):
    assert disagreements(diagnosis_of(make)) == []


@pytest.mark.parametrize("path", every_nth(PATHS, 3))
def test_the_report_of_a_dataset_agrees_with_itself(path):
    assert disagreements(gpulab.diagnose(gpulab.load(path))) == []


@pytest.mark.parametrize("path", every_nth(PATHS, 3))
def test_every_part_of_a_step_lies_in_the_range_beside_it(path):
    diagnosis = gpulab.diagnose(gpulab.load(path))
    step, ledger = diagnosis.step, diagnosis.ledger
    if step is None or step.is_mean:
        pytest.skip("no ledger, or that of a mean step, which holds rare causes")
    for key, part_ns in step.part_ns.items():
        low_ns, high_ns = (step.unprofiled_frac(key) * limit_ns for limit_ns in ledger.range_ns(key))
        tolerance_ns = POINTS / 100 * step.step_ns
        assert low_ns - tolerance_ns <= part_ns <= high_ns + tolerance_ns, key


@pytest.mark.full
def test_the_reports_of_shared_traces_agree_with_themselves(shared):
    problems = {
        path.name: disagreements(gpulab.diagnose(gpulab.load(path)))
        for path in sorted((shared / "traces").glob("*.json.gz"))
    }
    assert {name: texts for name, texts in problems.items() if texts} == {}


@pytest.mark.parametrize("make", [pytest.param(make, id=f"{rule}-{name}") for rule, _, name, make in ALL[::12]])
def test_the_table_of_a_report_shows_the_step_that_gains_are_about(make):
    diagnosis = diagnosis_of(make)
    if diagnosis.step is None:
        pytest.skip("without events there is no ledger")
    step = diagnosis.step
    assert sum(step.part_ns.values()) == step.step_ns
    table = next(block for block in ledger_blocks(diagnosis.ledger, step) if isinstance(block, TableBlock))
    total = table.rows[-1].cells
    assert total[2] == "100.0 %"
