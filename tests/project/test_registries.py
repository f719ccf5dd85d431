"""One entry in one or two places: each test adds an entry to the source of a copy of the package, and sees it work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import nvml_standin

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "support" / "registries"


class Edit(NamedTuple):
    """Text that is inserted into a file of the package, after the only place where another text stands."""

    file: str
    after: str
    text: str


GPU_SENSOR = (
    Edit(
        "sensor_tables.py",
        '        Column("device", "int16", "index into run.machine.gpus"),\n',
        '        _reading("fan_frac", "fan speed", "speed of the fan", display=EVERYWHERE),\n',
    ),
    Edit(
        "sensors/nvidia/nvml_sensors.py",
        "SENSORS = (\n",
        '    Sensor(columns=("fan_frac",), reads=(lambda nvml, gpu: (nvml.nvmlDeviceGetFanSpeed(gpu) / 100,),)),\n',
    ),
)
HOST_SENSORS = (
    Edit(
        "sensor_tables.py",
        '        Column("at_ns", "int64", "when the host was sampled, from the start of the run"),\n',
        '        _reading("case_c", "case temperature", "temperature of the case", display=EVERYWHERE),\n'
        '        _reading("used_j", "energy of the case", "energy so far", COUNTER, display=EVERYWHERE),\n',
    ),
    Edit(
        "sensors/host/process.py",
        "SENSORS = (\n",
        '    HostSensor(columns=("case_c", "used_j"), read=lambda host: (41.5, 100.0 * time.monotonic())),\n',
    ),
)
CATALOGUES = (
    Edit(
        "views/charts/catalogue.py",
        "from collections.abc import Callable\n",
        "from gpulab.views.charts.machine.made_chart import made_chart\n",
    ),
    Edit("views/charts/catalogue.py", "CHARTS: tuple[Callable[..., Chart], ...] = (\n", "    made_chart,\n"),
    Edit(
        "rules/engine/catalogue.py",
        "from __future__ import annotations\n",
        "from gpulab.rules.machine.made_rule import made_rule\n",
    ),
    Edit(
        "rules/engine/catalogue.py",
        "RULES: tuple[Rule, ...] = (\n",
        '    Rule(check=made_rule, about="something made up", stage=Stage.MEMORY),\n',
    ),
    Edit(
        "replay/rewrites/catalogue.py",
        "from __future__ import annotations\n",
        "from gpulab.replay.rewrites.machine.made_rewrite import HALF\n",
    ),
    Edit("replay/rewrites/catalogue.py", "REWRITES: tuple[Rewrite, ...] = (\n", "    HALF,\n"),
)
FUNCTIONS = {
    "made_chart.py": "views/charts/machine",
    "made_rule.py": "rules/machine",
    "made_rewrite.py": "replay/rewrites/machine",
}


def copy_with(folder: Path, *edits: Edit) -> Path:
    """The folder of a copy of the package with these edits."""
    package = folder / "copy" / "gpulab"
    shutil.copytree(ROOT / "gpulab", package, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    for file, after, text in edits:
        source = (package / file).read_text(encoding="utf-8")
        assert source.count(after) == 1, f"{file} has changed: {after!r}"
        (package / file).write_text(source.replace(after, after + text), encoding="utf-8")
    return package.parent


def run_in(copy: Path, program: str, *arguments: object) -> dict:
    """What a program prints that imports the copy."""
    environ = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
    command = [sys.executable, PROGRAMS / program, *map(str, arguments)]
    done = subprocess.run(command, env=environ, cwd=copy, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


# Sensors: a column and a question.


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the views show of two GPUs and a host with three more sensors."""
    folder = tmp_path_factory.mktemp("sensors")
    copy = copy_with(folder, *GPU_SENSOR, *HOST_SENSORS)
    return run_in(copy, "show_sensors.py", nvml_standin.build(folder), folder)


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
    names = {"GPU 0 fan speed, %", "GPU 1 fan speed, %", "case temperature, °C", "energy of the case, W"}
    assert names <= set(shown["perfetto"])


def test_a_new_sensor_is_a_tile_of_the_live_panel(shown):
    assert shown["live"]["GPU 0 fan speed"] == "37 %"


def test_a_new_sensor_that_does_not_answer_is_named_by_its_label(shown):
    assert "GPU fan speed" in shown["gaps"]


# Charts, rules, rewrites: a function and an entry in the catalogue.


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A new chart, rule and rewrite, used wherever such things appear."""
    copy = copy_with(tmp_path_factory.mktemp("catalogues"), *CATALOGUES)
    for file, folder in FUNCTIONS.items():
        shutil.copy(PROGRAMS / file, copy / "gpulab" / folder)
    return run_in(copy, "show_catalogues.py")


def test_a_new_chart_is_drawn_by_its_name(used):
    assert used["chart"] == ["A chart", True]


def test_a_new_rule_answers_has_a_page_and_is_completed(used):
    assert used["rule"] == ["This is always so."]
    assert "A rule that always answers." in used["rule page"]
    assert "something made up" in used["contents"]
    assert "made_rule" in used["completions"][0]


def test_a_new_rewrite_is_priced_ranked_has_a_page_and_is_completed(used):
    assert "With made_rewrite" in used["rewrite"]
    assert "made_rewrite" in used["ranking"]
    assert "Kernels in half the time." in used["rewrite page"]
    assert "kernels in half the time" in used["contents"]
    assert all("made_rewrite" in names for names in used["completions"])
