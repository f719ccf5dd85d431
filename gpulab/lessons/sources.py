"""Labels for the source of a number; each claim of the course ends with one of them."""

from __future__ import annotations

from gpulab.run import Run, Source

MEASURED = "measured here"  # timed on this machine
COUNTED = "counted here"  # operators, bytes, files: the same on every machine
SIMULATED = "simulated"  # by a model that the notebook shows
GIVEN = "from published figures"

SourceLike = str | Source | Run

# How strong the evidence of a claim is, the strongest first.
LIVE, RECORDED, MODELLED, PUBLISHED = "live", "recorded", "modelled", "published"
STRENGTHS = (LIVE, RECORDED, MODELLED, PUBLISHED)


def source_label(source: SourceLike) -> str:
    """Return the label of a source, or of the source of a run."""
    if isinstance(source, Run):
        source = source.source
    return MEASURED if isinstance(source, Source) and source.how == "measured" else str(source)


def strength(label: str) -> str:
    """Return how strong the evidence of a claim with this source label is: one of STRENGTHS.

    Live: measured or counted here. Recorded: on hardware, earlier. Modelled: a simulation, a virtual GPU or a
    prediction takes part.
    """
    if label == GIVEN:
        return PUBLISHED
    if label == SIMULATED or "virtual" in label or label.startswith("predicted"):
        return MODELLED
    return LIVE if label in (MEASURED, COUNTED) else RECORDED
