"""Sensors of the watch, read from the stand-in driver by the real nvidia-ml-py: links, memory errors, GPM, MIG."""

from __future__ import annotations

import math

import pytest

from gpulab.sensor_tables import DEVICE_SAMPLES
from gpulab.sensors.host.cpu_energy import CpuEnergy
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.sensors.nvidia.nvml_watch_sensors import watch_sensors
from tests.support import nvml_standin
from tests.support.nvml_standin import NO_PERMISSION, NOT_SUPPORTED


@pytest.fixture
def standin(tmp_path_factory, monkeypatch):
    yield from nvml_standin.installed(nvml_standin.build(tmp_path_factory.mktemp("nvml")), monkeypatch)


def opened():
    nvml = Nvml(sensors=watch_sensors(), all_devices=True)
    nvml.open()
    return nvml


def test_links_and_memory_errors_have_their_units(standin):
    nvml = opened()
    values = nvml.read(nvml.gpus[1])
    assert (values["pcie_sent_bytes"], values["pcie_received_bytes"]) == (5_001_000, 8_001_000)
    assert (values["nvlink_sent_bytes"], values["nvlink_received_bytes"]) == (8_001_000 * 1024, 10_001_000 * 1024)
    assert (values["ecc_corrected"], values["ecc_uncorrected"]) == (107, 1107)


def test_activity_needs_two_readings_and_leaves_no_sample_behind(standin):
    nvml = opened()
    first, second = (nvml.read(nvml.gpus[0]) for _ in range(2))
    assert math.isnan(first["sm_active_frac"])
    assert (second["sm_active_frac"], second["tensor_active_frac"], second["dram_active_frac"]) == pytest.approx(
        (0.315, 0.1225, 0.4475)
    )
    for _ in range(50):
        nvml.read(nvml.gpus[0])
    assert standin.library.standin_gpm_samples() <= 2


def test_a_gpu_without_gpm_reads_the_rest_and_says_why(standin):
    standin.fault("nvmlGpmSampleGet", NOT_SUPPORTED)
    nvml = opened()
    values = [nvml.read(nvml.gpus[0]) for _ in range(3)][-1]
    assert math.isnan(values["sm_active_frac"])
    assert values["util_frac"] == 0.61
    assert any("SM active" in gap.what for gap in nvml.gaps)
    assert standin.library.standin_gpm_samples() == 0


def test_every_device_is_read_whatever_cuda_shows(standin, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(opened().gpus) == 2


def test_boards_and_their_mig_instances_are_read(standin):
    standin.mig(0, 2)
    nvml = opened()
    kinds = [(gpu.uuid[:6], nvml.is_mig(gpu)) for gpu in nvml.gpus]
    assert kinds == [("GPU-0a", False), ("MIG-01", True), ("MIG-03", True), ("GPU-1a", False)]
    [nvml.read(gpu) for gpu in nvml.gpus]
    instance = nvml.read(nvml.gpus[1])
    assert math.isnan(instance["util_frac"])
    assert instance["sm_active_frac"] == pytest.approx(0.325)  # only GPM knows an instance
    assert nvml.read(nvml.gpus[0])["power_w"] == pytest.approx(512.345)


def test_processes_have_their_memory_and_their_share(standin):
    standin.list_processes(0, (41, 3 * 2**30, 55), (42, 2**30, 0))
    standin.list_processes(1)
    nvml = opened()
    first, second = nvml.processes(nvml.gpus[0])
    assert (first.pid, first.memory_bytes, first.sm_frac) == (41, 3 * 2**30, 0.55)
    assert (second.pid, second.sm_frac) == (42, 0.0)
    assert nvml.processes(nvml.gpus[1]) == ()


def test_processes_that_are_not_listed_are_unknown(standin):
    standin.fault("nvmlDeviceGetComputeRunningProcesses_v3", NO_PERMISSION)
    nvml = opened()
    assert nvml.processes(nvml.gpus[0]) is None
    assert any("processes" in gap.what for gap in nvml.gaps)


def test_every_sensor_of_the_watch_has_a_column(standin):
    columns = {column.name for column in DEVICE_SAMPLES.columns}
    assert {name for sensor in watch_sensors() for name in sensor.columns} <= columns


def package(folder, name, energy_uj, range_uj=2**40):
    entry = folder / name
    entry.mkdir(exist_ok=True)
    (entry / "energy_uj").write_text(f"{energy_uj}\n")
    (entry / "max_energy_range_uj").write_text(f"{range_uj}\n")


def test_the_energy_of_all_packages_is_added_and_parts_are_not(tmp_path):
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        package(tmp_path, name, 1_000_000)
    energy = CpuEnergy(tmp_path)
    assert energy.read() == 0
    for name, value in (("intel-rapl:0", 3_000_000), ("intel-rapl:1", 1_500_000), ("intel-rapl:0:0", 9_000_000)):
        package(tmp_path, name, value)
    assert energy.read() == pytest.approx(2.5)


def test_a_counter_that_overflows_goes_on(tmp_path):
    package(tmp_path, "intel-rapl:0", 900, 1000)
    energy = CpuEnergy(tmp_path)
    energy.read()
    package(tmp_path, "intel-rapl:0", 100, 1000)
    assert energy.read() == pytest.approx(200e-6)


def test_a_machine_without_rapl_says_so(tmp_path):
    energy = CpuEnergy(tmp_path)
    assert math.isnan(energy.read())
    assert "no RAPL" in energy.why


def test_xid_errors_are_read_once_with_their_gpu(standin):
    nvml = opened()
    assert nvml.xids() == ()
    standin.xid(1, 79)
    standin.xid(0, 31)
    assert nvml.xids() == ((1, 79), (0, 31))
    assert nvml.xids() == ()


def test_a_driver_without_xid_events_gives_none(standin):
    standin.fault("nvmlEventSetCreate", NOT_SUPPORTED)
    nvml = opened()
    standin.xid(0, 31)
    assert nvml.xids() == ()
    assert standin.calls("nvmlEventSetWait_v2") == 0


def test_xid_errors_are_read_again_after_the_driver_was_reopened(standin):
    nvml = opened()
    nvml.xids()
    standin.library.nvmlShutdown()
    nvml.read(nvml.gpus[0])
    nvml.read(nvml.gpus[0])
    assert nvml.xids() == ()
    standin.xid(0, 48)
    assert nvml.xids() == ((0, 48),)


def test_an_xid_error_becomes_an_event_of_the_history(standin):
    from gpulab.watch.clock import Clock
    from gpulab.watch.device_events import DeviceEvents
    from gpulab.watch.observation import Observer

    observer, events = Observer(Clock()), DeviceEvents()
    standin.list_processes(0)
    standin.list_processes(1)
    events.between(observer.observe(), {})
    standin.xid(1, 79)
    (event,) = [event for event in events.between(observer.observe(), {}) if event.kind == "Xid"]
    observer.close()
    assert (event.device.name, event.text) == ("Standin H200", "Xid 79: the GPU has fallen off the bus")
