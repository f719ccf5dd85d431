"""The magics in a live kernel: their lines, their results, and failures of gpulab itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from IPython.core.error import UsageError

from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.magics.arguments import PROFILE, option_choices, parse_line, split_statement
from gpulab.magics.commands import GpuProfileMagics
from gpulab.magics.completion import next_words
from tests.support.front_end.kernel import Kernel, Reply

LOOP = """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel]) -> Kernel:
    return shared_kernel("import torch, gpulab; torch.set_num_threads(1)", "%load_ext gpulab")


@pytest.fixture
def broken(live: Kernel) -> Iterator[Kernel]:
    """A kernel for cells that break gpulab; repaired afterwards."""
    live.run("from gpulab.capture.session import Session\nfrom gpulab.magics import recording")
    live.run("kept, kept_report = dict(vars(Session)), recording.diagnosis_report")
    yield live
    live.run(
        "for name in ('start', 'stop'): setattr(Session, name, kept[name])\nrecording.diagnosis_report = kept_report"
    )


def displayed_text(reply: Reply) -> str:
    return "\n".join(text for kind, text in reply.outputs if kind == "display_data")


# The line.


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train(x)", ("", "train(x)")),
        ("-o r train('it''s')", ("-o r", "train('it''s')")),
        ("--level sensors --steps 3  f(a,  'b  c') # why", ("--level sensors --steps 3", "f(a,  'b  c') # why")),
        ("--level=deep f()", ("--level=deep", "f()")),
        ("--save 'my run.html' f()", ("--save 'my run.html'", "f()")),
        ("--no-live f() - 1", ("--no-live", "f() - 1")),
        ("-o r -- -x", ("-o r", "-x")),
        ("-h", ("-h", "")),
        ("", ("", "")),
    ],
)
def test_options_are_split_from_a_statement_that_stays_as_typed(line, expected):
    assert split_statement(line) == expected


@pytest.mark.parametrize("line", ["before after  # the user's comment", "before after #1", '"before" after # "x'])
def test_a_comment_ends_the_line_of_a_magic(line):
    options = parse_line(GpuProfileMagics.gpucompare, line)
    assert (options.before, options.after, options.more) == ("before", "after", [])


def test_a_hash_in_a_word_or_in_quotes_is_no_comment():
    options = parse_line(GpuProfileMagics.gpucompare, "'#1.gpulab' run#2.gpulab 'a # b.gpulab'")
    assert (options.before, options.after, options.more) == ("#1.gpulab", "run#2.gpulab", ["a # b.gpulab"])


def test_every_option_of_the_profile_line_is_documented():
    text = GpuProfileMagics.gpuprofile.__doc__
    assert all(option in text for option in option_choices(PROFILE))
    assert "%%gpuprofile [options] [NAME]" in text


@pytest.mark.parametrize("name", ["before", "run2", "lr-0.1", "Größe", "_x"])
def test_a_word_names_a_run(live, name):
    assert live.run(f"%%gpuprofile {name} --level sensors\n1").status == "ok"
    assert live.value(f"{name!r} in gpulab.runs") is True


def test_runs_without_a_name_are_counted(live):
    live.run("n = gpulab.runs.free_name()")
    name = live.value("n")
    live.run("%%gpuprofile --level sensors\n1")
    assert live.value(f"gpulab.runs.last.name == {name!r}") is True
    assert live.value("gpulab.runs.free_name()") != name


def test_a_repeated_name_replaces_the_run(live):
    for outcome, cell in (("ok", "1"), ("ZeroDivisionError", "1 / 0")):
        live.run(f"%%gpuprofile again --level sensors\n{cell}")
        assert live.value("gpulab.runs['again'].outcome") == outcome
    assert live.value("sum(name == 'again' for name in gpulab.runs)") == 1


def test_out_binds_the_run_also_after_an_error(live):
    live.run("%%gpuprofile named -o mine --level sensors\n1")
    assert live.value("mine is gpulab.runs['named']") is True
    live.run("%%gpuprofile named -o mine --level sensors\n1 / 0")
    assert live.value("mine.outcome") == "ZeroDivisionError"


