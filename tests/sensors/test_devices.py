from __future__ import annotations

import math

import pytest

from tests.support import nvml_standin
from tests.support.nvml_standin import EXPECTED, LOST, expected


@pytest.fixture
def standin(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp()
    yield from nvml_standin.installed(nvml_standin.build(folder), monkeypatch)


def test_gpus_have_the_values_of_the_driver(standin, opened):
    standin.capability(1, 8, 6)
    nvml = opened()
    first, second = nvml.gpus
    assert (first.index, first.name) == (0, "Standin H100")
    assert first.uuid == "GPU-0abcdef0-0000-0000-0000-000000000000"
    assert first.memory_bytes == 150_000_000_000
    assert first.multiprocessors == 132
    assert first.compute_capability == "9.0"
    assert first.power_limit_w == 700.5
    assert (first.power_default_w, first.sm_clock_max_mhz) == (800.5, 1980)
    assert (first.link_generation_max, first.link_width_max) == (15, 31)
    assert first.mig is False
    assert (second.name, second.memory_bytes, second.compute_capability) == ("Standin H200", 157_000_000_000, "8.6")
    assert second.power_limit_w == 710.5
    assert (second.power_default_w, second.sm_clock_max_mhz) == (820.5, 2010)
    assert (second.link_generation_max, second.link_width_max) == (16, 32)
    assert nvml.driver == "999.10.standin"


def test_invalid_utf8_in_a_gpu_name_is_replaced(standin, opened):
    standin.name(0, b"Standin \xff\xfe100")
    assert opened().gpus[0].name == "Standin ��100"


def test_an_unknown_architecture_has_an_unknown_number_of_multiprocessors(standin, opened):
    standin.capability(0, 77, 0)
    assert opened().gpus[0].multiprocessors is None


def test_a_lost_gpu_is_a_gap_and_the_others_are_listed(standin, opened):
    standin.fault("nvmlDeviceGetHandleByIndex_v2", LOST, gpu=0)
    nvml = opened()
    assert [gpu.name for gpu in nvml.gpus] == ["Standin H200"]
    assert [gap.what for gap in nvml.gaps] == ["GPU 0 of the driver's list"]


def test_a_driver_without_gpus_is_a_gap(standin, opened):
    standin.reset(gpus=0)
    (gap,) = opened().gaps
    assert "shows no GPU" in gap.why


def test_a_mig_instance_is_listed_and_its_missing_sensors_are_a_gap(standin, opened):
    standin.reset(gpus=1)
    standin.mig(0, instances=1)
    nvml = opened()
    (gpu,) = nvml.gpus
    assert gpu.name == "Standin H100 MIG 1g.18gb"
    assert gpu.uuid.startswith("MIG-01")
    assert (gpu.mig, gpu.multiprocessors, gpu.power_limit_w) == (True, 16, None)
    reading = nvml.read(gpu)
    assert reading["memory_used_bytes"] == EXPECTED["memory_used_bytes"][0] + 2, "the instance's own, in slot 1"
    shared = ["sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle_bits", "link_generation", "link_width"]
    for column in (*shared, "power_held_s", "thermal_held_s"):
        assert reading[column] == expected(column, 0), "shared with the whole GPU"
    for column in ("util_frac", "memory_util_frac", "power_w", "energy_j", "others_util_frac"):
        assert math.isnan(reading[column])
    (gap,) = nvml.gaps
    assert gap.what == "GPU utilisation, power, energy and utilisation by other processes"
    assert "MIG" in gap.why


def test_one_mig_instance_hides_the_other_instances_and_the_whole_gpus(standin, opened):
    standin.mig(1, instances=2)
    nvml = opened()
    assert [gpu.uuid[:6] for gpu in nvml.gpus] == ["MIG-11"]
    assert "2 of 3 GPUs: Standin H100 (GPU-0abcdef0) and Standin H200 (MIG-13bcdef0)" in [g.what for g in nvml.gaps]


def test_a_mig_gpu_without_instances_is_a_gap(standin, opened):
    standin.mig(0, instances=0)
    nvml = opened()
    assert [gpu.name for gpu in nvml.gpus] == ["Standin H200"]
    assert ["MIG" in gap.why for gap in nvml.gaps if gap.what == "Standin H100"] == [True]


def uuid(gpu: int) -> str:
    return f"GPU-{gpu}abcdef0-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("setting", "visible"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 0 ", [1, 0]),
        ("1,9,0", [1]),
        ("1,-1,0", [1]),
        ("-1", []),
        ("", []),
        ("none", []),
        ("NoDevFiles", []),
        ("1,1", []),
        (uuid(2), [2]),
        (f"{uuid(3)},{uuid(0)}", [3, 0]),
        ("GPU-2", [2]),
        ("GPU-", []),
        ("GPU-7", []),
        ("MIG-0", []),
    ],
)
def test_the_gpus_are_those_that_cuda_visible_devices_shows_in_its_order(standin, opened, setting, visible):
    standin.reset(gpus=4)
    nvml = opened(CUDA_VISIBLE_DEVICES=setting)
    assert [gpu.uuid for gpu in nvml.gpus] == [uuid(gpu) for gpu in visible]
    assert [gpu.index for gpu in nvml.gpus] == list(range(len(visible)))
    assert [nvml.read(gpu)["power_w"] for gpu in nvml.gpus] == [expected("power_w", gpu) for gpu in visible]
    hidden = [gap for gap in nvml.gaps if f"CUDA_VISIBLE_DEVICES={setting} hides" in gap.why]
    assert len(hidden) == (len(visible) < 4)
    assert all(gap.what.startswith(f"{4 - len(visible)} of 4 GPUs") for gap in hidden)


@pytest.mark.parametrize(
    ("setting", "visible"),
    [("MIG-13", ["MIG-13"]), ("MIG-11,MIG-13", ["MIG-11"]), ("1", ["MIG-11"]), ("0", ["GPU-0a"]), ("GPU-1", [])],
)
def test_mig_instances_are_selected_by_uuid_or_the_first_by_number(standin, opened, setting, visible):
    standin.mig(1, instances=2)
    nvml = opened(CUDA_VISIBLE_DEVICES=setting)
    assert [gpu.uuid[:6] for gpu in nvml.gpus] == visible


def test_the_order_of_different_gpus_is_reported_as_uncertain(standin, opened):
    def caveats(nvml):
        return [gap for gap in nvml.gaps if "CUDA_DEVICE_ORDER" in gap.fix]

    fastest = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert len(caveats(opened(**fastest))) == 1
    assert len(caveats(opened(CUDA_VISIBLE_DEVICES="1,0", **fastest))) == 1
    assert caveats(opened(CUDA_VISIBLE_DEVICES=uuid(1), **fastest)) == []
    assert caveats(opened(CUDA_DEVICE_ORDER="PCI_BUS_ID")) == []
    standin.name(1, b"Standin H100")
    assert caveats(opened(**fastest)) == [], "among GPUs of one kind the order is the same"
