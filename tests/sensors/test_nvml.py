from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpulab.sensors.nvidia import other_processes
from gpulab.sensors.nvidia.nvml import SENSORS, Nvml
from gpulab.tables import GPU_SAMPLES
from tests.support import nvml_standin
from tests.support.nvml_standin import EXPECTED, LOST, NO_PERMISSION, NOT_SUPPORTED, OLDER, TIMEOUT, UNKNOWN, expected

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = [column.name for column in GPU_SAMPLES.columns if column.dtype == "float64"]
# Each column of one sensor, and the functions that can answer it, preferred first.
FUNCTIONS = {
    "util_frac": ("nvmlDeviceGetUtilizationRates",),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
    "power_w": ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"),
    "temperature_c": ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
    "throttle_bits": ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption",),
    "link_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "link_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "power_held_s": ("nvmlDeviceGetViolationStatus", "nvmlDeviceGetFieldValues"),
}
# What else does not answer when these functions do not, in the columns' own sensor or in another.
TOO = {
    "util_frac": {"memory_util_frac"},
    "power_held_s": {"thermal_held_s", "power_w"},
}
CALLS_PER_READING = {
    "nvmlDeviceGetViolationStatus": 2
}  # number of sensors that call it: once for power, once about heat
TWO_ANSWERS = [column for column, functions in FUNCTIONS.items() if len(functions) == 2]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    return lambda *absent: nvml_standin.build(folder, absent)


@pytest.fixture
def standin(built, monkeypatch):
    yield from nvml_standin.installed(built(), monkeypatch)


@pytest.fixture
def without(built, monkeypatch):
    """The stand-in without some functions."""
    open_ones = []

    def make(*absent):
        generator = nvml_standin.installed(built(*absent), monkeypatch)
        open_ones.append(generator)
        return next(generator)

    yield make
    for generator in open_ones:
        next(generator, None)


# Reading.


def test_the_sensors_fill_each_float_column_of_the_table_once():
    assert sorted(column for sensor in SENSORS for column in sensor.columns) == sorted(COLUMNS)


def test_all_fields_of_the_stand_in_differ():
    numbers = [base + gpu * step for gpu in range(4) for base, step in [*EXPECTED.values(), *OLDER.values()]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_is_its_own_field_of_its_own_gpu_in_its_own_unit(standin, opened, column):
    standin.reset(gpus=4)
    nvml = opened()
    assert [nvml.read(gpu)[column] for gpu in nvml.gpus] == [expected(column, gpu) for gpu in range(4)]
    assert nvml.gaps == ()


def test_no_slow_sensor_is_read_between_samples(standin, opened):
    nvml = opened()
    nvml.read(nvml.gpus[0])
    assert standin.calls("nvmlDeviceGetPcieThroughput") == 0
    assert standin.calls("nvmlDeviceGetUtilizationRates") == 1, "two columns, one question"


# What fails.


@pytest.mark.parametrize("column", FUNCTIONS)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_an_unsupported_sensor_is_nan_with_a_gap_and_not_read_again(standin, opened, column, code):
    for function in FUNCTIONS[column]:
        standin.fault(function, code, gpu=0)
    nvml = opened()
    readings = [nvml.read(nvml.gpus[0]) for _ in range(3)]
    call_count = standin.calls(FUNCTIONS[column][-1])
    other_processes = set(COLUMNS) - {column} - TOO.get(column, set())
    assert all(math.isnan(reading[column]) for reading in readings)
    assert all(reading[other] == expected(other, 0) for reading in readings for other in other_processes)
    assert nvml.read(nvml.gpus[1])[column] == expected(column, 1), "the other GPU goes on"
    nvml.read(nvml.gpus[0])
    assert standin.calls(FUNCTIONS[column][-1]) - call_count <= 1, "only the other GPU's question"
    (gap,) = nvml.gaps
    assert "GPU 0 (Standin H100)" in gap.what
    assert "MIG" not in gap.why
    assert gap.fix


def test_each_cause_is_one_gap(standin, opened):
    for function in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"):
        standin.fault(function, NOT_SUPPORTED)
    standin.fault("nvmlDeviceGetClockInfo", NO_PERMISSION)
    nvml = opened()
    for gpu in nvml.gpus:
        nvml.read(gpu)
    assert [gap.what for gap in nvml.gaps] == ["GPU utilisation and energy", "GPU SM clock and memory clock"]


@pytest.mark.parametrize("code", [TIMEOUT, UNKNOWN, 777])
@pytest.mark.parametrize("column", FUNCTIONS)
def test_a_transient_failure_is_nan_once(standin, opened, column, code):
    standin.fault(FUNCTIONS[column][0], code, gpu=0, count=1)
    nvml = opened()
    first, second = (nvml.read(nvml.gpus[0])[column] for _ in range(2))
    assert math.isnan(first)
    assert second == expected(column, 0)
    assert len(nvml.gaps) == 1


def test_a_fault_that_comes_and_goes_is_counted(standin, opened):
    standin.fault("nvmlDeviceGetTotalEnergyConsumption", TIMEOUT, count=3)
    nvml = opened(CUDA_VISIBLE_DEVICES="0")
    for _ in range(10):
        nvml.read(nvml.gpus[0])
    assert [gap.why for gap in nvml.gaps if "energy" in gap.what] == ["the driver did not answer in time (3 times)"]


def test_a_counter_with_all_bits_set_is_unavailable(standin, opened, monkeypatch):
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: 2**64 - 1)
    nvml = opened()
    assert math.isnan(nvml.read(nvml.gpus[0])["energy_j"])


