"""What a colour in the timeline stands for: the parts of the ledger, and what is drawn beside them."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.steps.ledger import CPU_PARTS, GPU_PARTS
from gpulab.tables import Kind
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.step_picture import LEGEND


@dataclass(frozen=True)
class Key:
    """One colour: its key, its name on screen."""

    key: str
    label: str
    colour: str


def _parts() -> tuple[Key, ...]:
    found = {part.key: Key(part.key, LEGEND.get(part.key, part.label), colour(part.key)) for part in GPU_PARTS}
    for part in CPU_PARTS:
        found.setdefault(part.key, Key(part.key, LEGEND.get(part.key, part.label), colour(part.key)))
    return tuple(found.values())


UNRECORDED = "unrecorded"
KEYS = (
    Key("step", "step", "#5E7480"),
    Key("step_unrecorded", "step without events", NEUTRAL),
    *_parts(),
    Key("annotation", "annotation", "#6C7F95"),
    Key("frame", "Python frame", "#94408A"),
    Key("overhead", "the profiler's own", NEUTRAL),
    Key("gc", "garbage collection", "#84543B"),
    Key("compile", "compilation", "#A8627F"),
    Key("throttle", "clocks held back", "#C84B00"),
    Key(UNRECORDED, "nothing recorded", NEUTRAL),
)
INDEX = {key.key: place for place, key in enumerate(KEYS)}

# What a host event is, by its kind; operators are work where there is no GPU, and calls for work where there is one.
OF_KIND = {
    Kind.OP: "dispatch",
    Kind.ANNOTATION: "annotation",
    Kind.LOADER: "loader",
    Kind.PYTHON: "frame",
    Kind.LAUNCH: "launch",
    Kind.SYNC: "sync",
    Kind.COPY_CALL: "copy_call",
    Kind.ALLOC: "alloc",
    Kind.RUNTIME: "runtime",
    Kind.OVERHEAD: "overhead",
    Kind.KERNEL: "kernels",
    Kind.MEMCPY: "copies",
    Kind.MEMSET: "copies",
    Kind.COLLECTIVE: "communication",
}
