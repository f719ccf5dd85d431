"""The colours of the timeline: parts of the ledger, and the other kinds of boxes."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.steps.ledger import CPU_PARTS, GPU_PARTS
from gpulab.tables import Kind
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.step_picture import LEGEND


@dataclass(frozen=True)
class Key:
    """A colour with its key and its label on screen."""

    key: str
    label: str
    colour: str


def _parts() -> tuple[Key, ...]:
    keys = {part.key: Key(part.key, LEGEND.get(part.key, part.label), colour(part.key)) for part in GPU_PARTS}
    for part in CPU_PARTS:
        keys.setdefault(part.key, Key(part.key, LEGEND.get(part.key, part.label), colour(part.key)))
    return tuple(keys.values())


UNRECORDED = "unrecorded"
KEYS = (
    Key("step", "step", "#5E7480"),
    Key("step_unrecorded", "step without events", NEUTRAL),
    *_parts(),
    Key("annotation", "annotation", "#6C7F95"),
    Key("frame", "Python frame", "#94408A"),
    Key("overhead", "profiler overhead", NEUTRAL),
    Key("gc", "garbage collection", "#84543B"),
    Key("compile", "compilation", "#A8627F"),
    Key("throttle", "clock throttling", "#C84B00"),
    Key(UNRECORDED, "not recorded", NEUTRAL),
)
INDEX = {key.key: index for index, key in enumerate(KEYS)}

# The colour key of each kind of event. Without a GPU, long operators get the key "compute" instead (see rows.py).
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
