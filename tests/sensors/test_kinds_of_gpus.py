"""GPUs that answer some questions only: each measurement is read or named as missing, and a report is made of the rest.

What each kind of GPU does not answer is what NVIDIA's documentation of NVML says of it; no such GPU was at hand.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest

import gpulab
from gpulab.hardware.lookup import spec_of
from gpulab.run import Machine
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.tables import GPU_SAMPLES, EventKind
from gpulab.views.info import info
from tests.support import nvml_standin
from tests.support.nvml_standin import NOT_SUPPORTED
from tests.support.runs.made_runs import MS, event, rows, run_of, stepped

SENSOR_COLUMNS = {column.name for column in GPU_SAMPLES.columns if column.dtype == "float64"}
POWER = ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetViolationStatus")
COOLING = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
LINK = ("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth")
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization")


@dataclass(frozen=True)
class Kind:
    name: str  # as the driver gives it
    count: int = 1
    unsupported: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset()  # columns that cannot be read
    listed: str | None = None  # in the table of GPUs


KINDS = {
    "H200": Kind("NVIDIA H200", count=8, listed="H200"),
    "B200": Kind("NVIDIA B200", count=8, listed="B200"),
    "laptop": Kind(
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        unsupported=("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetViolationStatus"),
        missing=frozenset({"energy_j"}),
    ),
    "vGPU": Kind(
        "GRID A100-10C",
        unsupported=(*POWER, *COOLING, *LINK, "nvmlDeviceGetTotalEnergyConsumption"),
        missing=frozenset({"power_w", "temperature_c", "link_generation", "link_width", "energy_j", "power_held_s"}),
    ),
    "WSL": Kind(
        "NVIDIA GeForce RTX 4090",
        unsupported=(*PROCESSES, "nvmlDeviceGetTotalEnergyConsumption"),
        missing=frozenset({"others_memory_bytes", "others_util_frac", "energy_j"}),
        listed="RTX 4090",
    ),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def read(request, tmp_path_factory, monkeypatch):
    """A kind of GPU, NVML with such GPUs, and twelve readings of each."""
    kind = request.param
    installed = nvml_standin.installed(nvml_standin.build(tmp_path_factory.mktemp("nvml")), monkeypatch)
    standin = next(installed)
    standin.reset(kind.count)
    for index in range(kind.count):
        standin.name(index, kind.name.encode())
    for function in kind.unsupported:
        standin.fault(function, NOT_SUPPORTED)
    nvml = Nvml()
    nvml.open()
    readings = [
        {"at_ns": 25 * MS * number, "late_ns": 0, "device": gpu.index, **nvml.read(gpu)}
        for number in range(12)
        for gpu in nvml.gpus
    ]
    yield kind, nvml, readings
    nvml.close()
    next(installed, None)


def test_each_measurement_is_read_or_missing_with_its_reason(read):
    kind, nvml, readings = read
    unread = {column for column in SENSOR_COLUMNS if all(math.isnan(reading[column]) for reading in readings)}
    assert unread >= kind.missing
    assert bool(unread) == bool(nvml.gaps)
    assert all(gap.why and gap.fix for gap in nvml.gaps)
    assert {reading["device"] for reading in readings} == set(range(kind.count))


def test_peaks_are_those_of_the_same_gpu_or_unknown(read):
    kind, nvml, _ = read
    assert len(nvml.gpus) == kind.count
    assert {spec and spec.name for spec in map(spec_of, nvml.gpus)} == {kind.listed}


def test_a_report_and_the_facts_of_the_machine_say_what_was_read(read):
    _, nvml, readings = read
    machine = Machine(gpus=nvml.gpus, driver=nvml.driver, gaps=nvml.gaps, cores_allowed=8.0)
    events = stepped(
        lambda at: [
            event(EventKind.LAUNCH, "cudaLaunchKernel", at, 0.01, correlation=1),
            event(EventKind.KERNEL, "ampere_sgemm", at + 1, 40, correlation=1),
        ]
    )
    run = run_of(events, machine=machine, gpu_rows=rows(GPU_SAMPLES, readings))
    report, facts = str(gpulab.report(run)), " ".join(str(info(machine)).split())
    assert "GPU" in report.splitlines()[0]
    assert nvml.gpus[0].name in facts
    assert "12 samples, every 25 ms" in report, "however many GPUs there are"
    assert not re.search(r"\b(nan|None|inf)\b(?!: every measurement)", report + facts)
    assert all(gap.why in facts for gap in nvml.gaps)