def test_level_and_steps_reach_the_recording(live):
    live.run("%%gpuprofile s --level sensors\n" + LOOP)
    assert live.value("gpulab.runs['s'].recording.level, len(gpulab.runs['s'].event_rows)") == ("sensors", 0)
    live.run("%%gpuprofile d -l deep -n 4\n" + LOOP)
    assert live.value("gpulab.runs['d'].recording.level") == "deep"
    assert live.value("len(gpulab.runs['d'].event_rows) > 0") is True


CUDA_LOOP = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def test_cuda_code_runs_on_a_gpu_that_is_not_there(live):
    text = displayed_text(live.run("%%gpuprofile cuda --virtual t4\n" + CUDA_LOOP))
    assert "Virtual T4, estimated." in text
    assert live.value("str(gpulab.runs['cuda'].source), torch.cuda.is_available()") == ("virtual T4, estimated", False)
    assert live.value("model.weight.device.type") == "cuda"  # its tensors stay, without numbers


def test_so_many_steps_are_recorded_on_a_gpu_that_is_not_there(live):
    text = displayed_text(live.run("%%gpuprofile few --virtual t4 --steps 4\n" + CUDA_LOOP))
    measured = " ".join(text.split()).partition("How this was measured")[2]
    steps, traced = map(int, re.search(r"\b(\d) steps, [^;]*; (\d) traced", measured).groups())
    # If this host is fast enough to run ahead of the T4, the steps are those of the GPU: there is one less.
    assert (steps, traced) == (6, 3) if "ran ahead" in measured else (steps, traced) == (7, 4)


def test_memory_that_a_virtual_gpu_lacks_is_refused_where_the_user_asked_for_it(live):
    reply = live.run("%%gpuprofile full --virtual t4\nimport torch\ntorch.empty(2**34, device='cuda')")
    assert "CUDA out of memory. Tried to allocate 64.00 GiB." in reply.traceback
    assert reply.traceback.count("line 3") == 1
    assert reply.traceback.count("gpulab/virtual/") == 1  # the one that Python calls
    assert "64 GiB" in displayed_text(reply)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--virtual h1000", "is not a GPU that gpulab knows"),
        ("--virtual t4 --level deep", "--level"),
        ("--virtual t4 --steps 0", "--steps 0"),
    ],
)
def test_a_line_that_asks_for_what_cannot_be_played_runs_nothing(live, line, why):
    live.run("ran = 0")
    assert why in live.run(f"%%gpuprofile wrong {line}\nran = 1").stderr
    assert live.value("ran") == 0


def test_config_sets_what_the_line_leaves_open_and_the_line_goes_before_it(live):
    try:
        assert live.run("%config GpuProfileMagics.level = 'sensors'").status == "ok"
        live.run("%%gpuprofile c\n1")
        assert live.value("gpulab.runs['c'].recording.level") == "sensors"
        live.run("%%gpuprofile c --level trace\n1")
        assert live.value("gpulab.runs['c'].recording.level") == "trace"
        refused = live.run("%config GpuProfileMagics.level = 'loud'")
        assert "loud" in refused.stdout + refused.stderr + refused.traceback
        live.run("%%gpuprofile c\n1")
        assert live.value("gpulab.runs['c'].recording.level") == "sensors"
    finally:
        live.run("%config GpuProfileMagics.level = 'trace'")
    assert "live" in live.run("%config GpuProfileMagics").stdout


@pytest.mark.parametrize("name", ["run.gpulab", "report.html", "with space.html"])
def test_save_writes_the_run_or_the_report(live, name):
    live.run(f"%%gpuprofile saved --save '{name}'\n" + LOOP)
    path = live.folder / name
    try:
        assert path.stat().st_size > 500
        if path.suffix == ".gpulab":
            live.run(f"loaded = gpulab.load({name!r})")
            assert live.value("loaded.name, len(loaded.event_rows) == len(gpulab.runs['saved'].event_rows)") == (
                "saved",
                True,
            )
        else:
            assert "saved" in path.read_text()
    finally:
        path.unlink()


# The statement form.


