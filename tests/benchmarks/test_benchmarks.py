from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.loading import load, ours, peers
from benchmarks.loading import scaled_trace as scaled

ROOT = Path(__file__).resolve().parents[2]
ONCE = ("process_name", "PyTorch Profiler (0)", "Iteration Start: PyTorch Profiler", "Record Window End")


def small_trace(folder: Path, **layout) -> Path:
    """Two steps of one launch and one kernel each, with flows, in microseconds beyond float64."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 1712195495500000.001, "args": {"name": "p"}}
    ]
    cpu = {"pid": 7, "tid": 7}
    for step in (3, 4):
        at = Decimal("1712195495519689.047") + 1000 * step
        args = {"External id": step, "Ev Idx": step - 3}
        name = f"ProfilerStep#{step}"
        events.append({"ph": "X", "cat": "user_annotation", "name": name, **cpu, "ts": at, "dur": 990, "args": args})
        call = {"External id": step, "cbid": 211, "correlation": step + 40}
        begin = at + Decimal("0.003")
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **cpu, "ts": begin, "dur": 5})
        events[-1]["args"] = call
        flow = {"id": step + 40, "cat": "ac2g", "name": "ac2g"}
        events.append({"ph": "s", **cpu, "ts": begin, **flow})
        gpu = {"pid": 0, "tid": 7}
        work = {**call, "device": 0, "stream": 7, "grid": [1568, 1, 1]}
        events.append(
            {"ph": "X", "cat": "kernel", "name": 'k<"a",\t{1}>', **gpu, "ts": begin + 30, "dur": Decimal("7.25")}
        )
        events[-1]["args"] = work
        events.append({"ph": "f", **gpu, "ts": begin + 30, **flow, "bp": "e"})
    once = {"cat": "Trace", "ts": 1712195495500000, "dur": 1}
    events += [{"ph": "X" if "(0)" in name else "i", "name": name, **once} for name in ONCE[1:]]
    document = {"schemaVersion": 1, "traceEvents": events, "traceName": "small.json"}
    # json writes no Decimal; in quotes it keeps every digit, and the quotes go.
    text = json.dumps(document, default=lambda exact: f"@{exact}@", **layout).replace('"@', "").replace('@"', "")
    path = folder / "small.json"
    path.write_text(text)
    return path


def read(path: Path) -> dict:
    packed = path.read_bytes()
    return json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed, parse_float=Decimal)


def counted(events: list[dict]) -> Counter:
    return Counter(json.dumps(event, sort_keys=True, default=str) for event in events)


def repeated(path: Path) -> list[dict]:
    return [event for event in read(path)["traceEvents"] if event["name"] not in ONCE]


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_one_replica_says_what_its_source_says(tmp_path, layout):
    source = small_trace(tmp_path, **layout)
    one, other = read(source), read(scaled.scaled(source, 1, tmp_path / "made"))
    assert counted(one.pop("traceEvents")) == counted(other.pop("traceEvents"))
    assert one == other


def test_each_replica_is_the_first_one_later_by_the_same_whole_microseconds(tmp_path):
    events = repeated(scaled.scaled(small_trace(tmp_path), 60, tmp_path))
    size = len(repeated(tmp_path / "small.json"))
    assert len(events) >= 60 - len(ONCE)
    first, second, last = events[:size], events[size : 2 * size], events[-size:]
    moved = {Decimal(two["ts"]) - Decimal(one["ts"]) for one, two in zip(first, second, strict=True)}
    assert len(moved) == 1
    assert moved.pop() % 1 == 0
    assert max(e["ts"] + e.get("dur", 0) for e in first) < min(e["ts"] for e in second)
    assert str(last[0]["ts"]).endswith(".047")
    assert [e.get("dur") for e in last] == [e.get("dur") for e in first]


def test_what_was_joined_is_joined_once_in_each_replica(tmp_path):
    events = repeated(scaled.scaled(small_trace(tmp_path), 60, tmp_path))
    for cat in ("kernel", "cuda_runtime"):
        correlations = [e["args"]["correlation"] for e in events if e.get("cat") == cat]
        assert sorted(correlations) == sorted(e["id"] for e in events if e["ph"] == "s")
        assert len(set(correlations)) == len(correlations)
    steps = [int(e["name"].partition("#")[2]) for e in events if e["name"].startswith("ProfilerStep")]
    assert steps == list(range(3, 3 + len(steps)))
    indexes = [e["args"]["Ev Idx"] for e in events if "Ev Idx" in e.get("args", {})]
    assert indexes == list(range(len(indexes)))


def test_what_describes_the_file_stands_once(tmp_path):
    document = read(scaled.scaled(small_trace(tmp_path), 60, tmp_path))
    names = Counter(event["name"] for event in document["traceEvents"])
    assert {name: names[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
    assert list(document) == ["schemaVersion", "traceEvents", "traceName"]


def test_a_made_file_is_used_again_and_made_alike_elsewhere(tmp_path):
    source = small_trace(tmp_path)
    made = scaled.scaled(source, 60, tmp_path / "here")
    written = made.stat().st_mtime_ns
    assert scaled.scaled(source, 60, tmp_path / "here") == made
    assert made.stat().st_mtime_ns == written
    assert scaled.scaled(source, 60, tmp_path / "there").read_bytes() == made.read_bytes()
    plain = scaled.scaled(source, 60, tmp_path / "here", plain=True)
    assert plain.read_bytes() == gzip.decompress(made.read_bytes())
    assert load.plain_bytes(made) == plain.stat().st_size


def test_the_text_is_laid_out_as_kineto_writes_it(recorded, tmp_path):
    source = recorded("mi210_gpu_only.json.gz")  # as Kineto wrote it
    made = scaled.scaled(source, 1, tmp_path)
    one, other = (gzip.decompress(path.read_bytes()).decode().splitlines() for path in (source, made))
    heads = [sorted(line for line in lines if line.startswith('    "ph": ')) for lines in (one, other)]
    heads = [[line for line in lines if '"cat": "Trace"' not in line] for lines in heads]
    assert heads[0] == heads[1]
    assert Counter(one)["  },"] == Counter(other)["  },"]


@pytest.mark.parametrize("text", ['{"traceEvents": []}', '{"events": [1]}'])
def test_a_file_without_events_is_refused_and_nothing_is_written(tmp_path, text):
    (tmp_path / "none.json").write_text(text)
    with pytest.raises(scaled.NotScalableError, match="no events"):
        scaled.scaled(tmp_path / "none.json", 60, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_gpulab_and_pandas_by_hand_find_the_same(recorded):
    trace = str(recorded("v100_resnet50_workers4.json.gz"))
    one, other = ours.figures(trace), peers.by_hand(trace)
    assert {key: one[key] for key in ("kernels", "steps", "gaps", "copies")} == {
        key: other[key] for key in ("kernels", "steps", "gaps", "copies")
    }
    assert one["steps"] > 1
    assert one["idle_frac"] == pytest.approx(other["idle_frac"], rel=1e-12)
    assert one["delay_us"] == pytest.approx(other["delay_us"], rel=1e-9)


def test_the_floor_scans_to_the_end_and_sees_damage(tmp_path, monkeypatch):
    pytest.importorskip("simdjson")
    monkeypatch.setattr(peers, "BLOCK", 4096)
    made = scaled.scaled(small_trace(tmp_path), 200, tmp_path, plain=True)
    assert peers.floor(str(made))["load_cpu_s"] >= 0
    made.write_text(made.read_text().replace('"traceName": ', '"traceName": ?'))
    with pytest.raises(ValueError, match=r"JSON|parse|atom|TAPE|structure"):
        peers.floor(str(made))


def test_a_way_that_fails_or_finds_nothing_is_not_taken_for_a_fast_one(tmp_path):
    def run(code: str) -> load.Taken:
        return load.taken([sys.executable, "-c", code], dict(os.environ), str(tmp_path))

    assert run("raise SystemExit('no such module')").failed == "no such module (status 1)"
    assert run("print('{}')").failed == "it found nothing"
    worked = run("print('by the way'); print('{\"kernels\": 3}')")
    assert (worked.failed, worked.told) == ("", {"kernels": 3})
    failed = load.table("", {"figures": worked, "hta": run("1/0")})
    assert "ZeroDivisionError" in failed


@pytest.mark.full
def test_the_benchmark_prints_a_table_and_targets_and_names_what_is_absent(tmp_path):
    arguments = ["--trace", small_trace(tmp_path), "--events", "500", "--rounds", "1", "--dir", tmp_path / "made"]
    environ = os.environ | {"GPULAB_SHARED": str(tmp_path)}
    command = [sys.executable, ROOT / "benchmarks/loading/load.py", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "small x 500 events" in done.stdout
    assert "gpulab: load, figures" in done.stdout
    assert "no b200_eager.json.gz" in done.stdout
    for way, name in load.PEERS.items():
        absent = peers.installed(peers.PACKAGES[way][0]) is None
        assert (f"{name} is absent: " in done.stdout) == absent
        assert (f"pip install {load.PIP[way]}" in done.stdout) == absent
