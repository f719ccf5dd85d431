"""Runs side by side, stories of several, and what this machine is."""

import dataclasses
import re

import pytest

from gpulab.comparison import compare
from gpulab.run import Gap, Gpu, Machine
from gpulab.sensors.nvidia.nvml_errors import NO_DRIVER
from gpulab.tables import EVENTS, HOST_SAMPLES, MARKS, EventKind
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.info import info
from tests.support.front_end.read_views import DECORATION, SURVIVING_CSS, Page, numbers
from tests.support.runs.made_runs import (
    NO_WORKERS,
    awaited,
    event,
    gpu_series,
    host_sample,
    launched_kernel,
    loader_call,
    mark,
    on_gpu,
    rows,
    run_of,
    stepped,
)


def run(wait_ms, name, *, workers=0, work_ms=60):
    loader = dataclasses.replace(NO_WORKERS, workers=workers) if workers else NO_WORKERS
    step_ms = wait_ms + work_ms
    events = stepped(
        lambda at: [
            loader_call(at, wait_ms, workers),
            *awaited("ampere_sgemm", at + wait_ms, work_ms, number=round(at) + 1),
        ],
        step_ms=step_ms,
        count=8,
    )
    return run_of(events, loaders=[loader], name=name)


@pytest.fixture
def mended():
    return comparison_view(compare(run(40, "before"), run(3, "after", workers=4)))


def test_the_answer_comes_first_with_both_step_times(mended):
    lines = repr(mended).splitlines()
    assert re.match(r"1\.59x .*100 ms .*before.* 63 ms .*after", lines[0])
    assert any(re.match(r"before: median 100 ms \(6 steps", line) for line in lines)
    assert any(re.match(r"Ratio .*1\.59x, 95 % interval 1\.5\d-1\.6\dx", line) for line in lines)


def test_predicted_and_measured_step_times_are_both_shown(mended):
    text = repr(mended)
    assert re.search(r"^Predicted step time: 100 -> [\d.]+(-[\d.]+)? ms", text, re.MULTILINE)
    assert re.search(r"^Measured step time: 100 -> 63 ms \(1\.59x\): inside the predicted range", text, re.MULTILINE)


def test_a_missed_prediction_says_so_and_why():
    text = " ".join(repr(comparison_view(compare(run(40, "before"), run(3, "after", workers=4, work_ms=90)))).split())
    assert "outside the predicted range" in text
    assert "matrix kernels grew by 30 ms" in text


def test_a_crashed_run_is_named_before_the_verdict_and_its_findings_are_unknown():
    before, crashed = run(40, "before"), dataclasses.replace(run(3, "after"), outcome="ValueError")
    text = " ".join(repr(comparison_view(compare(before, crashed))).split())
    assert re.match(r'"after" crashed \(ValueError\) after \d+ steps\. ', text)
    assert "resolved: none" in text
    assert "It was not found in after, which crashed, so it is not known whether it is gone." in text
    assert "which is resolved" not in text
    story = repr(comparison_view(compare(before, crashed, run(3, "last", workers=4))))
    assert story.startswith('"after" crashed (ValueError) after ')


def test_the_table_of_operators_fits_the_lines_of_a_text():
    def side(name, length_ms):
        operators = [("aten::_log_softmax_backward_data_of_a_layer", 5, length_ms), ("aten::add", 80, 10)]
        return run_of(
            stepped(lambda at: [event(EventKind.OP, op, at + start, ms) for op, start, ms in operators]), name=name
        )

    text = repr(comparison_view(compare(side("before", 60), side("after", 20))))
    assert re.search(r"^ +per step +change +count before +after +ms before +after +difference$", text, re.MULTILINE)
    assert "1 other, little changed" in text


def test_equal_runs_show_no_difference():
    same = run(40, "before")
    text = repr(comparison_view(compare(same, dataclasses.replace(same, name="again"))))
    assert re.match(r"No difference .*100 ms .*before.* 100 ms .*again", text)


def test_a_slower_run_is_called_slower():
    text = repr(comparison_view(compare(run(3, "before", workers=4), run(40, "after"))))
    assert re.match(r"Slower.* 1\.59x .*63 ms .*before.* 100 ms .*after", text)


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
    assert [finding.rule for finding in mended.comparison.resolved] == ["no_workers"]
    assert re.search(r"resolved: Data loading leaves the GPU idle for\s+40 %", text)
    assert "remaining: none" in text


def test_text_and_html_of_a_comparison_hold_the_same_numbers(mended):
    page = Page(mended._repr_html_())
    assert numbers(repr(mended)) == numbers(page.text)
    assert page.css - DECORATION <= SURVIVING_CSS