def test_a_statement_gives_its_value_and_assigns_its_names(live):
    assert live.run("%gpuprofile --level sensors 6 * 7").value == "42"
    assert live.run("%gpuprofile --level sensors 6 * 7;").value is None
    live.run("%gpuprofile -o r --level sensors made = [c for c in 'ab']")
    assert live.value("made, r.outcome") == (["a", "b"], "ok")
    live.run("value = %gpuprofile --level sensors 3 + 4")
    assert live.value("value") == 7


def test_a_statement_sees_the_names_of_the_function_around_it(live):
    live.run("def f(hidden):\n    %gpuprofile --level sensors hidden + 1\n    return hidden")
    assert live.run("f(3)").value == "3"


def test_a_failing_statement_shows_its_error_once_and_is_reported(live):
    reply = live.run("%gpuprofile -o r --level sensors 1 / 0")
    assert reply.status == "error"
    assert len(reply.errors) == 1
    assert "magics/" not in reply.traceback
    assert live.value("r.outcome") == "ZeroDivisionError"


def test_a_statement_is_needed(live):
    assert live.run("%gpuprofile --level sensors").content["ename"] == "UsageError"


# The other magics.


def test_gpureport_shows_a_run_again(live):
    live.run("%%gpuprofile first\n" + LOOP)
    live.run("%%gpuprofile second --level sensors\n1")
    by_name, last = live.run("%gpureport first"), live.run("%gpureport")
    assert "first" in by_name.value
    assert "second" in last.value
    assert set(by_name.of("execute_result")[0]["content"]["data"]) == {"text/plain", "text/html"}


def test_gpucompare_shows_two_runs(live):
    live.run("%%gpuprofile one\n" + LOOP)
    live.run("%%gpuprofile two\n" + LOOP)
    reply = live.run("%gpucompare one two")
    assert reply.status == "ok", reply.traceback
    assert "one" in reply.value
    assert "two" in reply.value


def test_gpucompare_of_three_runs_tells_what_each_change_gave(live):
    for name in ("one", "two", "three"):
        live.run(f"%%gpuprofile {name}\n" + LOOP)
    reply = live.run("%gpucompare one two three")
    assert reply.status == "ok", reply.traceback
    assert all(name in reply.value for name in ("one", "two", "three"))


def test_a_cell_can_show_the_comparison_with_an_earlier_run_instead_of_its_report(live):
    live.run("%%gpuprofile one\n" + LOOP)
    report = displayed_text(live.run("%%gpuprofile two\n" + LOOP))
    compared = displayed_text(live.run("%%gpuprofile two --compare one\n" + LOOP))
    assert "Ratio of the medians" in compared
    assert "Ratio of the medians" not in report
    assert "%gpureport two" in compared
    again = displayed_text(live.run("%%gpuprofile two -c two\n" + LOOP))  # the earlier run of this name
    assert "Ratio of the medians" in again
    live.run("gpulab.save(gpulab.runs['one'], 'one.gpulab')")
    from_file = displayed_text(live.run("%%gpuprofile two --compare one.gpulab\n" + LOOP))
    (live.folder / "one.gpulab").unlink()
    assert "Ratio of the medians" in from_file


def test_a_run_that_cannot_be_compared_is_reported_with_the_reason(live):
    live.run("%%gpuprofile one\n" + LOOP)
    shown = displayed_text(live.run("%%gpuprofile stepless --level sensors --compare one\n1"))
    assert shown.startswith("gpulab:")
    assert "stepless" in shown
    assert "Ratio of the medians" not in shown


def test_a_cell_runs_only_if_the_run_to_compare_with_exists(live):
    live.run("%%gpuprofile one\n" + LOOP)
    live.run("ran = 0")
    assert "did you mean one?" in live.run("%%gpuprofile two --compare on\nran = 1").stderr
    assert "no_file.gpulab" in live.run("%%gpuprofile two --compare no_file.gpulab\nran = 1").stderr
    assert "~nobody.gpulab" in live.run("%%gpuprofile two --compare ~nobody.gpulab\nran = 1").stderr
    assert live.value("ran") == 0