def test_a_field_may_fail_within_a_call_that_succeeds(standin, opened):
    standin.fault("field", NOT_SUPPORTED, gpu=1)
    nvml = opened()
    assert nvml.read(nvml.gpus[0])["power_w"] == expected("power_w", 0)
    assert nvml.read(nvml.gpus[1])["power_w"] == expected("power_w", 1, OLDER)


@pytest.mark.parametrize("column", TWO_ANSWERS)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, 25])
def test_the_older_query_is_used_if_the_newer_one_fails(standin, opened, column, code):
    newer = FUNCTIONS[column][0]
    standin.fault(newer, code)
    nvml = opened()
    assert [nvml.read(nvml.gpus[1])[column] for _ in range(2)] == [expected(column, 1, OLDER)] * 2
    assert standin.calls(newer) == CALLS_PER_READING.get(newer, 1), "what failed for good is not asked again"
    assert nvml.gaps == (), "an answer from the older question leaves no gap"


@pytest.mark.parametrize("column", TWO_ANSWERS)
def test_the_older_query_is_used_with_an_old_driver(without, opened, column):
    without(FUNCTIONS[column][0])
    nvml = opened()
    assert nvml.read(nvml.gpus[0])[column] == expected(column, 0, OLDER)


@pytest.mark.parametrize("column", TWO_ANSWERS)
def test_a_new_driver_without_the_older_function_does_not_miss_it(without, opened, column):
    functions = set(FUNCTIONS[column][1:]) - {"nvmlDeviceGetMemoryInfo"}
    without(*functions)
    nvml = opened()
    assert nvml.read(nvml.gpus[0])[column] == expected(column, 0)


def test_the_older_query_is_used_with_an_old_nvidia_ml_py(standin, opened, monkeypatch):
    import pynvml

    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlMemory_v2"):
        monkeypatch.delattr(pynvml, name)
    nvml = opened()
    reading = nvml.read(nvml.gpus[0])
    for column in ("temperature_c", "throttle_bits", "memory_used_bytes"):
        assert reading[column] == expected(column, 0, OLDER)


def test_a_driver_without_the_function_at_all_is_named_as_the_cause(without, opened):
    without("nvmlDeviceGetTotalEnergyConsumption")
    nvml = opened(CUDA_VISIBLE_DEVICES="0")
    assert math.isnan(nvml.read(nvml.gpus[0])["energy_j"])
    assert ("GPU energy", "update the NVIDIA driver") in [(gap.what, gap.fix) for gap in nvml.gaps]


def test_a_lost_gpu_is_not_read_again_and_the_others_are(standin, opened):
    standin.fault("nvmlDeviceGetClockInfo", LOST, gpu=0, skip=2)
    nvml = opened()
    lost, sound = nvml.gpus
    assert nvml.read(lost)["sm_clock_mhz"] == expected("sm_clock_mhz", 0)
    assert nvml.available_gpus == nvml.gpus
    nvml.read(lost)
    call_count = standin.calls("nvmlDeviceGetUtilizationRates")
    assert all(math.isnan(value) for value in nvml.read(lost).values())
    assert standin.calls("nvmlDeviceGetUtilizationRates") == call_count
    assert nvml.available_gpus == (sound,)
    assert nvml.read(sound) == {column: expected(column, 1) for column in COLUMNS}
    assert [gap.what for gap in nvml.gaps] == ["sensors of GPU 0 (Standin H100)"]


# Others.

OTHERS = ["others_memory_bytes", "others_util_frac"]
LISTS = {"others_memory_bytes": "nvmlDeviceGetComputeRunningProcesses_v3"}
LISTS["others_util_frac"] = "nvmlDeviceGetProcessUtilization"


@pytest.fixture
def contained(monkeypatch):
    """As inside a container: the numbers of processes may be others than those seen here."""
    monkeypatch.setattr(other_processes, "pids_match_driver", lambda: False)


@pytest.fixture
def outside(monkeypatch):
    monkeypatch.setattr(other_processes, "pids_match_driver", lambda: True)


