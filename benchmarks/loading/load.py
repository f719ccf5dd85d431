"""Benchmark loading a trace and computing basic figures: gpulab, its peers and a lower limit, in alternating runs.

    python benchmarks/loading/load.py [--peers PYTHON] [--trace FILE ...] [--rounds 3] [--five-million [--peers-too]]

From each real trace, a trace of a million events is generated (benchmarks/loading/scaled_trace.py). Each variant then
runs in a fresh process, all variants once per round. The results are medians over the rounds:

    wall    from the start of the process to its end, imports included
    CPU     user and system time of the process, its threads and its children: the figure to compare by, since it
            depends less than wall time on other load
    peak    maximum resident memory, in MB of 10**6 bytes
    x CPU   the CPU time as a multiple of gpulab's time to load and compute its figures

Idle time and number of kernels are printed too, to show that each variant did the work. They differ if a peer drops
the last step, rounds to microseconds, or counts idle time over steps and kernels only.

The variants are gpulab as a script would use it (benchmarks/loading/ours.py), the last one with pandas imported and
all events in a DataFrame; its peers, each by the shortest way its interface offers (benchmarks/loading/peers.py); and
the lower limit: inflating the file and finding every token of its JSON with simdjson, without building objects.
Loading is compared to the limit by the CPU time of each after all imports.

The peers' requirements may conflict with gpulab's: give them a separate environment and pass its Python as --peers.
These commands create it, without PyTorch:

    python -m venv peers
    peers/bin/python -m pip install HolisticTraceAnalysis==0.5.0 torch_tb_profiler==0.4.3 "pandas<3" pysimdjson isal

Missing peers are reported. The targets are printed with yes or no; a missed target does not fail the command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TRACES = Path(os.environ.get("GPULAB_SHARED", HERE.parents[2] / "shared")) / "traces"
LARGE = ("a100_ddp_8ranks_rank.json.gz", "h100_timesformer_inference.json.gz")
SMALL = "b200_eager.json.gz"
MB = MILLION = 1e6
MANY = 2_000_000  # more events than this take the peers minutes and many GB
BOUNDS = (("hta", 12.0), ("torch_tb", 12.0), ("pandas", 5.0))  # the CPU time of each, in that of gpulab
GPULAB_WAYS = {"load": "gpulab: load only", "figures": "gpulab: load, figures", "frame": "gpulab: and run.events"}
PEERS = {"hta": "HolisticTraceAnalysis", "torch_tb": "torch_tb_profiler", "pandas": "json + pandas by hand"}
FLOOR = {"floor": "floor: inflate, scan JSON"}
NAMES = GPULAB_WAYS | PEERS | FLOOR
PIP = {
    "hta": 'HolisticTraceAnalysis==0.5.0 "pandas<3"',
    "torch_tb": 'torch_tb_profiler==0.4.3 "pandas<3"',
    "pandas": '"pandas<3"',
    "floor": "pysimdjson isal",
}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Time, memory and output of one process; `failed` is the last line of its error."""

    wall_s: float
    cpu_s: float
    peak_bytes: float
    told: dict[str, float | None]
    failed: str = ""

    @property
    def load_cpu_s(self) -> float:
        """CPU time of reading alone, as the process took it itself."""
        return self.told.get("load_cpu_s") or float("nan")


Results = dict[str, Taken]


class Target(NamedTuple):
    """A target and the measured value; None if not measured."""

    what: str
    value: float | None
    bound: float
    unit: str
    at_least: bool = False

    def __str__(self) -> str:
        sign, bound = ">=" if self.at_least else "<=", f"{self.bound:g}{self.unit}"
        if self.value is None:
            return f"  {'-':>9}  {sign} {bound:8} not measured  {self.what}"
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        return f"  {self.value:>8.2f}{self.unit:3} {sign} {bound:8} {'yes' if met else 'NO ':12}  {self.what}"