TRAINING = """
for inputs, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), labels).backward()
    optimizer.step()
    history.append(1)
"""
OBJECTS = """
import time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 160
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4), torch.ones(4)
loader = DataLoader(Slow(), batch_size=4)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
"""


@pytest.mark.full
def test_gpufix_measures_the_fix_of_a_cell_and_leaves_its_variables(live):
    live.run(OBJECTS)
    report = live.run("%%gpuprofile fixable\n" + TRAINING)
    assert "%gpufix fixable" in displayed_text(report)
    reply = live.run("%gpufix fixable --seconds 5")
    assert reply.status == "ok", reply.traceback
    assert "inserted at the start of the cell" in reply.value
    assert live.run("len(history), loader.num_workers").value == "(40, 0)"


@pytest.mark.full
def test_gpufix_measures_all_fixes_of_a_cell(live):
    live.run(OBJECTS)
    live.run("%%gpuprofile fixable\n" + TRAINING)
    reply = live.run("%gpufix fixable --all --seconds 2")
    assert reply.status == "ok", reply.traceback
    assert "runs the cell unchanged and with" in displayed_text(reply)
    # Both load faster, and which one is faster depends on what else the machine does.
    assert re.match(r"The fix for no_workers(: cached)? makes the cell ", reply.value)
    assert re.search(r"^no_workers  +faster", reply.value, re.MULTILINE)
    assert re.search(r"^no_workers: cached  +", reply.value, re.MULTILINE)
    assert live.run("len(history), loader.num_workers").value == "(40, 0)"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%gpufix nowhere", "RunError"),
        ("%gpufix --all --rule no_workers", "UsageError"),
        ("%gpufix nowhere --all", "RunError"),
        ("%gpufix --seconds 0", "UsageError"),
        ("%gpufix untouched --rule no_workers", "CaptureError"),
    ],
)
def test_gpufix_refuses_what_it_cannot_try(live, line, error):
    live.run("%%gpuprofile untouched --level sensors\n1")
    assert live.run(line).content["ename"] == error


def predicted(reply):
    return [line for line in reply.value.splitlines() if line.startswith("Predicted")]


@pytest.mark.alone("compares step times of two runs that were timed on this machine")
def test_gpucompare_holds_the_measurement_against_the_change_that_was_made(live):
    steady = LOOP.replace("    optimizer.zero_grad()", "    time.sleep(0.01)\n    optimizer.zero_grad()")
    for name in ("one", "two"):
        live.run(f"%%gpuprofile {name}\nimport time\n" + steady)
    reply = live.run("%gpucompare one two batch=x2")
    assert reply.status == "ok", reply.traceback
    assert predicted(reply) != predicted(live.run("%gpucompare one two"))
    refused = live.run("%gpucompare one two two batch=x2")
    assert refused.content["ename"] == "UsageError"
    assert "batch=x2" in refused.content["evalue"]


def test_gpuwhatif_predicts_of_the_run_it_names_or_of_the_last(live):
    live.run(
        "import dataclasses\nfrom gpulab.files.datasets import dataset\nfrom gpulab.capture.run_registry import runs"
    )
    live.run("runs.add(dataclasses.replace(dataset('case05').load(), name='one'))")
    first, last = live.run("%gpuwhatif one batch=x2"), live.run("%gpuwhatif batch=x2")
    assert first.status == "ok", first.traceback
    assert first.value.splitlines()[0].startswith("With batch=x2")
    assert last.value.splitlines()[0] == first.value.splitlines()[0]
    assert "batch=x2" in live.run("%gpuwhatif").value
    assert "the changes are" in live.run("%gpuwhatif one turbo").traceback


def test_gpuinfo_tells_what_this_machine_is(live):
    reply = live.run("%gpuinfo")
    assert reply.status == "ok", reply.traceback
    assert "torch" in reply.value.lower()


def test_gpuwhy_shows_the_page_of_a_rule_and_lists_them_all(live):
    assert "Similar symptoms" in live.run("%gpuwhy no_workers").value
    assert "no_workers" in live.run("%gpuwhy").value
    reply = live.run("%gpuwhy no_worker")
    assert reply.content["ename"] == "GpulabError"
    assert "did you mean no_workers?" in reply.traceback


