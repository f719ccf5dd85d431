"""What an alert says: what was measured, what the process did then, and what to do first."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

import psutil

from gpulab.watch.alerts.measures import Measure
from gpulab.watch.process_names import ProcessName
from gpulab.wording import count, percent, sentence, size

_LOOK_S = 0.5  # how long the process is looked at, in the thread that delivers
_BUSY, _IDLE = 0.8, 0.05  # of a core


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process on the GPU, and its memory there."""

    name: ProcessName
    memory_bytes: float | None

    @property
    def text(self) -> str:
        """The process in words."""
        memory = "" if not self.memory_bytes else f", {size(self.memory_bytes)}"
        return f"{self.name.name} of {self.name.user or 'another user'} (process {self.name.pid}{memory})"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One message about an alert. `activity`: what the loop did, if it is recorded; else the process is looked at."""

    at_s: float
    subject: str  # "GPU 0 (NVIDIA H100) of node7"
    measure: Measure
    headline: str  # "utilisation 12 %, limit 30 %"
    ended: bool = False
    holders: tuple[Holder, ...] = ()
    activity: str = ""

    def text(self) -> str:
        """Return the message: one line each for what, for the activity, and for the first thing to do."""
        when = datetime.fromtimestamp(self.at_s).strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"gpulab: {self.subject}: {self.headline} ({when})"]
        if self.ended:
            return lines[0]
        activity, advice = (sentence(self.activity), "") if self.activity else look_at(self.holders)
        if activity:
            lines.append(activity)
        if self.measure is not Measure.UTILISATION:  # what the process does explains idleness, not heat or errors
            advice = ""
        lines.append(f"First: {advice or ADVICE[self.measure]}")
        return "\n".join(lines)


def look_at(holders: tuple[Holder, ...]) -> tuple[str, str]:
    """Return what the largest process on the GPU does now, and what that suggests if the GPU is idle.

    "" if nothing can be said. Takes half a second.
    """
    if not holders:
        return "", ""
    holder = max(holders, key=lambda each: each.memory_bytes or 0.0)
    try:
        process = psutil.Process(holder.name.pid)
        before_s = _cpu_s(process)
        time.sleep(_LOOK_S)
        cores = (_cpu_s(process) - before_s) / _LOOK_S
        workers = len(process.children())
        status = process.status()
    except psutil.Error:
        return f"On the GPU: {holder.text}.", ""
    work = f"{percent(cores)} of a core" + (
        f", {count(workers, 'child process', 'child processes')}" if workers else ""
    )
    if status == psutil.STATUS_DISK_SLEEP:
        return f"{holder.text} is waiting for storage.", "copy the data to local storage, or read ahead with workers"
    if cores < _IDLE:
        return (
            f"{holder.text} uses no CPU time: it waits, or is a notebook that nobody runs.",
            "ask its owner; if it is done, shut down the kernel or the process, which frees the memory",
        )
    if cores > _BUSY:
        return (
            f"{holder.text} uses {work}.",
            "record a minute of it to see which line: gpulab run PROGRAM, or %%gpuprofile in its notebook",
        )
    return f"{holder.text} uses {work}.", ""


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


ADVICE = {
    Measure.UTILISATION: "record a minute of it: gpulab run PROGRAM, or %%gpuprofile in its notebook",
    Measure.MEMORY: "save a checkpoint now; then a smaller batch, or gradient checkpointing",
    Measure.MEMORY_TIME_LEFT: "save a checkpoint now; then look for tensors that are kept from step to step, such as "
    "losses that are added up without .item() or .detach()",
    Measure.TEMPERATURE: "look at the fans and at the air around the machine",
    Measure.POWER: "nothing, unless the power supply or the cooling is short: a busy GPU reaches its limit",
    Measure.THROTTLED: "see which reason in nvidia-smi -q -d PERFORMANCE; a power cap on a busy GPU is normal",
    Measure.THROTTLED_BY_HEAT: "look at the fans and at the air around the machine",
    Measure.THROTTLED_BY_POWER: "compare the power limit with the default: nvidia-smi -q -d POWER",
    Measure.MEMORY_ERRORS: "save a checkpoint, and run nvidia-smi -q -d ECC; after an uncorrected error, results may "
    "be wrong and the GPU needs a reset",
    Measure.NO_READINGS: "look at dmesg for Xid messages; the GPU may need a reset, or the machine a reboot",
    Measure.DATA_WAIT: "see what the loader waits for: %%gpuprofile, or gpulab run PROGRAM",
    Measure.STEP_TIME_CHANGE: "compare it with the earlier run: gpulab compare, or %gpucompare",
}
