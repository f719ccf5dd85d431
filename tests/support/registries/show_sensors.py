"""Samples, stores, loads and shows all sensors of the gpulab on sys.path, with the stand-in NVML; prints JSON.

Run as a program: `show_sensors.py STANDIN_LIBRARY FOLDER`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gpulab
from gpulab import charts
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.run import Machine, Run, Source
from gpulab.sensors import Reading, Sensors
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.views.info import info
from gpulab.views.live.panel_content import PanelContentBuilder
from gpulab.views.timeline.scene.scene import build_scene
from tests.support import nvml_standin

MS = 1_000_000


def main(library: Path, folder: Path) -> None:
    generator = nvml_standin.installed(library, pytest.MonkeyPatch())
    standin = next(generator)
    run, reading = sample()
    gpulab.save(run, folder / "run.gpulab")
    loaded = gpulab.load(folder / "run.gpulab")
    standin.reset()
    standin.fault("nvmlDeviceGetFanSpeed", nvml_standin.NOT_SUPPORTED)
    json.dump({**shown(loaded, reading, folder), "gaps": gaps()}, sys.stdout)


def sample() -> tuple[Run, Reading]:
    """A run of sensors alone, and the latest reading of each."""
    began_ns, enough, samples = time.time_ns(), threading.Event(), []

    def on_tick() -> None:
        samples.append(sensors.latest())
        if len(samples) >= 5:
            enough.set()

    sensors = Sensors(on_tick=on_tick, period_ns=20 * MS, nvml=Nvml({}))
    sensors.start()
    assert enough.wait(30)
    sensors.stop()
    run = Run(
        name="sensors",
        source=Source(how="measured", device="Standin H100"),
        machine=Machine(gpus=sensors.gpus, driver="1", torch="2.9+cu129"),
        span_ns=time.time_ns() - began_ns,
        gpu_rows=sensors.gpu_rows(began_ns),
        host_rows=sensors.host_rows(began_ns),
    )
    return run, samples[-1]


def shown(run: Run, reading: Reading, folder: Path) -> dict[str, Any]:
    """The run in each view of sensors."""
    live = LiveSnapshot(
        phase="recording", elapsed_s=1.0, steps=0, steps_per_s=None, waiting_frac=None, gpus=reading.gpus,
        core_fracs=(), rss_bytes=None, workers=0, frame=None,
    )  # fmt: skip
    host_only = Run(name="host", source=run.source, machine=Machine(), span_ns=run.span_ns, host_rows=run.host_rows)
    gpulab.to_perfetto(run, folder / "run.json")
    events = json.loads((folder / "run.json").read_text(encoding="utf-8"))["traceEvents"]
    return {
        "stored": {
            rows.table.name: {column.name: rows[column.name].tolist() for column in rows.table.columns if column.label}
            for rows in (run.gpu_rows, run.host_rows)
        },
        "report": str(gpulab.report(run)),
        "timeline": build_scene(gpulab.diagnose(run)).header()["groups"],
        "charts": [
            [cell for row in chart.table.rows for cell in row.cells]
            for chart in (charts.sensors(run), charts.sensors(host_only))
        ],
        "axes": [axes.get_title(loc="left") for one in (run, host_only) for axes in charts.sensors(one).axes],
        "perfetto": sorted({event["name"] for event in events if event["ph"] == "C"}),
        "live": {tile.label: tile.value for tile in PanelContentBuilder("r").build(live).tiles},
        "info": str(info(run.machine)),
    }


def gaps() -> list[str]:
    """What cannot be measured, of the GPU alone."""
    nvml = Nvml({})
    nvml.open()
    for gpu in nvml.gpus:
        nvml.read(gpu)
    nvml.close()
    return [gap.what for gap in nvml.gaps]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
