"""The colours of the timeline: parts of the ledger, and the other kinds of boxes."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.steps.ledger import CPU_PARTS, GPU_PARTS
from gpulab.tables import EventKind
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.step_picture import LANE_LABELS


@dataclass(frozen=True)
class ColourKey:
    """A colour with its key and its label on screen."""

    key: str
    label: str
    colour: str


def _parts() -> tuple[ColourKey, ...]:
    keys = {
        part.key: ColourKey(part.key, LANE_LABELS.get(part.key, part.label), colour(part.key)) for part in GPU_PARTS
    }
    for part in CPU_PARTS:
        keys.setdefault(part.key, ColourKey(part.key, LANE_LABELS.get(part.key, part.label), colour(part.key)))
    return tuple(keys.values())


UNRECORDED = "unrecorded"
COLOUR_KEYS = (
    ColourKey("step", "step", "#5E7480"),
    ColourKey("step_unrecorded", "step without events", NEUTRAL),
    *_parts(),
    ColourKey("annotation", "annotation", "#6C7F95"),
    ColourKey("frame", "Python frame", "#94408A"),
    ColourKey("overhead", "profiler overhead", NEUTRAL),
    ColourKey("gc", "garbage collection", "#84543B"),
    ColourKey("compile", "compilation", "#A8627F"),
    ColourKey("throttle", "clock throttling", "#C84B00"),
    ColourKey(UNRECORDED, "not recorded", NEUTRAL),
)
KEY_INDEX = {key.key: index for index, key in enumerate(COLOUR_KEYS)}

# The colour key of each kind of event. Without a GPU, long operators get the key "compute" instead (see rows.py).
KEY_OF_KIND = {
    EventKind.OP: "dispatch",
    EventKind.ANNOTATION: "annotation",
    EventKind.LOADER: "loader",
    EventKind.PYTHON: "frame",
    EventKind.LAUNCH: "launch",
    EventKind.SYNC: "sync",
    EventKind.COPY_CALL: "copy_call",
    EventKind.ALLOC: "alloc",
    EventKind.RUNTIME: "runtime",
    EventKind.OVERHEAD: "overhead",
    EventKind.KERNEL: "kernels",
    EventKind.MEMCPY: "copies",
    EventKind.MEMSET: "copies",
    EventKind.COLLECTIVE: "communication",
}
