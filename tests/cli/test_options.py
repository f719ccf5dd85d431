"""The command line answers mistakes with what to type instead, in commands of the shell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpulab.cli.main import USAGE_ERROR, main
from gpulab.cli.options import parse_options
from gpulab.files.datasets import dataset
from gpulab.replay.rewrites.catalogue import REWRITES

RUN = str(dataset("case05").run_path)


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["reprot", "x"], "report"),
        (["report", "x", "--hsort"], "--short"),
        (["compare", "a", "b", "--fail-ovr", "5"], "--fail-over"),
        (["run", "--level", "trce", "train.py"], "trace"),
        (["history", "--prise", "2"], "--price"),
    ],
)
def test_a_mistyped_command_option_or_value_is_answered_with_the_nearest(
    arguments: Sequence[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(arguments)
    assert end.value.code == USAGE_ERROR
    assert f"did you mean {near}?" in capsys.readouterr().err


def test_an_option_that_is_like_none_is_refused_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["report", "x", "--zzz"])
    message = capsys.readouterr().err
    assert "--zzz" in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["whatif", RUN, "wokers=3"], "workers"),
        (["why", "no_wrkers"], "no_workers"),
        (["report", RUN.replace("run.gpulab", "rn.gpulab")], "run.gpulab"),
        (["compare", RUN, RUN.replace("run.gpulab", "rn.gpulab")], "run.gpulab"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest_in_terms_of_the_shell(
    arguments: Sequence[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == USAGE_ERROR
    message = capsys.readouterr().err
    assert re.search(rf"did you mean (\S*/)?{re.escape(near)}\?", message)
    assert "%gpu" not in message


def test_the_help_of_whatif_explains_each_change_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["whatif", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for rewrite in REWRITES:
        [line] = [line for line in lines if re.match(rf"  {rewrite.name}[ =]", line)]
        assert rewrite.about in line


def test_the_report_lists_checks_that_could_not_run_if_all_are_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(RUN).parent)
    assert main(["report", "run.gpulab"]) == 0
    brief = " ".join(capsys.readouterr().out.split())
    assert main(["report", "run.gpulab", "--all"]) == 0
    full = capsys.readouterr().out
    assert "could not run. The reasons: gpulab report run.gpulab --all" in brief
    assert "Checks that could not run" not in brief
    assert "Checks that could not run" in full