class Bench:
    """Runs the variants on a file, with the available interpreters."""

    def __init__(self, peers: str, folder: Path) -> None:
        self.peers, self.folder = peers, folder
        try:
            asked = subprocess.run([peers, str(HERE / "peers.py")], stdout=subprocess.PIPE, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"--peers {peers} is not a Python that runs: {error}")
        self.versions: dict[str, str | None] = json.loads(asked.stdout)
        self.there = [way for way in (*PEERS, *FLOOR) if self.versions[way]]

    def run(self, way: str, trace: Path) -> Taken:
        """One way, in a fresh process, in a folder that vanishes."""
        ours = way in GPULAB_WAYS
        python, script = (sys.executable, "ours.py") if ours else (self.peers, "peers.py")
        environ = dict(os.environ)
        if ours:
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parents[1]), environ.get("PYTHONPATH"))))
        with tempfile.TemporaryDirectory() as folder:
            return taken([python, str(HERE / script), way, str(trace.resolve())], environ, folder)

    def measure(self, trace: Path, ways: Sequence[str], rounds: int) -> Results:
        """The median of each way, run in turn; what failed once is not run again."""
        runs: dict[str, list[Taken]] = {way: [] for way in ways}
        for number in range(rounds):
            for way in ways:
                if not runs[way] or not runs[way][-1].failed:
                    say(f"{trace.name}: round {number + 1} of {rounds}, {NAMES[way]}")
                    runs[way].append(self.run(way, trace))
        say("")
        return {way: middle(several) for way, several in runs.items()}

    def scaled(self, trace: Path, events: int) -> Path:
        """The large trace of a real one, made in a process of its own: this one must stay small."""
        say(f"making {events:,} events of {trace.name}")
        command = [sys.executable, str(HERE / "scaled_trace.py"), str(trace), "--events", str(events)]
        done = subprocess.run([*command, "--dir", str(self.folder)], stdout=subprocess.PIPE, text=True)
        say("")
        if done.returncode:
            sys.exit(done.returncode)  # it has said why
        return Path(done.stdout.strip())


def taken(command: list[str], environ: dict[str, str], folder: str) -> Taken:
    """What a command took.

    The system counts a child's peak from that of the process that started it: so this module imports little.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=err, env=environ, cwd=folder)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        output_lines, complaint = out.read().splitlines(), err.read().splitlines()
    figures: dict[str, float | None] = json.loads(output_lines[-1]) if child.returncode == 0 and output_lines else {}
    nothing = not any(figures.get(key) for key in ("events", "kernels", "load_cpu_s"))
    why = f"{complaint[-1] if complaint else ''} (status {child.returncode})" if child.returncode else ""
    return Taken(
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        told=figures,
        failed=why or ("it found nothing" if nothing else ""),
    )


def middle(several: list[Taken]) -> Taken:
    """Return the median of each figure; other output comes from the last run."""
    last = several[-1]
    medians = dict(last.told)
    if "load_cpu_s" in medians:
        medians["load_cpu_s"] = median(each.load_cpu_s for each in several)
    return Taken(
        wall_s=median(each.wall_s for each in several),
        cpu_s=median(each.cpu_s for each in several),
        peak_bytes=median(each.peak_bytes for each in several),
        told=medians,
        failed=last.failed,
    )


def say(progress: str) -> None:
    """Show progress on a terminal, overwriting the previous line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{progress}")
        sys.stderr.flush()


def table(title: str, results: Results) -> str:
    """Return the results as text, one line per variant."""
    gpulab_result = results["figures"]
    head = f"  {'':27} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'x CPU':>7} {'idle %':>8} {'kernels':>9}"
    lines = [title, head]
    for way, result in results.items():
        if result.failed:
            lines.append(f"  {NAMES[way]:27} failed: {result.failed}")
            continue
        idle, kernels = result.told.get("idle_frac"), result.told.get("kernels")
        times = "" if gpulab_result.failed else f"{result.cpu_s / gpulab_result.cpu_s:.2f}"
        lines.append(
            f"  {NAMES[way]:27} {result.wall_s:8.2f} {result.cpu_s:8.2f} {result.peak_bytes / MB:8.0f} {times:>7} "
            f"{'' if idle is None else f'{100 * idle:.2f}':>8} {'' if kernels is None else f'{kernels:,.0f}':>9}"
        )
    if "floor" in results and not results["floor"].failed:
        load, floor = results["load"].load_cpu_s, results["floor"].load_cpu_s
        lines.append(f"  reading alone, imports done: {load:.2f} s CPU, the floor {floor:.2f} s")
    return "\n".join(lines)


def plain_bytes(packed: Path) -> int:
    """Return the uncompressed size of a gzip file, below 4 GiB."""
    with packed.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def ratio(results: Results, way: str) -> float | None:
    """Return a peer's CPU time as a multiple of gpulab's."""
    if way not in results or results[way].failed or results["figures"].failed:
        return None
    return results[way].cpu_s / results["figures"].cpu_s