@pytest.mark.parametrize("column", OTHERS)
def test_process_lists_are_read_once_a_second_and_cached_between(standin, opened, column):
    nvml = opened()
    readings = [nvml.read(nvml.gpus[1])[column] for _ in range(3)]
    assert readings == [expected(column, 1)] * 3
    assert standin.calls(LISTS[column]) == 2, "once for the size, once for the list"


def test_process_lists_are_read_again_after_a_second(standin, opened, monkeypatch):
    nvml = opened()
    nvml.read(nvml.gpus[0])
    standin.processes(other=0)
    later = time.monotonic_ns() + 1_000_000_000
    monkeypatch.setattr("gpulab.sensors.nvidia.nvml.time.monotonic_ns", lambda: later)
    assert nvml.read(nvml.gpus[0])["others_memory_bytes"] != expected("others_memory_bytes", 0)


def test_without_other_processes_their_usage_is_zero(standin, opened, outside):
    standin.processes(other=0)
    nvml = opened()
    assert [nvml.read(nvml.gpus[0])[column] for column in OTHERS] == [0, 0]
    assert nvml.gaps == ()


@pytest.mark.parametrize("code", [0, 6])
def test_a_gpu_that_nobody_used_is_used_by_no_others(standin, opened, outside, monkeypatch, code):
    import pynvml

    def nothing(*_):
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", nothing)
    nvml = opened()
    assert nvml.read(nvml.gpus[0])["others_util_frac"] == 0
    assert nvml.gaps == ()


def test_child_processes_are_not_other_processes(standin, opened, outside):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    standin.processes(other=child.pid)
    nvml = opened()
    reading = nvml.read(nvml.gpus[0])
    child.communicate(b"\n")
    assert [reading[column] for column in OTHERS] == [0, 0]


def test_a_process_known_by_the_number_of_one_of_its_threads_is_this_one(standin, opened, outside):
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    standin.processes(own=thread.native_id, other=1 << 30)
    nvml = opened()
    others_bytes = nvml.read(nvml.gpus[0])["others_memory_bytes"]
    end.set()
    thread.join()
    assert others_bytes == expected("others_memory_bytes", 0)


@pytest.mark.parametrize("column", OTHERS)
def test_pids_of_another_namespace_are_one_gap(standin, opened, contained, column):
    standin.reset(gpus=1)
    standin.processes(own=(1 << 30) + 7, other=(1 << 30) + 8)
    nvml = opened()
    assert all(math.isnan(nvml.read(nvml.gpus[0])[column]) for _ in range(3))
    (gap,) = nvml.gaps
    assert gap.what == "GPU memory of other processes and utilisation by other processes"
    assert "container" in gap.why
    assert "times" not in gap.why


@pytest.mark.parametrize("column", OTHERS)
def test_in_a_container_an_empty_process_list_is_inconclusive(standin, opened, contained, column):
    nvml = opened()
    assert nvml.read(nvml.gpus[0])[column] == expected(column, 0)
    standin.processes(other=0)
    unseen = opened()
    assert math.isnan(unseen.read(unseen.gpus[0])[column])


def test_a_process_list_without_memory_is_unknown(standin, opened, outside):
    standin.processes(other=1 << 30, memory_told=False)
    nvml = opened()
    assert math.isnan(nvml.read(nvml.gpus[0])["others_memory_bytes"])


@pytest.mark.parametrize("column", OTHERS)
def test_unknown_usage_of_others_does_not_affect_other_sensors(standin, opened, column):
    standin.reset(gpus=1)
    standin.fault(LISTS[column], NOT_SUPPORTED)
    nvml = opened()
    reading = nvml.read(nvml.gpus[0])
    assert math.isnan(reading.pop(column))
    assert all(reading[other] == expected(other, 0) for other in reading)
    assert len(nvml.gaps) == 1


@pytest.mark.parametrize("question", ["nvmlDeviceGetViolationStatus", "field"])
def test_thermal_throttling_is_read_without_power_throttling(standin, opened, question):
    standin.reset(gpus=1)
    if question == "field":
        standin.fault("nvmlDeviceGetViolationStatus", NOT_SUPPORTED)
        standin.fault("field", NOT_SUPPORTED, skip=1, count=1)  # the first field that is asked for is the power drawn
    else:
        standin.fault(question, TIMEOUT, count=1)
    nvml = opened()
    reading = nvml.read(nvml.gpus[0])
    assert math.isnan(reading["power_held_s"])
    assert reading["thermal_held_s"] == expected("thermal_held_s", 0, OLDER if question == "field" else EXPECTED)
    assert [gap.what for gap in nvml.gaps] == ["GPU time throttled by power"]


# Opening.


