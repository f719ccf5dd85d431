"""How reliable the numbers of a virtual GPU are: the estimated error and the assumptions."""

from __future__ import annotations

from gpulab.replay.rewrite import grade_text
from gpulab.run import Run
from gpulab.run_facts import number_from_fact
from gpulab.views.sheet.sheet import Block, Facts, Line, Section
from gpulab.virtual.op_log.ops import ASSUMED_PREFIX, STEP_HIGH_FACT, STEP_LOW_FACT
from gpulab.wording import scale, sentence

GRADE = "D"


def estimate_notice(run: Run) -> tuple[Block, ...]:
    """Say that nothing in a virtual run was measured, and how large the error may be; nothing for any other run."""
    if run.source.how != "virtual":
        return ()
    notice = f"{sentence(str(run.source))} Nothing here was measured on a GPU."
    low_ns, high_ns = (number_from_fact(run, name) for name in (STEP_LOW_FACT, STEP_HIGH_FACT))
    if low_ns is not None and high_ns is not None:
        unit = scale(high_ns)
        notice += f" On a real one, a step may take {unit.range(low_ns, high_ns)} {unit.unit}."
    return (Line(f"{notice} Grade of the estimate: {sentence(grade_text(GRADE))}", soft=True),)


def assumptions(run: Run) -> tuple[Section, ...]:
    """Return the values assumed for data-dependent control flow, which a GPU without data cannot compute."""
    facts = [
        (name.removeprefix(ASSUMED_PREFIX), value)
        for name, value in run.facts.items()
        if name.startswith(ASSUMED_PREFIX)
    ]
    return (Section("Assumptions", (Facts(tuple(facts)),)),) if facts else ()