def test_a_single_recording_states_the_allowance_between_runs(mended):
    assert mended.comparison.between_runs_frac == 0.01
    assert re.search(r"includes 1\.0 % at each end", " ".join(repr(mended).split()))


def test_the_effect_of_other_programs_is_explained():
    crowd = {"before": 0.02, "after": 0.5}
    sides = [run(wait_ms, name) for wait_ms, name in ((40, "before"), (3, "after"))]
    sides = [
        dataclasses.replace(
            side,
            host_rows=rows(HOST_SAMPLES, [_sample(at, crowd[side.name]) for at in range(0, 900, 100)]),
            machine=Machine(cores=2, cores_allowed=2.0),
        )
        for side in sides
    ]
    text = " ".join(repr(comparison_view(compare(*sides))).split())
    assert "The main thread waited for a core for 2 % of the time before and 50 % after. +30.2" in text
    assert "An effect above zero makes the second run slower." in text
    assert "The times above are not corrected for it." in text


def _sample(at_ms, crowd):
    """A sample while other programs use this many of two cores, for which the main thread waits as long."""
    cpu_s = at_ms / 1e3
    return host_sample(
        at_ms, process_cpu_s=cpu_s, main_cpu_s=cpu_s, cpu_frac=(1 + crowd) / 2, main_delayed_s=crowd * at_ms / 1e3
    )


def test_repeated_runs_are_listed():
    before = [run(40, f"before {number}") for number in (1, 2)]
    text = repr(comparison_view(compare(before, [run(3, f"after {number}", workers=4) for number in (1, 2)])))
    assert re.match(r"1\.59x .*100 ms .*before.* 63 ms .*after", text)
    assert re.search(r"before: 100 ms per step \(.* of 2 runs: 100, 100 ms\)", text)
    assert "2 runs of before: recorded on Made GPU" in text
    assert "in 2 runs each" in " ".join(text.split())


def test_reasons_of_a_missed_prediction_are_listed_with_their_effect():
    view = comparison_view(compare(run(40, "before"), run(3, "after", workers=4, work_ms=90)))
    (reason,) = view.comparison.reasons
    assert reason.effect_ns == 30_000_000
    assert re.search(r"^ +Matrix kernels .*30 ms .* \+30\.0$", repr(view), re.MULTILINE)


def test_kernels_that_changed_are_listed_and_sum_up():
    text = repr(comparison_view(compare(run(40, "before"), run(3, "after", workers=4, work_ms=90))))
    assert "Kernels: 0 added, 0 removed, 1 changed, 0 with little or no change" in text
    assert re.search(r"ampere_sgemm +changed +1 +1 +60\.00 +90\.00 +\+30\.00", text)
    assert re.search(r"all kernels +1 +1 +60\.00 +90\.00 +\+30\.00", text)


def test_unchanged_kernels_are_counted_as_the_same(mended):
    assert "Kernels: 0 added, 0 removed, 0 changed, 1 with little or no change" in repr(mended)
    assert "ampere_sgemm" not in repr(mended)


def test_sizes_are_told_as_such_and_scalars_left_out():
    shapes = [[32, 512], [512, 64], [], []]

    def step(at):
        recorded = {"shapes": shapes, "dtypes": ["float"]}
        return launched_kernel("gemm", at + 1, 50, number=round(at) + 1, op="aten::mm", **recorded)

    compared = compare(on_gpu(stepped(step), name="sized"), run(40, "other"))
    assert "gemm 32x512 512x64  removed" in repr(comparison_view(compared))


def measured(name, joule_per_s, rss):
    samples = [host_sample(at, rss_bytes=float(rss)) for at in range(0, 800, 50)]
    gpu = gpu_series(lambda number: {"energy_j": joule_per_s * 0.025 * number}, count=32)
    return dataclasses.replace(run(40, name), host_rows=rows(HOST_SAMPLES, samples), gpu_rows=gpu)


def test_memory_and_energy_of_both_runs_are_shown_if_measured():
    text = repr(comparison_view(compare(measured("before", 200, 2**30), measured("after", 100, 2**31))))
    assert re.search(r"memory of the main process +1 GiB +2 GiB +\+100\.0 %", text)
    assert re.search(r"energy per step +20 J +10 J +-50\.0 %", text)
    assert "GPU memory allocated" not in text


def test_a_value_measured_in_one_run_only_is_not_zero_in_the_other():
    text = repr(comparison_view(compare(measured("before", 200, 2**30), run(40, "after"))))
    assert re.search(r"energy per step +20 J +not measured$", text, re.MULTILINE)


def test_sides_of_one_name_are_numbered():
    text = repr(comparison_view(compare(run(40, "same"), run(40, "same"))))
    assert re.match(r"No difference .*100 ms .*same \(1\).* 100 ms .*same \(2\)", text)


