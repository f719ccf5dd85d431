"""What was read of a trace is kept where the user asks, used while it is true, and never trusted beyond that."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpulab
from gpulab import store, trace
from gpulab.files import cache
from tests.support.runs.files_on_disk import BASE_NS, LONG, listing, names, runs_are_equal, write
from tests.support.runs.written_traces import x

SOME = ("cuda_event_sync", "mi250_minitoy", "h100_bert_small_inference", "b200_eager")


def test_by_default_no_cache_is_read_or_written(tmp_path):
    path = write(tmp_path / "a.json")
    gpulab.load(path)
    gpulab.load(tmp_path)
    assert listing(tmp_path) == ["a.json"]
    gpulab.load(path, cache=True)
    replant(tmp_path / "a.json.gpulab", name="planted")
    assert gpulab.load(path).name == "a"
    assert names(gpulab.load(tmp_path)) == ["a"], "sidecars are not loaded as runs"


def replant(sidecar, **changes):
    """Replace the cached run by a different one, to see which of the two is loaded."""
    store.save(dataclasses.replace(store.open(sidecar), **changes), sidecar)


@pytest.mark.parametrize("name", SOME)
def test_a_cached_run_equals_a_fresh_one_in_every_field(tmp_path, recorded, name):
    path = Path(shutil.copy(recorded(f"{name}.json.gz"), tmp_path))
    fresh = trace.read(path)
    assert runs_are_equal(gpulab.load(path, cache=True), fresh)
    assert listing(tmp_path) == [path.name, f"{path.name}.gpulab"]
    assert runs_are_equal(gpulab.load(path, cache=True), fresh)


def test_a_cached_run_of_a_damaged_trace_lists_its_losses(tmp_path):
    path = write(tmp_path / "a.json", events=9)
    path.write_text(path.read_text()[:600])
    first, second = gpulab.load(path, cache=True), gpulab.load(path, cache=True)
    assert first.recording.lost
    assert runs_are_equal(first, second)


def test_a_cached_run_is_used(tmp_path):
    path = write(tmp_path / "a.json")
    gpulab.load(path, cache=True)
    replant(tmp_path / "a.json.gpulab", name="planted")
    assert gpulab.load(path, cache=True).name == "planted"
    assert names(gpulab.load(tmp_path, cache=True)) == ["planted"]


def altered(path):
    text = path.read_text()
    status = path.stat()
    path.write_text(text.replace("aten::mm", "aten::ab"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # not even the time gives it away


def grown(path):
    write(path, events=4)


def touched(path):
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize("change", [altered, grown, touched])
def test_a_changed_trace_is_read_and_cached_again(tmp_path, change):
    path = write(tmp_path / "a.json")
    gpulab.load(path, cache=True)
    replant(tmp_path / "a.json.gpulab", name="planted")
    change(path)
    assert runs_are_equal(gpulab.load(path, cache=True), trace.read(path))
    replant(tmp_path / "a.json.gpulab", name="planted again")
    assert gpulab.load(path, cache=True).name == "planted again"


def test_a_run_cached_with_other_limits_is_not_used(tmp_path):
    path = write(tmp_path / "a.json", events=LONG)
    part = gpulab.load(path, cache=True, limits=trace.Limits(text_bytes=path.stat().st_size // 2))
    assert part.recording.lost
    assert runs_are_equal(gpulab.load(path, cache=True), trace.read(path))


def test_a_run_cached_without_shapes_is_not_used_for_shapes(tmp_path):
    shaped = {"Input Dims": [[2, 3]], "Input type": ["float"]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [{**x("cpu_op", "aten::mm", 1, 2), "args": shaped}]}))
    assert len(gpulab.load(path, cache=True, shapes=False).shape_rows) == 0
    assert len(gpulab.load(path, cache=True).shape_rows) == 1
    assert len(gpulab.load(tmp_path, cache=True, shapes=True)[0].shape_rows) == 1


def test_a_run_cached_by_another_reader_is_not_used(tmp_path, monkeypatch):
    path = write(tmp_path / "a.json")
    gpulab.load(path, cache=True)
    replant(tmp_path / "a.json.gpulab", name="planted")
    monkeypatch.setattr("gpulab.files.cache._reader", lambda: "of next year")
    assert gpulab.load(path, cache=True).name == "a"


def test_a_change_of_any_reading_module_invalidates_the_cache(monkeypatch):
    package = Path(gpulab.__file__).parent
    modules = [*package.glob("trace/**/*.py"), *package.glob("store/**/*.py")]
    assert package / "trace" / "reading" / "damaged.py" in modules
    before, read_bytes = cache._reader.__wrapped__(), Path.read_bytes
    for module in modules:
        monkeypatch.setattr(
            Path, "read_bytes", lambda path, module_path=module: read_bytes(path) + b"#" * (path == module_path)
        )
        assert cache._reader.__wrapped__() != before, module


@pytest.mark.parametrize("damage", [lambda text: text[:-40], lambda text: text[:90], lambda _: b"", lambda _: b"{}"])
def test_a_damaged_sidecar_is_replaced(tmp_path, damage):
    path = write(tmp_path / "a.json")
    gpulab.load(path, cache=True)
    sidecar = tmp_path / "a.json.gpulab"
    intact = sidecar.read_bytes()
    sidecar.write_bytes(damage(intact))
    assert runs_are_equal(gpulab.load(path, cache=True), trace.read(path))
    assert sidecar.read_bytes() == intact


def test_a_sidecar_with_a_flipped_byte_is_not_used(tmp_path):
    path = write(tmp_path / "a.json")
    fresh = gpulab.load(path, cache=True)
    sidecar = tmp_path / "a.json.gpulab"
    intact = sidecar.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(intact), 60).tolist():
        sidecar.write_bytes(intact[:at] + bytes([intact[at] ^ 0x55]) + intact[at + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a flip in the mark makes it look like a run of the user's
            assert runs_are_equal(gpulab.load(path, cache=True), fresh), at


def test_traces_with_equal_names_share_a_cache_folder(tmp_path):
    one = write(tmp_path / "monday" / "rank0.json", began_ms=1)
    other = write(tmp_path / "tuesday" / "rank0.json", began_ms=5)
    cache_folder = tmp_path / "deep" / "kept"
    for _ in range(2):
        assert gpulab.load(one, cache=cache_folder).began_ns == BASE_NS + 10**6
        assert gpulab.load(other, cache=str(cache_folder)).began_ns == BASE_NS + 5 * 10**6
    assert len(listing(cache_folder)) == 2
    assert listing(one.parent) == listing(other.parent) == ["rank0.json"]
    assert len(gpulab.load(str(tmp_path / "**" / "*.*"), cache=cache_folder)) == 2, "sidecars are not loaded as runs"
    assert len(gpulab.load(cache_folder)) == 2, "except explicitly"


def test_the_cache_does_not_overwrite_a_saved_run(tmp_path):
    path = write(tmp_path / "a.json")
    users_run = store.save(dataclasses.replace(trace.read(path), name="mine"), tmp_path / "a.json.gpulab")
    with pytest.warns(UserWarning, match=re.escape(users_run.name)):
        assert gpulab.load(path, cache=True).name == "a"
    assert store.open(users_run).name == "mine"


def test_an_unwritable_cache_is_only_a_warning(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json")
        (tmp_path / f"{name}.json.gpulab").mkdir()
    with pytest.warns(UserWarning, match=r"cache was not written \(and 1 more\)\. .*fix: ") as warned:
        assert names(gpulab.load(tmp_path, cache=True)) == ["a", "b"]
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(UserWarning, match="b.json"):
        assert gpulab.load(tmp_path / "a.json", cache=tmp_path / "b.json" / "kept").name == "a"
    assert listing(tmp_path) == ["a.json", "a.json.gpulab", "b.json", "b.json.gpulab"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_folder_is_only_a_warning(tmp_path):
    path = write(tmp_path / "a.json")
    tmp_path.chmod(0o555)
    try:
        with pytest.warns(UserWarning, match="cache was not written"):
            assert gpulab.load(path, cache=True).name == "a"
    finally:
        tmp_path.chmod(0o755)


def test_a_trace_that_grows_while_it_is_read_is_not_cached(tmp_path, monkeypatch):
    path = write(tmp_path / "a.json")
    real = trace.read

    def read(*args, **more):
        run = real(*args, **more)
        grown(path)
        return run

    monkeypatch.setattr(trace, "read", read)
    gpulab.load(path, cache=True)
    assert listing(tmp_path) == ["a.json"]


def test_saved_runs_need_no_cache(tmp_path):
    path = gpulab.save(trace.read(write(tmp_path / "a.json")), tmp_path / "b.gpulab")
    gpulab.load(path, cache=True)
    assert listing(tmp_path) == ["a.json", "b.gpulab"]
