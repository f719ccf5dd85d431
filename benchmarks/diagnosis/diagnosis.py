"""How often is the diagnosis right, and do its predictions hold? Planted faults and real traces, with known causes.

    python benchmarks/diagnosis/diagnosis.py [--repeats 5] [--only NAME ...] [--keep FOLDER]
    python benchmarks/diagnosis/diagnosis.py --from FOLDER         judge recorded runs again, without recording anew
    python benchmarks/diagnosis/diagnosis.py --speed TRACE         how long a diagnosis takes, rule by rule

Each planted workload and its healthy twin, which is the same training with the fix applied, are recorded in fresh
processes, one after the other, so many times. The recorded runs are then judged by gpulab and by three simple
advisers (benchmarks/diagnosis/baselines.py). Per cause it prints: how often the planted cause came first, and among
the first three; on how many twins something above 10 % of the step was claimed; how often gpulab declined to answer;
how often the measured gain lay inside the predicted range; and the median error of the predicted saving.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import gpulab  # noqa: E402
from benchmarks.diagnosis import judging  # noqa: E402
from benchmarks.diagnosis.judging import Judgement, Verdict  # noqa: E402
from benchmarks.diagnosis.speed import speed  # noqa: E402
from gpulab.workloads import WORKLOADS, workload  # noqa: E402


def main() -> None:
    """Record workloads if asked to, judge the runs, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="workloads, by name; all that can be planted here unless given")
    parser.add_argument("--keep", type=Path, help="where recorded runs are kept; nowhere unless given")
    parser.add_argument("--from", dest="source", type=Path, help="judge the runs in this folder; record none")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--speed", type=Path, help="time a diagnosis of this trace")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _record(arguments.child[0], Path(arguments.child[1]))
    elif arguments.speed:
        _log(speed(arguments.speed))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = arguments.source or arguments.keep or Path(temporary)
            if arguments.source is None:
                _record_all(folder, arguments.repeats, arguments.only or _plantable())
            _log(_tables(list(judging.judged(folder)), list(judging.judged_traces(arguments.traces))))


def _plantable() -> list[str]:
    """Workloads with a fault that can occur on this machine."""
    import torch

    gpu = torch.cuda.is_available()
    return [each.name for each in WORKLOADS if each.rule and each.twin and (gpu or not each.needs_gpu)]


def _record_all(folder: Path, repeats: int, chosen: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for repeat in range(repeats):
        for name in chosen:
            for which in (name, workload(name).twin):
                assert which is not None, f"{name} has no twin to compare with"
                file = folder / f"{name}.{repeat}.{'planted' if which == name else 'twin'}.gpulab"
                command = [sys.executable, __file__, "--child", which, str(file)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.stderr.write(f"{which} failed:\n{done.stderr}\n")


def _record(name: str, file: Path) -> None:
    """Profile one workload in this process and save the run, also if it runs out of memory."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = workload(name)
    try:
        with gpulab.profile(name):
            chosen.run(device=device)
    except torch.OutOfMemoryError:
        if chosen.rule != "out_of_memory":
            raise
    gpulab.save(gpulab.runs[name], file)


def _tables(planted: list[Judgement], traces: list[Verdict]) -> str:
    by_cause: dict[str, list[Judgement]] = defaultdict(list)
    for judgement in planted:
        by_cause[judgement.cause].append(judgement)
    names = list(traces[0].advised if traces else planted[0].planted.advised if planted else ())
    lines = [
        f"| cause | runs | first | among three | twins clean | inside range | median error | {' | '.join(names)} |",
        f"|---|{'---|' * (6 + len(names))}",
    ]
    lines += [_row(cause, by_cause[cause], names) for cause in sorted(by_cause)]
    if planted:
        lines.append(_row("**all planted**", planted, names))
    lines += _misses(planted)
    if traces:
        lines += [
            "",
            f"| real trace | known cause | gpulab | {' | '.join(names)} |",
            f"|---|{'---|' * (2 + len(names))}",
        ]
        lines += [_trace_row(verdict, names) for verdict in traces]
        gpulab_count = _count(verdict.first in verdict.labels for verdict in traces)
        baseline_counts = (
            _count(_right(verdict.advised[name], verdict.labels) for verdict in traces) for name in names
        )
        lines.append(f"| **right** | | {gpulab_count} | {' | '.join(baseline_counts)} |")
    return "\n".join(lines)


def _misses(planted: Sequence[Judgement]) -> list[str]:
    """Rules reported instead: for each planted run that was missed, and each twin with a false alarm."""
    counts = Counter(
        f"{judgement.planted.name}: {judgement.planted.first or 'nothing'} first"
        for judgement in planted
        if judgement.planted.first not in judgement.planted.labels
    )
    counts += Counter(
        f"{judgement.twin.name}, a healthy twin: {judgement.twin.loudest}, {100 * judgement.twin.loudest_frac:.0f} %"
        for judgement in planted
        if judgement.twin.loudest_frac > judging.LOUD_FRAC
    )
    return (
        ["", "Missed:", *(f"- {description} ({count} times)" for description, count in counts.most_common())]
        if counts
        else []
    )


def _row(cause: str, judgements: Sequence[Judgement], names: Sequence[str]) -> str:
    planted = [judgement.planted for judgement in judgements]
    firsts = _count(verdict.first in verdict.labels for verdict in planted)
    abstained = sum(verdict.abstained for verdict in planted)
    three = _count(bool(set(verdict.ranked[:3]) & set(verdict.labels)) for verdict in planted)
    clean = _count(judgement.twin.loudest_frac <= judging.LOUD_FRAC for judgement in judgements)
    with_prediction = [judgement for judgement in judgements if judgement.inside is not None]
    inside = _count(bool(judgement.inside) for judgement in with_prediction) if with_prediction else "-"
    errors = [judgement.error_frac for judgement in with_prediction if judgement.error_frac is not None]
    error = f"{100 * judging.middle(errors):.0f} %" if errors else "-"
    baseline_cells = (
        _count(bool(set(verdict.advised[name][:1]) & set(verdict.labels)) for verdict in planted) for name in names
    )
    first_cell = f"{firsts}{f' ({abstained} declined)' if abstained else ''}"
    baselines = " | ".join(baseline_cells)
    return f"| {cause} | {len(judgements)} | {first_cell} | {three} | {clean} | {inside} | {error} | {baselines} |"


def _trace_row(verdict: Verdict, names: Sequence[str]) -> str:
    advised = (verdict.advised[name][0] if verdict.advised[name] else "nothing" for name in names)
    return f"| {verdict.name} | {' or '.join(verdict.labels)} | {verdict.first or 'nothing'} | {' | '.join(advised)} |"


def _right(advice: Sequence[str], labels: Sequence[str]) -> bool:
    """Return whether the first advice is correct; for a healthy run, no advice is correct."""
    return advice[0] in labels if advice else "device_bound" in labels


def _count(answers: Iterable[bool]) -> str:
    values = list(answers)
    return f"{sum(values)}/{len(values)}"


def _log(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
