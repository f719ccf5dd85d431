"""What a monitor showed, as the first sentence of its report: steps, waiting for data, GPU."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.run_facts import GPU_BUSY, LOOP_TIME, STEP_COUNT, WAITING, count_from_fact, number_from_fact
from gpulab.views.sheet.sheet import Answer
from gpulab.wording import clock_time, count, duration, number, percent, sentence


def monitor_answer(diagnosis: Diagnosis) -> Answer:
    """Return the totals of the live panel; without steps, that there were none."""
    run = diagnosis.run
    figures = "; ".join(_figures(run))
    advice = "For the cause, put %%gpuprofile on the training cell." if len(run.mark_rows) else ""
    claim = sentence(f"Monitored for {clock_time(run.span_ns / 1e9)}: {figures}")
    return Answer(claim=claim, leading=True, advice=advice)


def _figures(run: Run) -> Iterator[str]:
    steps, loop_s = count_from_fact(run, STEP_COUNT) or 0, number_from_fact(run, LOOP_TIME)
    if not steps:
        yield "no training loop ran"
        return
    rate = steps / loop_s if loop_s else 0.0
    speed = f", {number(rate)} steps/s" if rate >= 1 else f", {duration(1e9 / rate)} per step" if rate else ""
    yield f"{count(steps, 'step')}{speed}"
    waiting, busy = number_from_fact(run, WAITING), number_from_fact(run, GPU_BUSY)
    yield "no DataLoader" if waiting is None else f"the loop waited for data {percent(waiting)} of the time"
    if busy is not None:
        yield f"the GPU was busy {percent(busy)} of the time"