def targets_of(name: str, events: int, results: Results, trace_path: Path) -> list[Target]:
    """Return the loader's targets at this size."""
    peers = [
        Target(f"CPU of {PEERS[way]}, to gpulab, {name}", ratio(results, way), bound, "x", True)
        for way, bound in BOUNDS
    ]
    if events > MANY:
        gpulab_result = results["figures"]
        to_text = None if gpulab_result.failed else gpulab_result.peak_bytes / plain_bytes(trace_path)
        return [
            *(peer for peer in peers if peer.value),
            Target(f"peak, to the size of the text, {name}", to_text, 0.45, "x"),
        ]
    frame, floor = results["frame"], results.get("floor")
    to_floor = None if floor is None or floor.failed else results["load"].load_cpu_s / floor.load_cpu_s
    peak = None if frame.failed else frame.peak_bytes / MB
    return [
        *peers,
        Target(f"CPU of loading, to the floor, {name}", to_floor, 5.5, "x"),
        Target(f"peak with run.events in pandas, {name}", peak, 240, " MB"),
    ]


def main() -> None:
    """Measure, and print each table and the targets."""
    arguments = parsed()
    bench = Bench(arguments.peers, arguments.dir)
    if os.getloadavg()[0] > 0.5:
        print("Something else is running on this machine: walls will be wide, CPU times less so.")
    for way in (*PEERS, *FLOOR):
        if not bench.versions[way]:
            print(f"{NAMES[way]} is absent: {arguments.peers} -m pip install {PIP[way]}")
    targets = small(bench, arguments.rounds)
    for events in (arguments.events, *([5_000_000] if arguments.five_million else [])):
        for trace in arguments.trace:
            targets += large(bench, trace, events, arguments)
    if not arguments.five_million and arguments.events < 5_000_000:
        targets.append(Target("peak, to the size of the text, x 5M: add --five-million", None, 0.45, "x"))
    print("\nTargets\n" + "\n".join(map(str, targets)))


def small(bench: Bench, rounds: int) -> list[Target]:
    """A small real trace as it is, where the imports weigh most."""
    trace = TRACES / SMALL
    if not trace.exists():
        return [Target(f"wall of the whole process: no {SMALL} in {TRACES}", None, 0.35, " s")]
    ways = ["figures", *(way for way in bench.there if way != "floor")]
    for way in ways:  # once unmeasured: what is compiled and what comes from the disk is so from here on
        bench.run(way, trace)
    results = bench.measure(trace, ways, max(5, rounds))
    gpulab_result = results["figures"]
    print(table(f"\n{SMALL}, as it is: {gpulab_result.told.get('events') or 0:,.0f} rows", results), flush=True)
    return [
        Target(
            f"wall of the whole process, {SMALL}", None if gpulab_result.failed else gpulab_result.wall_s, 0.35, " s"
        )
    ]


def large(bench: Bench, trace: Path, events: int, arguments: argparse.Namespace) -> list[Target]:
    """A real trace, scaled. Of very many events only gpulab is asked, once, unless the peers are wanted too."""
    trace_path = bench.scaled(trace, events)
    if events > MANY:
        results = bench.measure(trace_path, ["load", "figures", *(bench.there if arguments.peers_too else ())], 1)
    else:
        results = bench.measure(trace_path, [*GPULAB_WAYS, *bench.there], arguments.rounds)
    name = trace.name.removesuffix(".gz").removesuffix(".json")
    size = f"{trace_path.stat().st_size / MB:.1f} MB, {plain_bytes(trace_path) / MB:,.0f} MB of text"
    rows = results["load"].told.get("events") or 0
    print(f"\n{table(f'{name} x {events:,} events: {rows:,.0f} rows, {size}', results)}", flush=True)
    return targets_of(f"{name} x {events / MILLION:g}M", events, results, trace_path)


def parsed() -> argparse.Namespace:
    """The command line; ends the program where no trace is there to scale."""
    doc = __doc__ or ""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument("--trace", type=Path, nargs="+", help=f"real traces to scale ({' and '.join(LARGE)})")
    parser.add_argument("--events", type=int, default=1_000_000, help="of each scaled trace (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is run (%(default)s)")
    default = Path(tempfile.gettempdir()) / "gpulab-benchmarks"
    parser.add_argument("--dir", type=Path, default=default, help="where made traces are kept (%(default)s)")
    parser.add_argument("--five-million", action="store_true", help="also scale to 5,000,000 events, gpulab only")
    parser.add_argument("--peers-too", action="store_true", help="the peers there, too: ten minutes, 10 GB of memory")
    arguments = parser.parse_args()
    arguments.trace = arguments.trace or [TRACES / name for name in LARGE]
    if absent := [str(trace) for trace in arguments.trace if not trace.is_file()]:
        sys.exit(f"no file {', '.join(absent)}: name a trace by --trace, or by GPULAB_SHARED the folder of traces/")
    return arguments


if __name__ == "__main__":
    main()
