"""What a newcomer types: mistakes are answered with what to type instead, and empty cells with two lines."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpulab.capture.protection.cuda_check import is_cuda_available
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.replay.rewrites.catalogue import REWRITES
from tests.support.front_end.kernel import Kernel, Reply

LOOP = """
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 4)), batch_size=4)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in loader:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel]) -> Kernel:
    kernel = shared_kernel("import torch, gpulab; torch.set_num_threads(1)", "%load_ext gpulab")
    kernel.run("%%gpuprofile before --level sensors\n" + LOOP)
    return kernel


def text_of(reply: Reply) -> str:
    """The displayed text of a cell."""
    return "\n".join(text for kind, text in reply.outputs if kind in ("display_data", "execute_result"))


def report_lines(reply: Reply) -> list[str]:
    """The sentences of the report of a cell, one a line; a line may be wrapped."""
    [text] = [text for kind, text in reply.outputs if kind == "display_data"]
    return re.sub(r"\n\s+", " ", text).splitlines()


# Names that are nearly right.


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("%gpureport befor", "before"),
        ("%gpureport Before", "before"),
        ("%gputimeline befor", "before"),
        ("%gputimeline before befor", "before"),
        ("%gpucompare before befor", "before"),
        ("%gpuwhatif befor workers=2", "before"),
        ("%gpufix befor", "before"),
        ("%gpuwhatif before wokers=2", "workers"),
        ("%gpuwhatif wokers=2", "workers"),
        ("%gputimeline before wokers=2", "workers"),
        ("%gpucompare before before wokers=2", "workers"),
        ("%gpureport before --alll", "--all"),
        ("%%gpuprofile x --lvel trace\n1", "--level"),
        ("%%gpuprofile x --level trce\n1", "trace"),
        ("%%gpuprofile x --virtual h10\n1", "'H100 SXM'"),
        ("%gpuwhy no_worker", "no_workers"),
        ("%gpumonitor --evry 1", "--every"),
        ("%gpumonitor --alert 'idel < 30 %'", "idle"),
        ("%gpuhistory --prise 2", "--price"),
        ("%gpufix --secnds 2", "--seconds"),
    ],
)
def test_a_typing_error_is_answered_with_the_nearest_name(live: Kernel, line: str, near: str) -> None:
    reply = live.run(line)
    assert f"did you mean {near}?" in reply.traceback + reply.stderr


def test_a_change_in_place_of_the_second_run_is_answered_with_the_command_that_predicts_it(live: Kernel) -> None:
    reply = live.run("%gpucompare before workers=2")
    assert reply.content["ename"] == "UsageError"
    assert "%gpuwhatif before workers=2" in reply.content["evalue"]


def test_a_second_name_of_a_run_is_refused_before_the_cell_runs(live: Kernel) -> None:
    live.run("ran = 0")
    assert "one name" in live.run("%%gpuprofile one two\nran = 1").stderr
    assert live.value("ran") == 0


def test_a_keyword_of_python_names_a_run_but_no_variable(live: Kernel) -> None:
    assert live.run("%%gpuprofile for --level sensors\n1").status == "ok"
    assert "for" in text_of(live.run("%gpureport for"))
    assert "identifier" in live.run("%%gpuprofile x -o for\n1").stderr


def test_the_path_of_a_file_is_reported_like_a_run(live: Kernel) -> None:
    live.run("%%gpuprofile stored --level sensors --save stored.gpulab\n1")
    try:
        assert "stored" in text_of(live.run("%gpureport stored.gpulab"))
        assert "did you mean" in live.run("%gpureport stord.gpulab").traceback
    finally:
        (live.folder / "stored.gpulab").unlink()


# The first line of the cell.


@pytest.mark.parametrize("above", ["# a comment\n", "\n# a comment\n\n    # another\n"])
def test_comments_may_stand_above_the_magic(live: Kernel, above: str) -> None:
    reply = live.run(f"{above}%%gpuprofile commented --level sensors\nvalue = 3\n1 / 0")
    assert live.value("gpulab.runs['commented'].outcome, value") == ("ZeroDivisionError", 3)
    line = above.count("\n") + 3
    assert re.search(rf"-+> {line} 1 / 0", reply.traceback)
    reply = live.run(f"{above}%%gpuprofile commented --lvel sensors\n1")
    assert "did you mean --level?" in reply.stderr


