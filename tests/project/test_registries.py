"""One entry in one or two places: each test adds an entry to the source of a copy of the package, and sees it work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import nvml_standin

ROOT = Path(__file__).resolve().parents[2]
SENSOR_TABLES, QUESTIONS, HOST_QUESTIONS = "sensor_tables.py", "sensors/nvml_sensors.py", "sensors/host/process.py"

GPU_SENSOR = {
    SENSOR_TABLES: (
        '        Column("device", "int16", "index into run.machine.gpus"),\n',
        '        _reading("fan_frac", "fan speed", "speed of the fan", display=EVERYWHERE),\n',
    ),
    QUESTIONS: (
        "SENSORS = (\n",
        '    Sensor(columns=("fan_frac",), reads=(lambda nvml, gpu: (nvml.nvmlDeviceGetFanSpeed(gpu) / 100,),)),\n',
    ),
}
HOST_SENSORS = {
    SENSOR_TABLES: (
        '        Column("late_ns", "int64", "how far behind its schedule the sampler was"),\n        _reading(\n',
        '            "case_c", "case temperature", "temperature of the case", display=EVERYWHERE),\n'
        '        _reading("used_j", "energy of the case", "energy so far", COUNTER, display=EVERYWHERE),\n'
        "        _reading(\n",
    ),
    HOST_QUESTIONS: (
        "SENSORS = (\n",
        '    HostSensor(columns=("case_c", "used_j"), read=lambda host: (41.5, 100.0 * time.monotonic())),\n',
    ),
}


def copy_with(folder: Path, *entries: dict[str, tuple[str, str]]) -> Path:
    """A copy of the package in which each entry stands after the text it names, once in each file."""
    package = folder / "copy" / "gpulab"
    shutil.copytree(ROOT / "gpulab", package, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    for entry in entries:
        for name, (after, text) in entry.items():
            source = (package / name).read_text(encoding="utf-8")
            assert source.count(after) == 1, f"{name} has changed: {after!r}"
            (package / name).write_text(source.replace(after, after + text), encoding="utf-8")
    return package.parent


def run_in(copy: Path, *command: str) -> str:
    """The output of a program that imports the copy."""
    environ = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *command], env=environ, cwd=copy, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the views show of two GPUs and a host with three more sensors."""
    folder = tmp_path_factory.mktemp("sensors")
    copy = copy_with(folder, GPU_SENSOR, HOST_SENSORS)
    program = ROOT / "tests" / "support" / "registries" / "show_sensors.py"
    return json.loads(run_in(copy, str(program), str(nvml_standin.build(folder)), str(folder)))


def test_a_new_sensor_is_sampled_stored_and_loaded(shown):
    assert set(shown["stored"]["gpu_samples"]["fan_frac"]) == {0.37, 0.42}
    assert set(shown["stored"]["host_samples"]["case_c"]) == {41.5}
    assert shown["stored"]["host_samples"]["used_j"][0] > 0


def test_a_new_sensor_is_listed_in_the_report_and_among_what_is_measured(shown):
    lines = [" ".join(line.split()) for line in shown["report"].splitlines()]
    assert "GPU 0 fan speed 37 % 37 % 37 %" in lines
    assert "GPU 1 fan speed 42 % 42 % 42 %" in lines
    assert "case temperature 42 °C 42 °C 42 °C" in lines
    (watts,) = (float(line.split()[4]) for line in lines if line.startswith("energy of the case"))
    assert watts == pytest.approx(100, rel=0.3), "a counter is shown by its growth per second"
    assert "fan speed" in shown["info"]


def test_a_new_sensor_is_a_curve_of_the_timeline(shown):
    groups = {group["id"]: group for group in shown["timeline"]}
    fan, case, used = groups["gpu0:fan_frac"], groups["host:case_c"], groups["host:used_j"]
    assert (fan["name"], fan["format"], fan["high"]) == ("GPU 0 fan speed", "percent", 1.0)
    assert (case["name"], case["unit"]) == ("case temperature", "°C")
    assert used["unit"] == "W"
    assert used["high"] > 100


def test_a_new_sensor_is_a_plot_of_the_chart(shown):
    on_gpu, on_host = shown["charts"]
    assert "fan speed" in on_gpu
    assert "case temperature" in on_host
    assert {"fan speed, %", "case temperature, °C", "energy of the case, W"} <= set(shown["axes"])


def test_a_new_sensor_is_a_counter_of_perfetto(shown):
    assert {"GPU 0 fan speed, %", "GPU 1 fan speed, %", "case temperature, °C", "energy of the case, W"} <= set(
        shown["perfetto"]
    )


def test_a_new_sensor_is_a_tile_of_the_live_panel(shown):
    assert shown["live"]["GPU 0 fan speed"] == "37 %"


def test_a_new_sensor_that_does_not_answer_is_named_by_its_label(shown):
    assert "GPU fan speed" in shown["gaps"]
