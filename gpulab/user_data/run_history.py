"""Summaries of finished runs, by program and name: a run is compared with the earlier ones of its name.

The file holds times, versions and settings, but no code. GPULAB_RUNS sets another path; with "off" (or with
GPULAB_HISTORY=off), nothing is read or written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from gpulab.locations import is_disabled, user_file
from gpulab.run import Run
from gpulab.user_data.predictions import VARIABLE
from gpulab.user_data.state_file import read_state, update_state

RUNS_VARIABLE = "GPULAB_RUNS"
MAX_LINES = 2000
_MODEL = "model"  # the setting that tells loops of the same name apart
_COMPARED = 5  # earlier runs
_MIN_EARLIER = 2
_AUTOMATIC = "run"  # run1, run2, ...: names that say nothing


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """What is remembered of a run."""

    program: str
    name: str
    device: str
    began_ns: int
    step_ns: int
    settings: Mapping[str, str]  # versions, batch sizes, workers: what may explain a difference


@dataclass(frozen=True, kw_only=True)
class RunChange:
    """A run beside the median of the earlier runs of its name. Above 1, it is slower."""

    ratio: float
    count: int  # of earlier runs
    spread: tuple[float, float]  # fastest and slowest earlier run over their median
    settings: tuple[tuple[str, str, str], ...]  # name, latest earlier value, value now

    @property
    def is_notable(self) -> bool:
        """Whether the run lies outside the earlier runs, by a tenth of their median at least."""
        return self.ratio > max(1.1, self.spread[1] * 1.02) or self.ratio < min(0.9, self.spread[0] * 0.98)


def runs_path() -> Path | None:
    """Path of the file; None if the user disabled it."""
    return None if is_disabled(VARIABLE) else user_file(RUNS_VARIABLE, "runs.jsonl")


def remember_run(run: Run, step_ns: float | None) -> None:
    """Store a run; not one without steps or with an automatic name. A failure to write is ignored."""
    past = _past_run(run, step_ns)
    if past is None:
        return

    def change(lines: list[bytes]) -> bytes | None:
        if past in map(_read, lines[-MAX_LINES:]):
            return None
        return b"\n".join([*lines[-MAX_LINES:], json.dumps(asdict(past)).encode()]) + b"\n"

    update_state(runs_path(), bytes.splitlines, change)


def earlier_runs(run: Run) -> tuple[PastRun, ...]:
    """The remembered runs of the same program, name and device that began before this one, oldest first."""
    program = program_identity()
    lines = read_state(runs_path(), bytes.splitlines)
    past_runs = [past for line in lines[-MAX_LINES:] if (past := _read(line)) is not None]
    key = (program, run.name, run.source.device)
    return tuple(
        past
        for past in past_runs
        if (past.program, past.name, past.device) == key and past.began_ns < (run.began_ns or 0)
    )


def usual_step_s(name: str) -> float | None:
    """The median step of the last five runs of this program with this name, in s; None with fewer than two."""
    program = program_identity()
    lines = read_state(runs_path(), bytes.splitlines)
    past_runs = [past for line in lines[-MAX_LINES:] if (past := _read(line)) is not None]
    times_ns = [past.step_ns for past in past_runs if (past.program, past.name) == (program, name)][-_COMPARED:]
    return median(times_ns) / 1e9 if len(times_ns) >= _MIN_EARLIER else None


def change_since(run: Run, step_ns: float | None) -> RunChange | None:
    """Compare a run with the last five of its name; None with fewer than two, or without steps."""
    now = settings_of(run)
    model = now.get(_MODEL, "")
    # Many loops are named "before": one that trained another model is another loop.
    past_runs = [past for past in earlier_runs(run) if past.settings.get(_MODEL, model) == model][-_COMPARED:]
    if step_ns is None or len(past_runs) < _MIN_EARLIER:
        return None
    times_ns = [past.step_ns for past in past_runs]
    middle = median(times_ns)
    before = past_runs[-1].settings
    changed = tuple(
        (name, before.get(name, "unknown"), now.get(name, "unknown"))
        for name in sorted({*before, *now})
        if name != _MODEL and before.get(name) != now.get(name)
    )
    return RunChange(
        ratio=step_ns / middle,
        count=len(past_runs),
        spread=(min(times_ns) / middle, max(times_ns) / middle),
        settings=changed,
    )


def program_identity() -> str:
    """The notebook or script of this process: runs of other programs may have the same name."""
    notebook = os.environ.get("JPY_SESSION_NAME", "")
    if notebook:
        return notebook
    script = sys.argv[0] if sys.argv else ""
    is_program = script.endswith(".py") and "ipykernel" not in script
    return str(Path(script).resolve()) if is_program else str(Path.cwd())


def settings_of(run: Run) -> dict[str, str]:
    """Return the versions and settings that may explain why a run is slower than an earlier one."""
    machine = run.machine
    settings = {"torch": machine.torch, "Python": machine.python, "driver": machine.driver}
    if machine.cores_allowed is not None:
        settings["cores"] = f"{machine.cores_allowed:g}"
    for number, loader in enumerate(run.loaders):
        suffix = "" if number == 0 else f" of loader {number + 1}"
        settings[f"batch{suffix}"] = None if loader.batch_size is None else str(loader.batch_size)
        settings[f"workers{suffix}"] = None if loader.workers is None else str(loader.workers)
    for fact in ("threads", "world_size"):
        settings[fact] = run.facts.get(fact)
    if run.models:
        settings[_MODEL] = ", ".join(f"{model.kind} ({model.tensors})" for model in run.models)
    return {name: value for name, value in settings.items() if value is not None}


def _past_run(run: Run, step_ns: float | None) -> PastRun | None:
    is_automatic = run.name.startswith(_AUTOMATIC) and run.name.removeprefix(_AUTOMATIC).isdigit()
    if step_ns is None or step_ns < 1 or is_automatic or run.began_ns is None or run.outcome != "ok":
        return None
    return PastRun(
        program=program_identity(),
        name=run.name,
        device=run.source.device,
        began_ns=run.began_ns,
        step_ns=round(step_ns),
        settings=settings_of(run),
    )


def _read(line: bytes) -> PastRun | None:
    try:
        entry: Mapping[str, Any] = json.loads(line)
        past = PastRun(**{field.name: entry[field.name] for field in fields(PastRun)})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    texts: Sequence[object] = (past.program, past.name, past.device)
    is_valid = (
        all(isinstance(text, str) for text in texts)
        and isinstance(past.step_ns, int)
        and 0 < past.step_ns < 3600 * 10**9
        and isinstance(past.began_ns, int)
        and isinstance(past.settings, dict)
        and all(isinstance(text, str) for pair in past.settings.items() for text in pair)
    )
    return past if is_valid else None