def test_the_magic_below_other_code_says_where_it_belongs(live: Kernel) -> None:
    live.run("ran = 0")
    reply = live.run("ran = 1\n%%gpuprofile late --level sensors\nran = 2")
    assert reply.content["ename"] == "UsageError"
    assert "first line of the cell" in reply.content["evalue"]
    assert "`%%gpuprofile late --level sensors`" in reply.content["evalue"]
    assert live.value("ran, 'late' in gpulab.runs") == (1, False)


def test_the_name_of_the_magic_in_a_text_is_no_magic(live: Kernel) -> None:
    live.run('text = """\n%%gpuprofile before\n"""')
    assert live.value("text") == "\n%%gpuprofile before\n"


@pytest.mark.parametrize("line", ["%%gpuprofile", "%%gpuprofile alone", "%%gpuprofile --level trace\n\n"])
def test_a_magic_without_a_cell_asks_for_code(live: Kernel, line: str) -> None:
    assert "no code to profile" in live.run(line).stderr


# Cells without PyTorch.


@pytest.mark.parametrize("cell", ["# only a comment", "print('hi')", "total = sum(range(1000))"])
def test_a_cell_without_pytorch_is_reported_in_two_lines(live: Kernel, cell: str) -> None:
    verdict, source = report_lines(live.run(f"%%gpuprofile short\n{cell}"))
    assert verdict.startswith("No diagnosis")
    assert "%gpureport short --all" in source


def test_a_report_has_one_line_about_checks_that_could_not_run_unless_all_are_asked_for(live: Kernel) -> None:
    heading, reason = "Checks that could not run", "no GPU sensors were read"
    brief, full = live.run("%gpureport before"), live.run("%gpureport before --all")
    assert heading not in text_of(brief)
    assert reason not in text_of(brief)
    assert len(re.findall("could not run", text_of(brief))) == 1
    assert heading in text_of(full)
    assert "%gpureport before --all" in text_of(brief)


def test_cuda_code_without_a_gpu_is_answered_with_the_virtual_gpu(live: Kernel) -> None:
    if is_cuda_available():
        pytest.skip("this machine has a CUDA GPU")
    reply = live.run("%%gpuprofile wants-gpu\ntorch.ones(3).cuda()")
    assert reply.content["ename"] in ("AssertionError", "RuntimeError")
    text = " ".join(report_lines(reply))
    assert "%%gpuprofile wants-gpu --virtual H100" in text
    assert "Where the time goes" not in text
    assert resolve("H100").name in [spec.name for spec in SPECS]


# The monitor and the what-if.


def test_a_stopped_monitor_reports_what_its_panel_showed(live: Kernel) -> None:
    live.run("%gpumonitor watched --every 0.1")
    live.run(LOOP)
    text = text_of(live.run("%gpumonitor --stop"))
    first = text.splitlines()[0]
    assert re.search(r"\b10 steps, [\d.,]+ (steps/s|\w+ per step); the loop waited for data \d+ % of the time", first)
    assert "put %%gpuprofile on the training cell" in text
    assert "--level sensors" not in text
    assert text_of(live.run("%gpureport watched")).splitlines()[0] == first


def test_a_monitor_without_a_loop_does_not_name_a_training_cell(live: Kernel) -> None:
    live.run("%gpumonitor idle-watch --every 0.1")
    text = text_of(live.run("%gpumonitor --stop"))
    assert "no training loop ran" in text
    assert "training cell" not in text


def test_the_help_of_the_what_if_explains_each_change_in_a_line(live: Kernel) -> None:
    lines = text_of(live.run("%gpuwhatif --help")).splitlines()
    for rewrite in REWRITES:
        [line] = [line for line in lines if re.match(rf" +{rewrite.name}[ =]", line)]
        assert rewrite.about in line


def test_a_what_if_without_any_run_lists_the_changes(live: Kernel) -> None:
    live.run("from gpulab.capture.run_registry import runs\nbackup = dict(runs._runs)\nruns._runs.clear()")
    try:
        text = " ".join(text_of(live.run("%gpuwhatif")).split())
        assert all(f"{rewrite.name}: {rewrite.about}" in text for rewrite in REWRITES)
        assert "%%gpuprofile" in text
    finally:
        live.run("runs._runs.update(backup)")
