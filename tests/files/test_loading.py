"""Loading a file, a directory or a pattern gives runs, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

import gpulab
from gpulab import trace
from gpulab.errors import StoreError, TraceError
from gpulab.files import Ranks, load_ranks, load_run
from gpulab.run import Run
from tests.support.runs.files_on_disk import LONG, names, numbers, runs_are_equal, write

# One file.


def test_traces_and_saved_runs_are_recognised_by_content(tmp_path, recorded):
    path = recorded("mi250_minitoy.json.gz")
    run = gpulab.load(path)
    assert isinstance(run, Run)
    renamed = Path(shutil.copy(path, tmp_path / "trace.gpulab"))
    assert runs_are_equal(gpulab.load(renamed), dataclasses.replace(run, name="trace.gpulab"))
    saved = gpulab.save(run, tmp_path / "saved.json.gz")
    assert runs_are_equal(gpulab.load(str(saved)), run)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write(tmp_path / "runs" / "a.json")
    assert gpulab.load("~/runs/a.json").name == "a"
    assert names(gpulab.load("~/runs")) == names(gpulab.load("~/runs/*.json")) == ["a"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    assert gpulab.load(write(tmp_path / "lr[0.1]*.json")).name == "lr[0.1]*"


def test_the_error_for_a_run_with_damaged_first_bytes_is_about_a_run(tmp_path):
    path = gpulab.save(trace.read(write(tmp_path / "a.json")), tmp_path / "a.gpulab")
    path.write_bytes(b"\0\0\0\0" + path.read_bytes()[4:])
    with pytest.raises(StoreError, match="cannot be read as a run"):
        gpulab.load(path)


def test_limits_are_passed_to_the_reader(tmp_path):
    path = write(tmp_path / "a.json", events=LONG)
    half = trace.Limits(text_bytes=path.stat().st_size // 2)
    assert gpulab.load(path).recording.lost == {}
    assert gpulab.load(path, limits=half).recording.lost != {}
    assert gpulab.load(tmp_path, limits=half)[0].recording.lost != {}


@pytest.mark.parametrize(
    "url",
    ["http://host/a.json", "https://host/*.json.gz", "s3://bucket/rank0.json", "gs://b/x", "file:///a.json"],
)
def test_a_url_is_rejected_with_advice(url):
    with pytest.raises(TraceError, match="URL") as error:
        gpulab.load(url)
    assert "download" in error.value.fix


def test_credentials_of_a_url_are_not_in_the_error():
    with pytest.raises(TraceError) as error:
        gpulab.load("https://me:word@host/a.json?X-Signature=secret")
    assert "https://host/a.json" in str(error.value)
    assert "secret" not in str(error.value)
    assert "word" not in str(error.value)


@pytest.mark.parametrize("path", ["missing.json", "missing/", "a\0b"])
def test_the_error_for_a_missing_file_names_the_current_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="There is no file") as error:
        gpulab.load(path)
    assert str(tmp_path) in error.value.fix


# A directory.


def test_a_directory_gives_its_ranks_in_order(tmp_path):
    for rank in (10, 2, 0, 1):
        write(tmp_path / f"host_{100 - rank}.1700{rank}.pt.trace.json", rank)
    ranks = gpulab.load(tmp_path)
    assert isinstance(ranks, Ranks)
    assert numbers(ranks) == [0, 1, 2, 10]
    assert ranks.unread == ()
    assert ranks[-1] is ranks.runs[3]
    assert ranks[1:] == ranks.runs[1:]
    assert ranks.of_rank(10) == (ranks[3],)


def test_a_directory_may_contain_traces_and_saved_runs(tmp_path, recorded):
    shutil.copy(recorded("a100_ddp_8ranks_rank.json.gz"), tmp_path)
    shutil.copy(recorded("cpu_only_gloo.json.gz"), tmp_path)
    gpulab.save(trace.read(recorded("cuda_event_sync.json.gz")), tmp_path / "kept.gpulab")
    assert [(run.rank, run.name) for run in gpulab.load(tmp_path)] == [
        (0, "cuda_event_sync"),
        (3, "a100_ddp_8ranks_rank"),
        (34, "cpu_only_gloo"),
    ]


def test_other_files_in_a_directory_are_ignored_silently(tmp_path):
    write(tmp_path / "a.json", 0)
    write(tmp_path / ".hidden.json", 1)
    write(tmp_path / "b.json.tmp", 2)
    write(tmp_path / "c.json.part", 3)
    write(tmp_path / "deeper" / "d.json", 4)
    write(tmp_path / "folder.json" / "e.json", 5)
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    (tmp_path / "losses.json").write_text("[1.5, 1.25]")
    (tmp_path / "notes.md").write_text("[1] {")
    ranks = gpulab.load(tmp_path)
    assert (numbers(ranks), ranks.unread) == ([0], ())


def test_unreadable_files_do_not_affect_readable_ones(tmp_path):
    write(tmp_path / "rank1.json", 1)
    write(tmp_path / "rank0.json", 0)
    (tmp_path / "rank2.json").write_text('{"traceEvents": [{"ph"')
    (tmp_path / "rank3.json.gz").write_bytes(b"")
    (tmp_path / "rank4.gpulab").write_bytes(b"PK")
    with pytest.warns(UserWarning, match=r"3 of 5 files could not be read: rank2\.json \(.*early") as warned:
        ranks = gpulab.load(tmp_path)
    assert [warning.filename for warning in warned] == [__file__], "the warning points at who called"
    assert numbers(ranks) == [0, 1]
    assert len(ranks.unread) == 3
    for gap, name in zip(ranks.unread, ("rank2.json", "rank3.json.gz", "rank4.gpulab"), strict=True):
        assert name in gap.what
        assert gap.why
        assert gap.fix
        assert all(text in repr(ranks) for text in (gap.what, gap.why, gap.fix))


def test_a_damaged_rank_is_loaded_with_its_losses(tmp_path):
    write(tmp_path / "rank0.json", 0)
    content = write(tmp_path / "rank1.json", 1, events=9).read_text()
    (tmp_path / "rank1.json").write_text(content[: len(content) * 2 // 3])
    ranks = gpulab.load(tmp_path)
    assert numbers(ranks) == [0, 1]
    assert [bool(run.recording.lost) for run in ranks] == [False, True]


def test_one_file_in_a_directory_is_a_sequence_of_one(tmp_path):
    path = write(tmp_path / "a.json")
    ranks = gpulab.load(tmp_path)
    assert (len(ranks), numbers(ranks)) == (1, [None])
    assert runs_are_equal(ranks[0], gpulab.load(path))


def test_the_error_for_an_empty_directory_gives_working_advice(tmp_path):
    with pytest.raises(TraceError, match=re.escape(str(tmp_path))) as error:
        gpulab.load(tmp_path)
    assert ".gpulab" in error.value.why
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(TraceError, match=re.escape(str(tmp_path))):
        gpulab.load(tmp_path)
    write(tmp_path / "deeper" / "a.json")
    with pytest.raises(TraceError) as error:
        gpulab.load(tmp_path)
    advice = error.value.fix.partition('"')[2].partition('"')[0]
    assert names(gpulab.load(advice)) == ["a"], "the advice works as it stands"


def test_a_directory_of_damaged_files_gives_their_reasons(tmp_path):
    (tmp_path / "a.json").write_bytes(b"")
    with pytest.raises(TraceError, match=r"a\.json is empty"):
        gpulab.load(tmp_path)
    for name in "bcde":
        (tmp_path / f"{name}.gpulab").write_bytes(b"PK")
    with pytest.raises(TraceError, match="None of the 5 files") as error:
        gpulab.load(tmp_path)
    assert "a.json (the file has 0 bytes); b.gpulab" in error.value.why
    assert error.value.why.endswith("and 2 more")


def test_an_unreadable_directory_is_a_trace_error(tmp_path, monkeypatch):
    # For root every directory may be read.
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TraceError, match="cannot be read") as error:
        gpulab.load(tmp_path)
    assert error.value.why == "Permission denied"


# A pattern.


def test_a_pattern_with_two_stars_matches_subfolders(tmp_path, monkeypatch):
    write(tmp_path / "a" / "one.pt.trace.json", 1)
    write(tmp_path / "a" / "b" / "two.pt.trace.json", 0)
    write(tmp_path / "a" / ".kept" / "three.pt.trace.json", 2)
    write(tmp_path / "a" / "other.json", 3)
    monkeypatch.chdir(tmp_path)
    assert numbers(gpulab.load("a/*.pt.trace.json")) == [1]
    assert numbers(gpulab.load(tmp_path / "**" / "*.pt.trace.json")) == [0, 1]
    assert numbers(gpulab.load("**/*.json")) == [0, 1, 3]
    assert numbers(gpulab.load("**")) == [0, 1, 3]
    assert numbers(gpulab.load("a/o[tn]*")) == [1, 3]


def test_files_matched_by_a_pattern_may_have_any_suffix(tmp_path):
    write(tmp_path / "a.trace", 0)
    (tmp_path / "b.trace").write_bytes(bytes(100))
    (tmp_path / "settings.trace").write_text('{"lr": 0.1}')
    with pytest.warns(UserWarning, match="1 of 2 files"):
        ranks = gpulab.load(str(tmp_path / "*.trace"))
    assert (numbers(ranks), len(ranks.unread)) == ([0], 1)


def test_a_pattern_that_matches_only_other_json_is_an_error(tmp_path):
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    with pytest.raises(TraceError, match=r"\*\.json") as error:
        gpulab.load(tmp_path / "*.json")
    assert "other JSON" in error.value.why
    with pytest.raises(TraceError, match="not a PyTorch profiler trace"):
        gpulab.load(tmp_path / "settings.json")


@pytest.mark.parametrize("pattern", ["*.none", "**/none*", "[ab].json", "folder*"])
def test_a_pattern_without_matches_is_an_error(tmp_path, monkeypatch, pattern):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="No file matches") as error:
        gpulab.load(pattern)
    assert str(tmp_path) in error.value.fix


def test_a_folder_linked_into_itself_gives_each_file_once(tmp_path):
    write(tmp_path / "a.json")
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert names(gpulab.load(str(tmp_path / "**" / "*.json"))) == ["a"]


def test_load_run_and_load_ranks_have_one_type_each(tmp_path):
    path = write(tmp_path / "a.json")
    assert isinstance(load_run(path), Run)
    assert isinstance(load_ranks(path), Ranks)
    assert isinstance(load_ranks(tmp_path), Ranks)
    for many in (tmp_path, tmp_path / "*.json"):
        with pytest.raises(TraceError, match="is not one file"):
            load_run(many)
