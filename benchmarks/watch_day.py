"""A day of `gpulab watch` in simulated time, with faults and a kill in about every hour: is what it stores right?

    python -m benchmarks.watch_day [--speed 60] [--hours 24]

Two GPUs by a stand-in of NVIDIA's library: one is lost for 24 minutes, the driver is unloaded for 6, the processes are
hidden for an hour, the clock is set forward and back, the disk is full for 5 and for 30 minutes, and the watch is
killed by SIGKILL after a random time. At 60 times the speed, a day takes 25 minutes. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gpulab.watch.history import GpuHistory
from gpulab.watch.schema import SECONDS
from tests.watch.test_simulated_day import live_through, unexplained_seconds, whole, wrong_rows

HOUR_S = 3600


def main() -> None:
    """Run the day, and print what was stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--speed", type=float, default=60.0, help="simulated seconds per second; 0: as fast as possible"
    )
    parser.add_argument("--hours", type=int, default=24)
    options = parser.parse_args()
    mean_life_s = HOUR_S / options.speed if options.speed else 6.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kills = live_through(
            folder, hour_s=HOUR_S, life_s=2 * mean_life_s, hours=options.hours, speed=options.speed, pause_s=90
        )
        database = folder / "watch.sqlite"
        with GpuHistory(database) as history:
            gpus = [device for device in history.devices() if not device.is_host]
            rows = [len(whole(history, gpu, SECONDS)) for gpu in gpus]
            print(f"{kills} kills; seconds with readings: {rows}; database {database.stat().st_size / 1e6:.0f} MB")
            print(f"rows with wrong values: {len(wrong_rows(history, gpus))}")
            print(f"seconds without a reading or a reason: {len(unexplained_seconds(history, gpus))}")
        costs = [line.split() for line in (folder / "watch.sqlite.costs").read_text().splitlines()]
        ticks_ms = sorted(1e3 * float(cpu_s) / float(readings) for _, readings, cpu_s, _ in costs)
        sizes_mb = [float(size) / 1e6 for *_, size in costs]
        print(f"CPU time per reading: {ticks_ms[0]:.2f} to {ticks_ms[-1]:.2f} ms, with the start of Python")
        print(f"memory of the process: {min(sizes_mb):.0f} to {max(sizes_mb):.0f} MB")


if __name__ == "__main__":
    main()
