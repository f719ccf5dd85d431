"""Values that a file may hold and no recording has: no view fails on them, and none shows them as numbers."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

import gpulab
from gpulab.analysis.kernels.flops import parse_inputs
from gpulab.columns import MAX_SIZE
from gpulab.run import Gpu, Loader, Machine
from gpulab.run_facts import count_from_fact
from gpulab.tables import EVENTS, GPU_SAMPLES, MEMORY
from gpulab.views.charts.machine.sensors import sensors
from tests.support import pipeline_probes
from tests.support.runs.extreme_runs import BASES, NAMES, extreme_run
from tests.support.runs.made_runs import gpu_samples
from tests.support.runs.stored_runs import filled, full_run
from tests.support.tiers import at_night, every_nth


@pytest.mark.full
@pytest.mark.parametrize("seed", every_nth(range(3), 3, pytest.mark.night))
def test_every_view_of_an_extreme_run_is_made_or_refused_with_a_reason(seed):
    problems = pipeline_probes.run_probes(seed, at_night(240, otherwise=30))
    assert [f"{problem.view}, probe {problem.number}: {problem.error}" for problem in problems] == []


def test_a_probe_that_fails_is_a_problem_with_its_number_and_place(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("float division")

    monkeypatch.setattr(pipeline_probes, "VIEWS", dict.fromkeys(pipeline_probes.VIEWS, fail))
    problems = pipeline_probes.run_probes(0, 2)
    assert [problem.number for problem in problems] == [0, 1]
    assert "ZeroDivisionError" in problems[0].error


def test_the_same_seed_gives_the_same_run():
    one, other = extreme_run(7, 3), extreme_run(7, 3)
    assert repr(one) == repr(other)
    assert len(BASES) >= 6


def test_amounts_that_no_machine_has_are_unknown():
    sizes = [9 * 10**18, 2**62, -(2**63), -5, MAX_SIZE, 0, -1]
    events = EVENTS.rows({**filled(EVENTS, 7).columns, "bytes": sizes})
    assert events["bytes"].tolist() == [-1, -1, -1, -1, MAX_SIZE, 0, -1]
    memory = MEMORY.rows({**filled(MEMORY, 7).columns, "bytes": sizes})
    assert memory["bytes"].tolist() == [0, 0, 0, -5, MAX_SIZE, 0, -1], "a free is negative, an unknown amount is 0"


def test_readings_that_no_sensor_gives_are_not_measured():
    readings = [float("inf"), -1.0, 1e300, 5e-324, 300.0, float("nan")]
    samples = GPU_SAMPLES.rows({**filled(GPU_SAMPLES, 6).columns, "power_w": readings, "temperature_c": readings})
    assert np.isnan(samples["power_w"]).tolist() == [True, True, True, False, False, True]
    assert samples["power_w"][3:5].tolist() == [0.0, 300.0]
    assert samples["temperature_c"][1] == -1.0, "a temperature may be negative"


def test_extreme_readings_leave_a_chart_of_the_others():
    rows = gpu_samples({"util_frac": 0.5, "power_w": float("inf")})
    run = dataclasses.replace(full_run(0), gpu_rows=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert "utilisation" in sensors(run).alt


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000 + "]" * 5000,
        "[[9000000000000000000, 9]]",
        "[[1" + ", 1" * 3000 + "]]",
        '{"a": 1}',
        "3",
        "[[2.5]]",
        "x",
    ],
    ids=lambda text: text[:20],
)
def test_a_shape_that_no_tensor_has_counts_as_no_tensor(text):
    assert all(shape == () for shape in parse_inputs(text, '["float"]').shapes)
    assert parse_inputs(text, "[" * 5000).elements == 0


def test_descriptions_hold_no_impossible_numbers():
    assert Gpu(index=0, name="x", memory_bytes=2**62, power_limit_w=float("inf")).memory_bytes is None
    assert Gpu(index=0, name="x", power_limit_w=float("nan")).power_limit_w is None
    assert Machine(cores=-1, cores_allowed=2.5).cores is None
    assert Loader(workers=9 * 10**18, batch_size=32) == Loader(batch_size=32)


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "NaN", "", "1e400"])
def test_a_fact_that_is_no_count_is_none(text):
    assert count_from_fact(dataclasses.replace(full_run(0), facts={"threads": text}), "threads") is None
    assert count_from_fact(dataclasses.replace(full_run(0), facts={"threads": "8"}), "threads") == 8


@pytest.mark.parametrize("name", [name for name in NAMES if not name.isprintable()], ids=ascii)
def test_a_name_cannot_control_the_terminal(name, tmp_path):
    run = dataclasses.replace(
        full_run(0), name=name, outcome=name, source=dataclasses.replace(full_run(0).source, device=name, date=name)
    )
    pipeline_probes.check_text(repr(run))
    pipeline_probes.check_text(str(run.source))
    pipeline_probes.check_text(str(gpulab.GpulabError(f"There is no {name}.", why=name, fix=name)))
    events = dataclasses.replace(full_run(3), event_rows=EVENTS.rows({**filled(EVENTS, 3).columns, "name": [name] * 3}))
    pipeline_probes.check_text("".join(events.events["name"].tolist()))
    assert events.event_rows.text("name").to_list() == [name] * 3, "the run itself is not changed"