@pytest.mark.parametrize("line", ["%gpureport nowhere", "%gpucompare nowhere two"])
def test_an_unknown_run_is_an_error_that_says_what_there_is(live, line):
    live.run("%%gpuprofile two --level sensors\n1")
    reply = live.run(line)
    assert reply.content["ename"] == "RunError"
    assert "nowhere" in reply.traceback
    assert "two" in reply.traceback
    assert "Traceback" not in reply.traceback


def test_a_comparison_needs_two_names(live):
    reply = live.run("%gpucompare two")
    assert reply.content["ename"] == "UsageError"
    assert "BEFORE AFTER" in reply.content["evalue"]


@pytest.mark.parametrize("magic", ["gpuprofile", "gpureport", "gpucompare", "gpuwhatif", "gpufix", "gpuinfo", "gpuwhy"])
def test_help_says_what_the_magic_does_and_takes(live, magic):
    text = displayed_text(live.run(f"%{magic} --help"))
    assert f"%{magic}" in text
    assert "--help" in text
    [payload] = live.run(f"%{magic}?").payload
    assert f"%{magic}" in payload["data"]["text/plain"]


# Completion.


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("%%gpuprofile --le", ["%%gpuprofile --level"]),
        ("%%gpuprofile before --l", ["%%gpuprofile before --level"]),
        ("%%gpuprofile --level s", ["%%gpuprofile --level sensors"]),
        ("%%gpuprofile -l ", [f"%%gpuprofile -l {level}" for level in ("deep", "sensors", "trace")]),
        ("%gpureport zeb", ["%gpureport zebra"]),
        ("%%gpuprofile two --compare zeb", ["%%gpuprofile two --compare zebra"]),
        ("%gpuwhy no_w", ["%gpuwhy no_workers"]),
        ("%gpucompare zebra zeb", ["%gpucompare zebra zebu-2"]),
        ("x = 1\n%gpureport zeb", ["x = 1\n%gpureport zebra", "x = 1\n%gpureport zebu-2"]),
        ("%gpureport zebu-", ["%gpureport zebu-2"]),
    ],
)
def test_tab_completes_options_values_and_runs(live, typed, expected):
    live.run("%%gpuprofile zebra --level sensors\n1")
    if "zebu" in "".join(expected):
        live.run("%%gpuprofile zebu-2 --level sensors\n1")
    assert sorted(live.complete(typed)) == expected


def test_tab_completes_the_names_of_the_magics(live):
    assert "%%gpuprofile" in live.complete("%%gpup")
    assert "%gpucompare" in live.complete("%gpuc")


@pytest.mark.full
def test_other_lines_complete_as_ever(live):
    live.run("zeppelin = 1")
    assert live.complete("zepp") == ["zeppelin"]


def test_a_change_is_offered_after_the_two_runs_it_lies_between(monkeypatch):
    monkeypatch.setattr("gpulab.magics.completion.runs", ["one", "two"])
    assert "workers=" in next_words("gpucompare", ["one", "two"])
    assert "workers=" not in next_words("gpucompare", ["one"])


def test_an_option_is_offered_once():
    assert "--level" not in next_words("gpuprofile", ["--level", "deep"])
    assert "--level" not in next_words("gpuprofile", ["-l", "deep"])
    assert "--steps" in next_words("gpuprofile", ["-l", "deep"])
    assert next_words("gpuprofile", ["--save"]) == []


def test_virtual_gpus_are_offered_by_names_that_are_taken():
    offered = next_words("gpuprofile", ["-g"])
    assert {"t4", "h100", "a100-pcie", "rtx4090"} <= set(offered)
    assert offered[0] == "auto"
    assert [resolve(name).name for name in offered[1:]] == [each.name for each in SPECS]


# When gpulab itself fails.


