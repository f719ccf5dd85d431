"""Lines by samples of the main thread: those of the loop count, those of pauses and of other code do not."""

import gpulab
from gpulab.analysis.steps.sampled_lines import MIN_SAMPLES, busiest_functions, sampled_lines
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from tests.support.runs.made_runs import event, host_sample, run_of, stepped

BACKWARD = {"frame": "train (train.py:40)", "called": "torch._tensor.Tensor.backward"}
FORWARD = {"frame": "Net.forward (train.py:12)", "called": "torch.nn.modules.linear.Linear.forward"}


def step(start_ms):
    return [event(EventKind.OP, "aten::mm", start_ms, 90.0)]


def run_with(samples, **more):
    return run_of(stepped(step), samples=samples, **more)


def lines(run):
    sampled = sampled_lines(run, gpulab.diagnose(run).steps)
    return sampled and {line.line: (line.call, line.frac) for line in sampled.lines}


def every_10_ms(start_ms, end_ms, **texts):
    return [host_sample(at_ms, **texts) for at_ms in range(start_ms, end_ms, 10)]


def test_each_line_has_its_share_of_the_samples_and_the_function_that_it_called():
    run = run_with([*every_10_ms(0, 450, **BACKWARD), *every_10_ms(450, 600, **FORWARD)])
    assert lines(run) == {
        "train (train.py:40)": ("torch._tensor.Tensor.backward", 0.75),
        "Net.forward (train.py:12)": ("torch.nn.modules.linear.Linear.forward", 0.25),
    }


def test_samples_after_the_loop_and_in_pauses_of_the_profiler_do_not_count():
    samples = [*every_10_ms(0, 300, **BACKWARD), *every_10_ms(300, 400, **FORWARD)]
    later = every_10_ms(600, 900, frame="save (train.py:90)", called="torch.serialization.save")
    run = run_with([*samples, *later], pauses=[(300, 400)])
    assert lines(run) == {"train (train.py:40)": ("torch._tensor.Tensor.backward", 1.0)}


def test_a_few_samples_say_nothing():
    assert lines(run_with(every_10_ms(0, 10 * (MIN_SAMPLES - 1), **BACKWARD))) is None
    assert lines(run_with(every_10_ms(0, 10 * MIN_SAMPLES, **BACKWARD))) is not None


def test_a_sample_without_a_line_of_the_user_does_not_count():
    run = run_with([*every_10_ms(0, 300, **BACKWARD), *every_10_ms(300, 600)])
    assert lines(run) == {"train (train.py:40)": ("torch._tensor.Tensor.backward", 1.0)}


def test_the_report_names_lines_and_functions_without_their_modules():
    run = run_with([*every_10_ms(0, 450, **BACKWARD), *every_10_ms(450, 600, **FORWARD)])
    table = str(report(run)).split("Lines that take the most time")[1]
    rows = [line.split() for line in table.splitlines() if line.endswith(" %")]
    assert rows[0] == ["train", "(train.py:40)", "Tensor.backward", "75", "%"]
    assert rows[1] == ["Net.forward", "(train.py:12)", "Linear.forward", "25", "%"]


def test_a_run_without_samples_has_no_table():
    assert "Lines that take the most time" not in str(report(run_of(stepped(step))))


FIT = "Trainer.fit > Trainer.run_epoch"


def shares(**numbers):
    """Shares of the busiest functions, if `numbers` samples have the path with this key's value in PATHS."""
    paths = [PATHS[key] for key, number in numbers.items() for _ in range(number)]
    return {function.name: function.frac for function in busiest_functions(paths, len(paths))}


PATHS = {
    "step": f"{FIT} > Adam.step",
    "open": f"{FIT} > Dataset.__getitem__ > Image.open > ImageFile.load",
    "resize": f"{FIT} > Dataset.__getitem__ > Image.resize",
    "fit": FIT,
    "torch": None,
}


def test_the_innermost_functions_with_a_large_share_are_named():
    assert shares(step=50, open=30, resize=20) == {
        "Adam.step": 0.5,
        "Image.open -> ImageFile.load": 0.3,
        "Image.resize": 0.2,
    }


def test_a_function_is_named_with_the_outermost_one_that_does_hardly_anything_else():
    assert shares(step=60, open=38, resize=2) == {"Adam.step": 0.6, "Dataset.__getitem__ -> ImageFile.load": 0.4}


def test_shares_of_functions_do_not_overlap():
    for numbers in ({"step": 9, "open": 82, "resize": 9}, {"step": 20, "open": 70, "resize": 8, "fit": 2}):
        assert sum(shares(**numbers).values()) <= 1.0


def test_functions_with_small_shares_and_other_samples_are_not_named():
    assert shares(step=2, torch=98) == {}
    assert shares(step=7, torch=93) == {}
    assert shares(step=8, torch=92) == {"Trainer.run_epoch -> Adam.step": 0.08}


def test_the_function_that_the_line_calls_names_itself_only_if_nothing_within_it_does():
    assert shares(fit=100) == {"Trainer.run_epoch": 1.0}
    assert {f.name for f in busiest_functions(["Trainer.fit"] * 10, 10)} == {"Trainer.fit"}


def test_the_report_lists_functions_of_libraries_below_the_line_that_calls_them():
    fit = {"frame": "train.py line 9", "called": "lib.trainer.Trainer.fit"}
    steps = every_10_ms(0, 450, **fit, library_path=PATHS["step"])
    run = run_with([*steps, *every_10_ms(450, 600, **fit, library_path=PATHS["resize"])])
    table = str(report(run)).split("Lines that take the most time")[1]
    rows = [line.split() for line in table.splitlines() if line.endswith(" %")]
    assert rows[0] == ["train.py", "line", "9", "lib.trainer.Trainer.fit", "100", "%"]
    assert rows[1] == ["in", "Adam.step", "75", "%"]
    assert rows[2] == ["in", "Dataset.__getitem__", "->", "Image.resize", "25", "%"]