def test_what_cannot_be_judged_is_not_called_no_difference():
    short = dataclasses.replace(run(40, "short"), event_rows=EVENTS.empty(), mark_rows=marks_of(100, count=4))
    text = repr(comparison_view(compare(short, short)))
    assert text.startswith("No verdict: ")
    assert "fewer than 3 steps" in text


@pytest.fixture
def story():
    return comparison_view(
        compare(run(40, "plain"), run(3, "workers"), run(3, "half", work_ms=25), run(3, "again", work_ms=25))
    )


def test_a_story_starts_with_the_total_change(story):
    lines = repr(story).splitlines()
    assert re.match(r"3\.57x .*3 changes.*100 ms .*plain.* 28 ms .*again", lines[0])
    assert re.match(r"workers: 37 ms .*less than plain \(1\.59x, ", lines[1])
    assert "waiting for data -37 ms" in " ".join(lines[1:4])
    assert any(re.match("again: no difference .*half", line) for line in lines)


def test_the_changes_of_a_story_sum_to_its_last_row(story):
    table = repr(story).split("Gain of each change")[1].split("Where the step time goes")[0]
    changes = dict(re.findall(r"^ +(workers|half|again) +[\d.]+ +(\S+)", table, re.MULTILINE))
    changes |= dict(re.findall(r"^ +(total) +(\S+)", table, re.MULTILINE))
    total = float(changes.pop("total"))
    assert sum(map(float, changes.values())) == pytest.approx(total, abs=0.02)
    assert total == -72


def test_each_run_of_a_story_is_a_bar_on_one_scale(story):
    widths = re.findall(r'<div style="width:([\d.]+)%"><div style="display:flex;gap', story._repr_html_())
    assert [float(width) for width in widths] == pytest.approx([100, 63, 28, 28], abs=0.1)


def test_text_and_html_of_a_story_hold_the_same_numbers(story):
    page = Page(story._repr_html_())
    assert numbers(repr(story)) == numbers(page.text)
    assert page.css - DECORATION <= SURVIVING_CSS


def test_a_story_without_ledgers_tells_times_alone():
    def sensors_only(name):
        return dataclasses.replace(run(40, name), event_rows=EVENTS.empty(), mark_rows=marks_of(100))

    text = repr(comparison_view(compare(*map(sensors_only, "abc"))))
    assert "No difference above the noise after 2 changes" in text
    assert "Where the step time goes" not in text


def marks_of(step_ms, count=30):
    return rows(MARKS, [mark(number * step_ms, 1) for number in range(count)])


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


def test_info_lists_facts_and_gaps():
    text = repr(info(MACHINE))
    assert re.match("1 GPU .*1 .*unavailable", text)
    assert re.search("cores: 112, 16 ", text)
    assert "memory: 2 TiB, 128 GiB allowed by cgroup" in text
    assert "CUDA_VISIBLE_DEVICES: empty" in text
    assert all(part in text for part in ("temperature", "not supported in a MIG slice", "ask for the whole GPU"))


def test_unknown_facts_of_a_machine_are_not_zero():
    text = repr(info(Machine()))
    assert text.startswith("No GPU")
    assert "memory: not measured" in text
    assert "PyTorch: not installed" in text
    assert not re.search(r": 0\b", text)
    assert "MIG: unknown" in repr(info(MACHINE))


def test_a_machine_without_a_gpu_says_so_once():
    gap = Gap(what="GPU sensors", why=NO_DRIVER, fix="nothing to do")
    for gaps in ((gap,), ()):
        lines = repr(info(Machine(gaps=gaps))).splitlines()
        assert len([line for line in lines if re.search("GPU|CUDA|NVIDIA", line)]) == 1
        assert not any("Unavailable" in line for line in lines)
    other = Gap(what="GPU sensors", why="the driver is not loaded", fix="sudo modprobe nvidia")
    assert "sudo modprobe nvidia" in repr(info(Machine(gaps=(other,))))


def test_available_measurements_depend_on_gpu_and_torch():
    text = repr(info(Machine()))
    assert "cell: CPU" in text
    assert "training loop:" not in text
    assert "kernels" not in repr(info(dataclasses.replace(MACHINE, torch="2.13.0+cpu")))
    assert "CUPTI" in repr(info(dataclasses.replace(MACHINE, torch="2.13.0+cu130")))


def test_a_machine_in_html_is_safe_and_the_same():
    page = Page(info(MACHINE)._repr_html_())
    assert "b" not in page.tags
    assert "<b>H100</b>" in page.text
    assert numbers(repr(info(MACHINE))) == numbers(page.text)
