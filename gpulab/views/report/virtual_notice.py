"""What a virtual GPU's numbers are worth: an estimate, how far it may be off, and what was assumed."""

from __future__ import annotations

from gpulab.replay.rewrite import GRADES
from gpulab.run import Run
from gpulab.views.sheet.sheet import Block, Facts, Line, Section
from gpulab.virtual.op_log.ops import ASSUMED, STEP_HIGH, STEP_LOW
from gpulab.wording import scale, sentence

GRADE = "D"


def watermark(run: Run) -> tuple[Block, ...]:
    """That nothing of a virtual run was measured, and how far it may be off; nothing for any other run."""
    if run.source.how != "virtual":
        return ()
    what, _ = GRADES[GRADE]
    words = f"{sentence(str(run.source))} Nothing here was measured on a GPU"
    low, high = run.facts.get(STEP_LOW), run.facts.get(STEP_HIGH)
    if low is not None and high is not None:
        unit = scale(float(high))
        words += f": a step may take {unit.range(float(low), float(high))} {unit.unit}"
    return (Line(sentence(f"{words} (grade {GRADE}: {what})"), soft=True),)


def assumptions(run: Run) -> tuple[Section, ...]:
    """What the program's way depends on and a GPU without numbers cannot tell, and what was taken for it."""
    told = [(name.removeprefix(ASSUMED), taken) for name, taken in run.facts.items() if name.startswith(ASSUMED)]
    return (Section("What was assumed", (Facts(tuple(told)),)),) if told else ()
