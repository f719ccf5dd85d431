"""Energy of a loop against an independent integral, from the sensors of a stand-in driver as from made samples."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.analysis.machine.energy import COUNTER, INTEGRAL, loop_energy
from gpulab.analysis.steps.detection import find_steps
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.tables import GPU_SAMPLES, EventKind
from tests.support import nvml_standin
from tests.support.runs.made_runs import event, loader_call, rows, run_of, stepped

PERIOD_MS, SECONDS = 100, 60
NAN = float("nan")


def power_w(at_s):
    """Power of a training loop that waits for data: 90 W and 500 W in turn, with slow waves on top."""
    wave = 40 * np.sin(at_s / 7)
    return np.where(at_s % 3.0 < 1.2, 90.0, 500.0 + wave)


PARTS_PER_S = 10_000
# The integral from zero, by a sum of ten thousand parts per second.
SINCE_ZERO_J = np.concatenate([[0.0], power_w(np.arange(0, SECONDS + 1, 1 / PARTS_PER_S)).cumsum() / PARTS_PER_S])


def exact_j(from_s, until_s):
    start, end = (SINCE_ZERO_J[round(at_s * PARTS_PER_S)] for at_s in (from_s, until_s))
    return float(end - start)


def training(samples):
    """A minute of steps of half a second with these GPU samples; what they lack was not measured."""
    unknown = {column.name: NAN for column in GPU_SAMPLES.columns}
    samples = [{**unknown, **sample} for sample in samples]
    events = stepped(lambda at: [event(EventKind.KERNEL, "gemm", at, 400)], count=120, step_ms=500.0)
    return run_of(events, gpu_rows=rows(GPU_SAMPLES, samples))


def sampled(**columns):
    at_s = np.arange(0, SECONDS, PERIOD_MS / 1e3)
    return [
        {"at_ns": round(now * 1e9), "late_ns": 0, "device": 0, **{name: value(now) for name, value in columns.items()}}
        for now in at_s.tolist()
    ]


def counted_j(at_s):
    """A counter that is updated ten times a second, as NVML's."""
    return 1e6 + exact_j(0, np.floor(at_s * 10) / 10) if at_s else 1e6


def energy_of(samples):
    run = training(samples)
    return loop_energy(run, find_steps(run))


def test_the_counter_agrees_with_the_integral_of_power():
    energy = energy_of(sampled(energy_j=counted_j))
    assert energy.method == COUNTER
    assert energy.gpu_j == pytest.approx(exact_j(0, energy.span_s), rel=0.005)


def test_integrated_readings_of_power_say_how_uncertain_they_are():
    energy = energy_of(sampled(power_w=lambda at_s: float(power_w(at_s))))
    assert energy.method == INTEGRAL
    assert abs(energy.gpu_j / exact_j(0, energy.span_s) - 1) < energy.error_frac < 0.15


def test_the_counter_is_preferred():
    samples = sampled(energy_j=counted_j, power_w=lambda at_s: 3 * float(power_w(at_s)))
    assert energy_of(samples).method == COUNTER


def test_a_counter_that_begins_anew_is_not_an_energy():
    samples = sampled(energy_j=lambda at_s: counted_j(at_s) if at_s < 30 else counted_j(at_s) - 1e6)
    assert energy_of(samples) is None


def test_a_gpu_without_power_makes_the_sum_unknown():
    samples = sampled(power_w=lambda at_s: 300.0)
    other = [{**sample, "device": 1, "power_w": NAN} for sample in samples]
    assert energy_of(samples) is not None
    assert energy_of([*samples, *other]) is None


def test_several_gpus_are_added():
    samples = sampled(power_w=lambda at_s: 300.0)
    other = [{**sample, "device": 1, "power_w": 100.0} for sample in samples]
    assert energy_of([*samples, *other]).mean_w == pytest.approx(400)


def test_steps_and_samples_divide_the_energy():
    energy = energy_of(sampled(power_w=lambda at_s: 300.0))
    assert energy.step_j == pytest.approx(300 * 0.5, rel=1e-6)
    assert energy.sample_j is None  # no DataLoader


def test_idle_energy_is_at_the_lowest_power():
    run = training(sampled(power_w=lambda at_s: float(power_w(at_s))))
    energy = loop_energy(run, find_steps(run), idle_frac=0.4)
    assert energy.idle_j == pytest.approx(0.4 * 90 * energy.span_s)


def test_half_a_second_is_too_short():
    assert energy_of(sampled(power_w=lambda at_s: 300.0)[:5]) is None


def test_the_energy_that_is_read_from_a_driver_is_the_integral_of_its_power(tmp_path, monkeypatch):
    """Through the real nvidia-ml-py: what the driver counts in mJ, and states in mW."""
    installed = nvml_standin.installed(nvml_standin.build(tmp_path), monkeypatch)
    standin = next(installed)
    nvml = Nvml()
    nvml.open()
    samples, joules = [], 0.0
    at_s = np.arange(0, SECONDS, PERIOD_MS / 1e3)
    for now in at_s.tolist():
        joules += exact_j(now - PERIOD_MS / 1e3, now) if now else 0.0
        standin.set(0, power=round(1e3 * float(power_w(now))), energy=round(1e3 * (5e6 + joules)))
        samples.append({"at_ns": round(now * 1e9), "late_ns": 0, "device": 0, **nvml.read(nvml.gpus[0])})
    nvml.close()
    counted = energy_of(samples)
    assert counted.gpu_j == pytest.approx(exact_j(0, counted.span_s), rel=0.005)
    integrated = energy_of([{**sample, "energy_j": NAN} for sample in samples])
    assert abs(integrated.gpu_j / counted.gpu_j - 1) < integrated.error_frac
    next(installed, None)


def test_no_gpu_has_no_energy():
    run = run_of(stepped(lambda at: [loader_call(at, 50), event(EventKind.OP, "aten::mm", at + 50, 40)]))
    assert loop_energy(run, find_steps(run)) is None
