"""Where a number of the course comes from; it is printed with every claim, and CI compares claims without it."""

from __future__ import annotations

from gpulab.run import Run, Source

MEASURED = "measured here"  # by a clock, on this machine
COUNTED = "counted here"  # operators, bytes, files: the same on every machine
SIMULATED = "simulated"  # by a model that the notebook shows
GIVEN = "from published figures"

Sourced = str | Source | Run


def named(source: Sourced) -> str:
    """The label of a source, or of the run a number was read from."""
    if isinstance(source, Run):
        source = source.source
    return MEASURED if isinstance(source, Source) and source.how == "measured" else str(source)