def test_a_recording_that_cannot_start_leaves_the_cell_alone(broken):
    broken.run(
        "def start(self): raise gpulab.capture.session.CaptureError('No luck.', why='because', fix='do that')\n"
        "Session.start = start"
    )
    for notebook in (False, True):
        reply = broken.run("%%gpuprofile x\nprint('ran')\n5", notebook=notebook)
        assert (reply.status, reply.value, reply.stdout) == ("ok", "5", "ran\n")
        assert displayed_text(reply).count("No luck.") == 1
        assert "fix: do that" in displayed_text(reply)
        assert "Traceback" not in displayed_text(reply) + reply.stdout + reply.stderr
    assert broken.run("%%time\n%%gpuprofile x\n5").value == "5"
    assert broken.run("%gpuprofile 5").value == "5"


@pytest.mark.parametrize("method", ["start", "stop"])
def test_a_fault_of_gpulab_leaves_the_cell_alone(broken, method):
    ends = "kept['stop'](self, *_); " if method == "stop" else ""
    broken.run(f"def fault(self, *_): {ends}raise KeyError('a fault')\nSession.{method} = fault")
    for notebook in (False, True):
        reply = broken.run("%%gpuprofile x\nprint('ran')\n5", notebook=notebook)
        assert (reply.status, reply.value, reply.stdout) == ("ok", "5", "ran\n")
        assert displayed_text(reply).count("a fault in gpulab itself") == 1
        failed = broken.run("%%gpuprofile x\n1 / 0", notebook=notebook)
        assert failed.content["ename"] == "ZeroDivisionError"
        assert len(failed.errors) == 1


def test_a_report_that_fails_leaves_the_run(broken):
    broken.run("def fault(run): raise KeyError('a fault')\nrecording.diagnosis_report = fault")
    reply = broken.run("%%gpuprofile kept_run --level sensors -o mine\n5")
    assert (reply.status, reply.value) == ("ok", "5")
    assert "%gpureport kept_run" in displayed_text(reply)
    assert broken.value("mine is gpulab.runs['kept_run']") is True


def test_an_interrupt_while_recording_starts_stops_the_cell(broken):
    broken.run(
        "import time\ndef start(self): print('started', flush=True); time.sleep(30)\nSession.start = start\nran = 0"
    )
    reply = broken.interrupted("%%gpuprofile x\ntime.sleep(30)\nran = 1", notebook=True)
    assert reply.content["ename"] == "KeyboardInterrupt"
    assert len(reply.errors) == 1
    assert broken.value("ran") == 0


def test_an_interrupt_while_the_report_is_made_keeps_run_and_value(broken):
    broken.run(
        "import time\ndef slow(run): print('started', flush=True); time.sleep(30)\nrecording.diagnosis_report = slow"
    )
    reply = broken.interrupted("%%gpuprofile hurried --level sensors\n5", notebook=True)
    assert (reply.status, reply.value) == ("ok", "5")
    assert "%gpureport hurried" in displayed_text(reply)
    assert "Traceback" not in reply.stdout
    assert broken.value("'hurried' in gpulab.runs") is True


def test_a_session_in_the_cell_itself_is_told_about_and_does_not_disturb(live):
    reply = live.run(
        "%%gpuprofile outer\ntry:\n    with gpulab.profile('inner'): pass\nexcept Exception as e: message = str(e)"
    )
    assert reply.status == "ok"
    assert "outer" in live.run("print(message)").stdout
    assert live.value("'outer' in gpulab.runs, 'inner' in gpulab.runs") == (True, False)


def test_a_recording_in_a_script_and_one_by_magic_do_not_mix(live):
    reply = live.run("with gpulab.profile('script', level='sensors'):\n    %gpuprofile 1 + 1")
    assert "'script'" in displayed_text(reply)
    assert reply.value is None or reply.value == "2"
    assert live.value("'script' in gpulab.runs") is True


def test_in_a_terminal_the_report_is_printed_and_nothing_moves():
    from IPython.core.interactiveshell import InteractiveShell

    from gpulab.magics.cell_output import NOTHING, live_output_kind

    shell = InteractiveShell()
    assert live_output_kind(shell) == NOTHING


def test_a_usage_error_is_ipythons_own():
    with pytest.raises(UsageError, match="'class'"):
        GpuProfileMagics.request(_Settings(), "-o class")


class _Settings:
    """The settings alone, without a shell."""

    gpuprofile = GpuProfileMagics.gpuprofile
    level, steps, live = "trace", None, True
