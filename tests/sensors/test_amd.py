"""AMD GPUs through a stand-in that answers as the package amdsmi 7.0 does: dicts, "N/A", and its exceptions."""

from __future__ import annotations

import math
import types

import pytest

from gpulab.sensor_tables import DEVICE_SAMPLES
from gpulab.sensors.amd import SENSORS, AmdSmi
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.watch.clock import Clock
from gpulab.watch.observation import Observer
from gpulab.watch.schema import HOST_KIND


class AmdSmiException(Exception):  # noqa: N818  (its name in amdsmi)
    pass


def standin(**answers):
    """The functions that gpulab calls, with the keys and units of amdsmi; an exception as an answer is raised."""
    usual = {
        "amdsmi_init": None,
        "amdsmi_shut_down": None,
        "amdsmi_get_processor_handles": ["first", "second"],
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_device_uuid": "abc",
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196_608, "vram_used": 40_960},
        "amdsmi_get_power_cap_info": {"power_cap": 750_000_000},
        "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2200},
        "amdsmi_get_gpu_activity": {"gfx_activity": 61, "umc_activity": 22, "mm_activity": "N/A"},
        "amdsmi_get_power_info": {"current_socket_power": 512, "average_socket_power": "N/A", "socket_power": 0},
        "amdsmi_get_temp_metric": 47,
        "amdsmi_get_energy_count": {"energy_accumulator": 10**9, "counter_resolution": 15.3, "timestamp": 1},
        "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1, "deferred_count": 0},
        "amdsmi_get_gpu_process_list": [{"pid": 41, "mem": 3 * 2**30, "name": "python"}],
    }

    def function(answer):
        def call(*_):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    functions = {name: function(answer) for name, answer in {**usual, **answers}.items()}
    kinds = types.SimpleNamespace(GFX=0, MEM=1, HOTSPOT=2, CURRENT=3)
    return types.SimpleNamespace(
        **functions, AmdSmiException=AmdSmiException, AmdSmiClkType=kinds, AmdSmiTemperatureType=kinds,
        AmdSmiTemperatureMetric=kinds,
    )  # fmt: skip


@pytest.fixture
def root(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    return tmp_path


def opened(root, **answers):
    amd = AmdSmi(root, lambda: standin(**answers))
    amd.open()
    return amd


def test_readings_have_the_units_of_the_columns(root):
    amd = opened(root)
    values = amd.read(amd.gpus[0])
    assert values == {
        "util_frac": 0.61, "memory_util_frac": 0.22, "memory_used_bytes": 40_960 * 2**20, "power_w": 512.0,
        "sm_clock_mhz": 2100.0, "memory_clock_mhz": 2100.0, "temperature_c": 47.0,
        "energy_j": pytest.approx(15_300), "ecc_corrected": 3.0, "ecc_uncorrected": 1.0,
    }  # fmt: skip


def test_a_gpu_has_its_name_memory_and_limits(root):
    first = opened(root).gpus[0]
    assert (first.name, first.memory_bytes, first.power_limit_w) == ("AMD Instinct MI300X", 192 * 2**30, 750.0)


def test_processes_are_listed(root):
    amd = opened(root)
    (process,) = amd.processes(amd.gpus[0])
    assert (process.pid, process.memory_bytes, process.sm_frac) == (41, 3 * 2**30, None)


@pytest.mark.parametrize(
    "name", [name for name in vars(standin()) if name.startswith("amdsmi_get_gpu_") or "info" in name]
)
def test_a_reading_that_fails_affects_no_other(root, name):
    whole = opened(root).read(opened(root).gpus[0])
    amd = opened(root, **{name: AmdSmiException("not supported")})
    values = amd.read(amd.gpus[0])
    assert set(values) == set(whole)
    same = [column for column, value in values.items() if value == whole[column]]
    assert len(same) >= len(whole) - 2


def test_what_the_gpu_does_not_have_is_unknown(root):
    amd = opened(root, amdsmi_get_gpu_activity={"gfx_activity": "N/A", "umc_activity": "N/A"})
    assert math.isnan(amd.read(amd.gpus[0])["util_frac"])


def test_without_the_driver_nothing_is_imported(tmp_path):
    def load():
        raise AssertionError

    amd = AmdSmi(tmp_path, load)
    amd.open()
    assert (amd.gpus, amd.gaps) == ((), ())


@pytest.mark.parametrize("problem", [ImportError("no module"), OSError("libamd_smi.so"), KeyError("ROCM_HOME")])
def test_a_package_that_cannot_be_used_is_a_gap_with_a_fix(root, problem):
    def load():
        raise problem

    amd = AmdSmi(root, load)
    amd.open()
    assert amd.gpus == ()
    assert amd.gaps[0].fix


def test_every_sensor_has_a_column():
    columns = {column.name for column in DEVICE_SAMPLES.columns}
    assert {name for names in SENSORS for name in names} <= columns


def test_the_watch_reads_them_and_does_not_miss_the_other_maker(root):
    def no_nvidia():
        nvml = Nvml(root=root)
        nvml.open()
        return nvml

    observer = Observer(Clock(), open_nvml=no_nvidia, open_amd=lambda: opened(root))
    observation = observer.observe()
    observer.close()
    gpus = [reading for reading in observation.readings if reading.device.kind != HOST_KIND]
    assert [reading.values["power_w"] for reading in gpus] == [512, 512]
    assert not any("NVIDIA" in gap.why for gap in observation.gaps)
