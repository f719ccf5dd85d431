"""Two runs side by side, and what this machine is."""

import dataclasses
import re

import pytest
from made import NO_WORKERS, event, loader_call, run_of, stepped
from reading import DECORATION, SURVIVING_CSS, Page, numbers

from gpulab.comparison import compare
from gpulab.run import Gap, Gpu, Machine
from gpulab.tables import Kind
from gpulab.views import comparison, info


def run(wait_ms, name, *, workers=0, work_ms=60):
    loader = dataclasses.replace(NO_WORKERS, workers=workers) if workers else NO_WORKERS
    step_ms = wait_ms + work_ms
    events = stepped(
        lambda at: [loader_call(at, wait_ms, workers), event(Kind.KERNEL, "ampere_sgemm", at + wait_ms, work_ms)],
        step_ms=step_ms,
        count=8,
    )
    return run_of(events, loaders=[loader], name=name)


@pytest.fixture
def mended():
    return comparison(compare(run(40, "before"), run(3, "after", workers=4)))


def test_the_answer_comes_first_with_both_step_times(mended):
    lines = repr(mended).splitlines()
    assert lines[0] == "1.59x as fast: before takes 100 ms a step, after 63.0 ms."
    assert any(line.startswith("Step time before: 100 ms (median of 6") for line in lines)
    assert any(line.startswith("Ratio of the medians 1.59x, 95 % interval 1.59-1.59x") for line in lines)


def test_predicted_stands_beside_measured(mended):
    text = repr(mended)
    assert re.search(r"^Predicted 100 -> [\d.]+(-[\d.]+)? ms", text, re.MULTILINE)
    assert re.search(r"^Measured 100 -> 63 ms \(1\.59x\): inside the predicted range", text, re.MULTILINE)


def test_a_missed_prediction_says_so_and_why():
    text = repr(comparison(compare(run(40, "before"), run(3, "after", workers=4, work_ms=90))))
    assert "outside the predicted range" in text
    assert "matrix kernels grew by 30 ms" in text


def test_no_difference_is_called_none():
    same = run(40, "before")
    text = repr(comparison(compare(same, dataclasses.replace(same, name="again"))))
    assert text.startswith("No difference above the noise: before takes 100 ms a step, again 100 ms.")


def test_a_slower_run_is_called_slower():
    text = repr(comparison(compare(run(3, "before", workers=4), run(40, "after"))))
    assert text.startswith("Slower: 1.59x the time: before takes 63.0 ms a step, after 100 ms.")


def test_the_differences_of_the_parts_sum_to_that_of_the_step(mended):
    rows = re.findall(r"^ +([A-Za-z ]+?)  +[\d.<]+ +[\d.<]+ +([+-]?[\d.]+)$", repr(mended), re.MULTILINE)
    differences = dict(rows)
    assert differences["waiting for data"] == "-37.0"
    total = float(differences.pop("step"))
    assert sum(map(float, differences.values())) == pytest.approx(total, abs=0.2)


def test_both_ledgers_are_drawn_on_one_scale(mended):
    widths = re.findall(r'<div style="width:([\d.]+)%"><div style="display:flex;gap', mended._repr_html_())
    assert [float(width) for width in widths] == pytest.approx([100, 63], abs=0.1)


def test_findings_are_told_as_resolved_new_and_remaining(mended):
    text = repr(mended)
    assert re.search(r"resolved: GPU idle 40 % of each step: the main process builds the batches", text)
    assert "remaining: none" in text


def test_text_and_html_of_a_comparison_hold_the_same_numbers(mended):
    page = Page(mended._repr_html_())
    assert numbers(repr(mended)) == numbers(page.text)
    assert page.css - DECORATION <= SURVIVING_CSS


MACHINE = Machine(
    gpus=(Gpu(index=0, name="<b>H100</b>", uuid="GPU-1", memory_bytes=80 * 2**30, multiprocessors=132),),
    driver="550.54",
    torch="2.13.0+cu126",
    cores=112,
    cores_allowed=16.0,
    memory_bytes=2 * 2**40,
    memory_limit_bytes=128 * 2**30,
    cuda_visible_devices="",
    gaps=(Gap(what="temperature", why="not supported in a MIG slice", fix="ask for the whole GPU"),),
)


def test_a_machine_is_told_in_facts_and_gaps():
    text = repr(info(MACHINE))
    assert text.startswith("1 GPU here; 1 thing cannot be measured.")
    assert "cores: 112, 16 may be used" in text
    assert "memory: 2.0 TiB, 128 GiB allowed by cgroup" in text
    assert "CUDA_VISIBLE_DEVICES: empty: every GPU is hidden" in text
    assert all(words in text for words in ("temperature", "not supported in a MIG slice", "ask for the whole GPU"))


def test_what_a_machine_does_not_tell_is_not_zero():
    text = repr(info(Machine()))
    assert "No GPU here: the CPU is the device" in text
    assert "memory: not measured" in text
    assert "PyTorch: not installed" in text
    assert not re.search(r": 0\b", text)
    assert "MIG: not told" in repr(info(MACHINE))


def test_what_can_be_measured_is_told_by_what_is_there():
    bare = repr(info(Machine()))
    assert "of the cell" in bare
    assert "of the loop" not in bare
    assert "kernels" not in repr(info(dataclasses.replace(MACHINE, torch="2.13.0+cpu")))
    assert "by CUPTI" in repr(info(dataclasses.replace(MACHINE, torch="2.13.0+cu130")))


def test_a_machine_in_html_is_safe_and_the_same():
    page = Page(info(MACHINE)._repr_html_())
    assert "b" not in page.tags
    assert "<b>H100</b>" in page.text
    assert numbers(repr(info(MACHINE))) == numbers(page.text)