def test_reading_while_nvml_is_closed_gives_nan(standin):
    nvml = Nvml({})
    nvml.open()
    gpu = nvml.gpus[0]
    nvml.close()
    assert all(math.isnan(value) for value in nvml.read(gpu).values())
    assert nvml.gpus, "the GPUs remain known"


def test_a_library_that_others_use_stays_open_when_we_close_it(standin, opened):
    import pynvml

    pynvml.nvmlInit()
    nvml = Nvml({})
    nvml.open()
    nvml.open()
    nvml.close()
    nvml.close()
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml._nvmlLib_refcount == 1


def test_a_library_that_others_shut_down_is_opened_again(standin, opened):
    import pynvml

    nvml = opened()
    gpu = nvml.gpus[1]
    pynvml.nvmlShutdown()
    assert all(math.isnan(value) for value in nvml.read(gpu).values())
    assert nvml.read(gpu) == {column: expected(column, 1) for column in COLUMNS}
    (gap,) = nvml.gaps
    assert "NVML" in gap.why


def test_a_forked_child_opens_the_library_for_itself(standin, opened):
    nvml = opened()
    nvml.read(nvml.gpus[1])
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        message = json.dumps([nvml.read(nvml.gpus[1]), [gap.why for gap in nvml.gaps]])
        os.write(write_end, message.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as pipe:
        reading, gaps = json.load(pipe)
    assert reading == {column: expected(column, 1) for column in COLUMNS}
    assert gaps == []


def test_without_the_library_there_is_one_gap_and_no_exception(monkeypatch, tmp_path):
    import pynvml

    def missing(*_):
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", missing)
    nvml = Nvml({}, root=tmp_path)
    nvml.open()
    assert (nvml.gpus, nvml.driver) == ((), None)
    (gap,) = nvml.gaps
    assert "no NVIDIA driver" in gap.why
    nvml.close()


@pytest.mark.parametrize(
    ("sign", "expected_why"),
    [
        ("proc/driver/nvidia/version", "libnvidia-ml"),
        ("dev/dxg", "WSL"),
        ("dev/kfd", "AMD"),
        ("sys/bus/pci/devices/0000:01:00.0/vendor", "no driver"),
    ],
)
def test_the_reason_for_a_missing_library_comes_from_the_file_system(standin, tmp_path, sign, expected_why):
    standin.fault("nvmlInitWithFlags", 12)
    (tmp_path / sign).parent.mkdir(parents=True)
    (tmp_path / sign).write_text("0x10de\n")
    (tmp_path / sign).with_name("class").write_text("0x030200\n")
    nvml = Nvml({}, root=tmp_path)
    nvml.open()
    (gap,) = nvml.gaps
    assert expected_why in gap.why


@pytest.mark.parametrize(("code", "fix"), [(9, "modprobe"), (18, "reboot"), (4, "/dev/nvidia"), (777, "nvidia-smi")])
def test_a_driver_that_cannot_be_opened_says_why_and_what_to_do(standin, opened, code, fix):
    standin.fault("nvmlInitWithFlags", code)
    (gap,) = opened().gaps
    assert fix in gap.fix


def python(code: str, **environ: str) -> str:
    """Run Python code in a separate process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    path = os.pathsep.join([environ.pop("PYTHONPATH", ""), str(ROOT)]).strip(os.pathsep)
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


SAY_GAPS = "from gpulab.sensors.nvidia.nvml import Nvml; n = Nvml(); n.open(); print([vars(g) for g in n.gaps])"


@pytest.mark.parametrize("missing", ["_nvmlGetFunctionPointer", "nvmlInitWithFlags"])
def test_an_old_package_in_place_of_nvidia_ml_py_is_named(tmp_path, missing):
    present = {"_nvmlGetFunctionPointer", "nvmlInitWithFlags"} - {missing}
    (tmp_path / "pynvml.py").write_text("\n".join(f"def {name}(*_): raise SystemExit(1)" for name in present))
    output = python(SAY_GAPS, PYTHONPATH=str(tmp_path))
    assert output.count("'why'") == 1
    assert "hides nvidia-ml-py" in output
    assert "pip uninstall -y pynvml nvidia-ml-py3" in output


def test_a_missing_nvidia_ml_py_is_a_gap_with_an_install_command(tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError('no module named pynvml')")
    assert "pip install nvidia-ml-py" in python(SAY_GAPS, PYTHONPATH=str(tmp_path))


def test_the_library_is_found_where_the_system_looks_for_libraries(built):
    reset = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1').standin_reset(1); "
    code = "from gpulab.sensors.nvidia.nvml import Nvml; n = Nvml(); n.open(); print(n.gpus[0].name, n.read(n.gpus[0]))"
    output = python(reset + code, LD_LIBRARY_PATH=str(built().parent))
    assert output.startswith("Standin H100 {'util_frac': 0.61,")
