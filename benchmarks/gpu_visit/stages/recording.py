"""Stage: does recording work on this GPU: in a block, at each level, and in a cell under %%gpuprofile."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpulab
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, save_run
from gpulab.analysis.steps.detection import find_steps
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.run import Run
from gpulab.tables import EventKind

CELL = """
model = torch.nn.Sequential(*(torch.nn.Linear({width}, {width}) for _ in range(4))).to({device!r})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn({width}, {width}, device={device!r})
for _ in range({steps}):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), inputs).backward()
    optimizer.step()
answer = 42
answer
"""
LEAD_NS = 50_000  # clocks of host and GPU agree if no kernel starts more than this before its launch


def recording(visit: Visit) -> StageResult:
    """Record a loop at each level and a cell, and check what the runs hold."""
    steps = 12 if visit.dry_run else 2000  # seconds, for the GPU's own averages
    checks: list[Check] = []
    figures: dict[str, Any] = {}
    for level in ("trace", "sensors", "deep"):
        snapshots: list[LiveSnapshot] = []
        with gpulab.profile(level, level=level, on_tick=snapshots.append) as session:
            train(visit.device, steps, 64 if visit.dry_run else 2048)
        assert session.run is not None
        figures[level] = facts_of(session.run, snapshots)
        figures[level]["file"] = save_run(session.run, visit.parts_folder() / f"{level}.gpulab")
        checks += run_checks(session.run, snapshots, steps, on_gpu=not visit.dry_run)
        visit.save(StageResult(figures=figures, checks=checks))
    cell_facts, cell_checks = cell_under_magic(visit)
    checks += cell_checks
    figures["cell"] = cell_facts
    verdicts = [check.holds for check in checks if check.holds is not None]
    unjudged = len(checks) - len(verdicts)
    first = figures["trace"]["first"] or "none"
    rows = [(level, *(str(figures[level][key]) for key in COLUMNS)) for level in ("trace", "sensors", "deep")]
    return StageResult(
        headline=f"{sum(verdicts)} of {len(verdicts)} checks hold, {unjudged} not judged; first finding: {first}",
        figures=figures,
        checks=checks,
        head=("level", *COLUMNS),
        rows=rows,
    )


COLUMNS = ("events", "kernels", "gpu_samples", "steps", "step_ms", "profiler_overhead", "earliest_kernel_us", "first")


def train(device: str, steps: int, width: int) -> None:
    """Train a small model from a DataLoader."""
    samples = torch.randn(256 * 4, width)
    loader = DataLoader(TensorDataset(samples, samples), batch_size=256, pin_memory=device == "cuda")
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    while done < steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs.to(device, non_blocking=True))
            nn.functional.mse_loss(outputs, targets.to(device, non_blocking=True)).backward()
            optimizer.step()
            done += 1


def facts_of(run: Run, snapshots: list[LiveSnapshot]) -> dict[str, Any]:
    """What was recorded, as figures."""
    detected, diagnosis, events = find_steps(run), gpulab.diagnose(run), run.event_rows
    lead_ns = earliest_kernel_ns(run)
    return {
        "events": len(events),
        "kernels": len(events.of_kind(EventKind.KERNEL)),
        "copies": len(events.of_kind(EventKind.MEMCPY)),
        "gpu_samples": len(run.gpu_rows),
        "host_samples": len(run.host_rows),
        "snapshots": len(snapshots),
        "steps": len(detected),
        "detected_by": detected.detected_by,
        "step_ms": round((detected.step_ns or 0) / 1e6, 3),
        "profiler_overhead": detected.profiler_overhead,
        "earliest_kernel_us": None if lead_ns is None else lead_ns / 1e3,
        "device": str(run.source.device),
        "gaps": [f"{gap.what}: {gap.why}" for gap in (*run.machine.gaps, *run.recording.left_out)],
        "lost": dict(run.recording.lost),
        "first": diagnosis.first.rule if diagnosis.first else None,
        "verdict": diagnosis.verdict,
        "unjudged": {each.rule: each.reason for each in diagnosis.unjudged},
        "ledger": _ledger_ms(diagnosis),
    }


def earliest_kernel_ns(run: Run) -> int | None:
    """The least time from the start of a launch to the start of its kernel; negative if clocks disagree."""
    kernels, launches = (run.event_rows.of_kind(kind) for kind in (EventKind.KERNEL, EventKind.LAUNCH))
    launched_ns = dict(zip(launches["correlation"].tolist(), launches["start_ns"].tolist(), strict=True))
    pairs = zip(kernels["correlation"].tolist(), kernels["start_ns"].tolist(), strict=True)
    delays = [start - launched_ns[number] for number, start in pairs if number in launched_ns]
    return min(delays, default=None)


def run_checks(run: Run, snapshots: list[LiveSnapshot], steps: int, *, on_gpu: bool) -> list[Check]:
    """What must be true of a recorded run; what needs a GPU is not judged without one."""
    level, detected, events = run.recording.level, find_steps(run), run.event_rows
    kernels, launches = events.of_kind(EventKind.KERNEL), events.of_kind(EventKind.LAUNCH)
    util, power = run.gpu_rows["util_frac"], run.gpu_rows["power_w"]
    count = len(detected.host_steps)  # those of the loop; if it runs ahead, the others are those of the GPU
    general = {
        "all steps are detected": (count == steps, f"{count} of {steps} by {detected.detected_by}"),
        "the host is sampled": (len(run.host_rows) > 0 or not on_gpu, f"{len(run.host_rows)} samples"),
    }
    sensed = {
        "the GPU is sampled": (len(run.gpu_rows) > 0, f"{len(run.gpu_rows)} samples"),
        "utilisation is measured": (bool((util > 0).any()), f"median {_median(util)}"),
        "power is measured": (bool((power > 0).any()), f"median {_median(power)} W"),
        "live snapshots show a GPU": (any(each.gpus for each in snapshots), f"{len(snapshots)} snapshots"),
    }
    lead_ns = earliest_kernel_ns(run)
    is_linked = set(kernels["correlation"].tolist()) <= set(launches["correlation"].tolist())
    traced = {
        "kernels are recorded": (len(kernels) > 0, f"{len(kernels)} kernels"),
        "kernels are linked to launches": (len(kernels) > 0 and is_linked, ""),
        "no kernel starts before its launch": (lead_ns is not None and lead_ns > -LEAD_NS, f"{lead_ns} ns"),
        "copies are recorded": (len(events.of_kind(EventKind.MEMCPY)) > 0, ""),
        "the profiler lost nothing": (not run.recording.lost, str(dict(run.recording.lost))),
    }
    on_device = {**sensed, **(traced if level != "sensors" else {})}
    checks = [Check(name=f"{level}: {name}", holds=holds, detail=text) for name, (holds, text) in general.items()]
    return checks + [
        Check(name=f"{level}: {name}", holds=holds if on_gpu else None, detail=text if on_gpu else "needs a GPU")
        for name, (holds, text) in on_device.items()
    ]


def cell_under_magic(visit: Visit) -> tuple[dict[str, Any], list[Check]]:
    """Run a cell under %%gpuprofile in a shell; it must behave as without, and show a report."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpulab")
    shell.push({"torch": torch})
    cell = CELL.format(device=visit.device, steps=14 if visit.dry_run else 200, width=64 if visit.dry_run else 1024)
    with capture_output() as captured:
        outcome = shell.run_cell(f"%%gpuprofile in_a_cell\n{cell}")
    run = gpulab.runs.get("in_a_cell")
    forms = sorted({form for output in captured.outputs for form in output.data})
    report = str(gpulab.report(run)) if run is not None else ""
    (visit.parts_folder() / "report.txt").write_text(report, encoding="utf-8")
    checks = [
        Check(name="cell: it ends without an error", holds=outcome.success, detail=repr(outcome.error_in_exec)),
        Check(name="cell: its value is that of the last line", holds=outcome.result == 42, detail=repr(outcome.result)),
        Check(name="cell: a run is recorded", holds=run is not None),
        Check(name="cell: a report is shown", holds="text/html" in forms, detail=", ".join(forms)),
    ]
    return {"output_forms": forms, "printed": captured.stdout[-500:], "errors": captured.stderr[-500:]}, checks


def _ledger_ms(diagnosis: Any) -> dict[str, float]:
    accounts = diagnosis.ledger
    return {} if accounts is None else {part.key: accounts.median_ns(part.key) / 1e6 for part in accounts.parts}


def _median(values: Any) -> str:
    finite = values[np.isfinite(values)]
    return f"{np.median(finite):.3g}" if len(finite) else "unknown"
