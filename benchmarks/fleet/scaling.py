"""Time and memory of gpulab.fleet for growing numbers of ranks, then a run with a killed worker and corrupt files.

    python -m benchmarks.fleet.job TRACE FOLDER --ranks 512 --straggler 37
    python -m benchmarks.fleet.scaling FOLDER --ranks 32 128 512 --straggler 37

Each size is analysed without a cache, on a local cluster. Prints a Markdown table. Other programs may use the cores:
CPU times, of the workers, tell more than wall times.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.fleet.job import UNREADABLE
from benchmarks.fleet.processes import Watch
from gpulab.fleet import Fleet, fleet
from gpulab.fleet.job_summary import join_all, join_ranks
from gpulab.fleet.rank_summary import encode

LARGE_RANKS = 16_384


def main() -> None:
    """Print the table, and what a killed worker and corrupt files cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--straggler", type=int, default=37)
    given = parser.parse_args()
    files = sorted(given.folder.glob("rank_*.json.gz"))
    print(
        "| ranks | time | CPU per rank | largest worker | all processes | straggler |\n|---:|---:|---:|---:|---:|---|"
    )
    rows = []
    for ranks in given.ranks:
        rows.append(measure(files, ranks, given.straggler))
        print(rows[-1][0], flush=True)
    print(
        f"\nfor {LARGE_RANKS:,} ranks: {extrapolation(given.ranks, [seconds for _, seconds, _ in rows], rows[-1][2])}"
    )
    print(disturbed(files, given.ranks[min(1, len(given.ranks) - 1)], given.straggler))


def chosen(files: list[Path], ranks: int, straggler: int) -> list[Path]:
    """Return the files of so many ranks, that of the straggler among them."""
    first = max(0, min(straggler - ranks // 2, len(files) - ranks))
    return files[first : first + ranks]


def measure(files: list[Path], ranks: int, straggler: int) -> tuple[str, float, Fleet]:
    """Return the row of the table for a job of this size, the CPU time of its workers in s, and its result."""
    with Watch() as watch:
        result = fleet([*chosen(files, ranks, straggler)], progress=False)
    answer = result.straggler
    late = f"rank {answer.late_rank}{answer.cause.clause if answer.cause else ''}" if answer else "none"
    return (
        f"| {ranks} | {watch.wall_s:.1f} s | {1000 * watch.cpu_s / ranks:.0f} ms "
        f"| {watch.worker_peak_bytes / 1e6:.0f} MB | {watch.total_peak_bytes / 1e6:.0f} MB | {late} |",
        watch.cpu_s,
        result,
    )


def extrapolation(ranks: list[int], seconds: list[float], result: Fleet) -> str:
    """Return the CPU time by a line through the smallest and the largest job, and the size of the joined summary."""
    slope = (seconds[-1] - seconds[0]) / max(1, ranks[-1] - ranks[0])
    total_s = seconds[0] + slope * (LARGE_RANKS - ranks[0])
    copies = LARGE_RANKS // len(result.job.ranks)
    start = time.perf_counter()
    many = join_all([join_ranks(*result.job.ranks)] * copies)
    join_s = time.perf_counter() - start
    size = sum(len(encode(summary)) for summary in many.ranks)
    return (
        f"{total_s / 60:.0f} min of CPU time ({1000 * slope:.0f} ms per further rank), so {total_s / 120:.0f} min on 2 "
        f"cores and {total_s / 256:.0f} s on 256; "
        f"summaries: {size / 1e6:.0f} MB in all ({size / len(many.ranks):.0f} bytes each), joined in {join_s:.1f} s"
    )


def disturbed(files: list[Path], ranks: int, straggler: int) -> str:
    """Kill a worker half-way through a job with three corrupt files; return what was lost."""
    from distributed import Client, LocalCluster

    names = chosen(files, ranks, straggler)
    with tempfile.TemporaryDirectory() as folder:
        for path in names:
            Path(folder, path.name).symlink_to(path)
        corrupt = [path.name for path in names if f"{straggler:05d}" not in path.name][:: ranks // 3][:3]
        for name, content in zip(corrupt, UNREADABLE, strict=True):
            Path(folder, name).unlink()
            Path(folder, name).write_bytes(content)
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50)
        with cluster, Client(cluster) as client:
            victims: list[int] = []
            killer = threading.Thread(target=kill_half_way, args=(client, ranks, victims), daemon=True)
            killer.start()
            result = fleet(folder, client, progress=False)
            killer.join(1)
    answer = result.straggler
    return (
        f"{len(victims)} worker killed half-way, {len(corrupt)} corrupt files: read {len(result.ranks)} of {ranks}, "
        f"unread {[(file.rank, file.reason) for file in result.unread]}, "
        f"straggler {answer.late_rank if answer else 'none'}"
    )


def kill_half_way(client: object, ranks: int, victims: list[int]) -> None:
    """Kill a worker process when half of the files have been read."""
    while True:
        time.sleep(0.2)
        counts = client.run_on_scheduler(finished_tasks)  # type: ignore[attr-defined]
        if counts >= ranks // 2:
            pid = next(iter(client.run(os.getpid).values()))  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
            victims.append(pid)
            return


def finished_tasks(dask_scheduler: object) -> int:
    """Return how many files have been read so far, on the scheduler."""
    groups = dask_scheduler.task_prefixes  # type: ignore[attr-defined]
    return sum(
        prefix.state_counts["memory"] + prefix.state_counts["released"]
        for name, prefix in groups.items()
        if "gpulab" in name
    )


if __name__ == "__main__":
    main()
