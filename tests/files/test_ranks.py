"""Which rank each of many runs is, in which order they come, and the value that they are together."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.files import Ranks
from tests.support.runs.files_on_disk import names, numbers, write


@pytest.mark.parametrize(
    "files",
    [
        ["rank-0.json", "rank-1.json", "rank-10.json"],
        ["trace_rank_0_step5.json", "trace_rank_1_step6.json", "trace_rank_10_step5.json"],
        ["a.rank0.json", "b.Rank1.json", "c.RANK10.json"],
        ["rank0/trace.json", "rank1/trace.json", "rank10/trace.json"],
        ["rank=0.json", "rank=1.json", "rank=10.json"],
    ],
)
def test_ranks_come_from_consistent_file_names_if_traces_lack_them(tmp_path, files):
    for file in reversed(files):
        write(tmp_path / file)
    ranks = gpulab.load(str(tmp_path / "**" / "*.json"))
    assert numbers(ranks) == [0, 1, 10]
    assert all(run.facts["rank"] == "from the file's name" for run in ranks)


@pytest.mark.parametrize(
    "files",
    [
        ["rank0.json", "other.json"],  # not all
        ["rank0.a.json", "rank0.b.json"],  # not distinct
        ["rank0_of_rank1.json", "rank1.json"],  # not clear
        ["frank0.json", "frank1.json"],  # another word
        ["host_71.170001.pt.trace.json", "host_72.170002.pt.trace.json"],  # a process and a time
        ["trace_1.json", "trace_2.json"],  # not from zero
        ["trace_0.json", "trace_2.json"],  # not every number
        ["left_0.json", "right_1.json"],  # not one name
        ["trace0.json", "trace1.json"],  # part of a word
        ["before.json", "after.json"],
    ],
)
def test_ambiguous_file_names_give_no_rank(tmp_path, files):
    for file in files:
        write(tmp_path / file)
    ranks = gpulab.load(tmp_path)
    assert numbers(ranks) == [None, None]
    assert not any("rank" in run.facts for run in ranks)
    assert [f"{run.name}" for run in ranks] == [
        name.partition(".json")[0].removesuffix(".pt.trace") for name in sorted(files)
    ]


def test_final_numbers_of_simultaneous_recordings_are_ranks(tmp_path):
    for rank in (1, 0, 2):
        write(tmp_path / f"trace_{rank}.json", began_ms=rank)
    assert numbers(gpulab.load(tmp_path)) == [0, 1, 2]
    # One process that wrote a window after the other names its files alike.
    write(tmp_path / "trace_2.json", began_ms=50)
    assert numbers(gpulab.load(tmp_path)) == [None, None, None]


def test_an_unreadable_file_counts_in_the_numbering(tmp_path):
    for rank in (0, 2):
        write(tmp_path / f"trace_{rank}.json")
    (tmp_path / "trace_1.json").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"trace_1\.json"):
        assert numbers(gpulab.load(tmp_path)) == [0, 2]


def test_names_that_contradict_a_trace_give_no_rank(tmp_path):
    write(tmp_path / "rank0.json", 0)
    write(tmp_path / "rank1.json")
    assert numbers(gpulab.load(tmp_path)) == [0, 1]
    write(tmp_path / "rank0.json", 4)
    assert numbers(gpulab.load(tmp_path)) == [4, None]


def test_a_name_never_overrules_a_trace(tmp_path):
    write(tmp_path / "rank0.json", 1)
    write(tmp_path / "rank1.json", 0)
    ranks = gpulab.load(tmp_path)
    assert [(run.rank, run.name) for run in ranks] == [(0, "rank1"), (1, "rank0")]
    assert not any("rank" in run.facts for run in ranks)


def test_windows_of_one_rank_stay_apart_in_the_order_of_their_start(tmp_path):
    write(tmp_path / "a.json", 1, began_ms=90)
    write(tmp_path / "b.json", 1, began_ms=30)
    write(tmp_path / "c.json", 0, began_ms=60)
    ranks = gpulab.load(tmp_path)
    assert names(ranks) == ["c", "b", "a"]
    assert names(ranks.of_rank(1)) == ["b", "a"]


def test_runs_without_a_rank_come_last_in_natural_order_of_names(tmp_path):
    for name in ("run10", "run9", "zero"):
        write(tmp_path / f"{name}.json", 0 if name == "zero" else None)
    assert names(gpulab.load(tmp_path)) == ["zero", "run9", "run10"]


# The value that many runs are.


@pytest.fixture
def ranks(tmp_path):
    for rank in (0, 1, 2, 5):
        write(tmp_path / f"r{rank}.json", rank)
    return gpulab.load(tmp_path)


def test_many_runs_are_a_frozen_sequence(ranks):
    assert len(ranks) == 4
    assert list(reversed(ranks)) == list(ranks.runs)[::-1]
    assert ranks[2] in ranks
    with pytest.raises(dataclasses.FrozenInstanceError):
        ranks.runs = ()
    with pytest.raises(TypeError):
        ranks[0] = ranks[1]
    assert numbers(pickle.loads(pickle.dumps(ranks))) == numbers(copy.deepcopy(ranks)) == [0, 1, 2, 5]


def test_the_repr_lists_the_ranks_and_the_world_size(ranks):
    first, *rest = repr(ranks).splitlines()
    assert first == "4 runs, ranks 0-2, 5 of 8"
    assert [line.partition(":")[0].strip() for line in rest] == ["rank 0", "rank 1", "rank 2", "rank 5"]
    assert repr(ranks[3]) in rest[3]


def test_thousands_of_ranks_are_not_all_printed(ranks):
    many = Ranks(ranks.runs * 500)
    assert len(repr(many).splitlines()) < 50
    assert "1,968 more" in repr(many)


def test_a_missing_rank_is_an_error(ranks):
    with pytest.raises(RunError, match="no run of rank 3") as error:
        ranks.of_rank(3)
    assert "0-2, 5" in error.value.why


def test_functions_for_one_run_explain_how_to_choose_one(ranks):
    with pytest.raises(AttributeError, match=r"ranks\[0\]"):
        len(ranks.event_rows)
    with pytest.raises(AttributeError, match=r"ranks\[0\]"):
        gpulab.save(ranks, "ranks.gpulab")


@pytest.mark.parametrize("function", [gpulab.report, gpulab.diagnose, lambda many: gpulab.compare(many, many)])
def test_diagnosis_report_and_comparison_take_all_ranks_together(ranks, function):
    assert str(function(ranks))
    assert str(function(ranks[0]))
