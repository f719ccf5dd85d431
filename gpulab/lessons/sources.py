"""Labels for the source of a number; each claim of the course ends with one of them."""

from __future__ import annotations

from gpulab.run import Run, Source

MEASURED = "measured here"  # timed on this machine
COUNTED = "counted here"  # operators, bytes, files: the same on every machine
SIMULATED = "simulated"  # by a model that the notebook shows
GIVEN = "from published figures"

SourceLike = str | Source | Run


def source_label(source: SourceLike) -> str:
    """Return the label of a source, or of the source of a run."""
    if isinstance(source, Run):
        source = source.source
    return MEASURED if isinstance(source, Source) and source.how == "measured" else str(source)
