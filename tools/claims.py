"""All claims of the course and how strong their evidence is: docs/claims.md, from the stored notebooks.

    python tools/claims.py

A claim belongs to the experiment under whose heading it stands ("### 05.3 ..."); claims before the first such heading,
or in a notebook without them, belong to the notebook as a whole.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.lessons.course import lessons
from gpulab.lessons.sources import STRENGTHS, strength
from gpulab.lessons.verdicts import HOLDS, MODEL_SAYS
from gpulab.wording import percent

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "claims.md"
_CLAIM = re.compile(rf"^(?:{HOLDS}|{MODEL_SAYS})  (?P<sentence>.*)  \[(?P<source>[^\]]*)\]$", re.MULTILINE)
_HEADING = re.compile(r"^#{2,3} (?P<number>\d\d\.\d+)? ?", re.MULTILINE)


@dataclass(frozen=True)
class StoredClaim:
    """A claim in the stored output of a notebook."""

    lesson: str  # "05_data_loading"
    experiment: str  # "05.3"; "" if it stands under no heading of an experiment
    sentence: str
    source: str

    @property
    def strength(self) -> str:
        """Live, recorded, modelled or published."""
        return strength(self.source)


@cache
def stored_claims() -> tuple[StoredClaim, ...]:
    """Return the claims of all notebooks, in order."""
    claims: list[StoredClaim] = []
    for one in lessons():
        notebook = nbformat.read(ROOT / "notebooks" / f"{one.id}.ipynb", as_version=4)
        claims += _claims_of(one.id, notebook)
    return tuple(claims)


def _claims_of(lesson: str, notebook: Any) -> Iterator[StoredClaim]:
    experiment = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for heading in _HEADING.finditer(cell.source):
                experiment = heading["number"] or ""
        for output in cell.get("outputs", []):
            for claim in _CLAIM.finditer(output.get("data", {}).get("text/plain", "")):
                yield StoredClaim(lesson, experiment, claim["sentence"], claim["source"])


def strength_of(experiment: str) -> str:
    """Return the strongest evidence among the claims of an experiment; "mentioned" if it has none."""
    evidence = {claim.strength for claim in stored_claims() if claim.experiment == experiment}
    return next((each for each in STRENGTHS if each in evidence), "mentioned")


def page() -> str:
    """Return the Markdown page."""
    counts = Counter(claim.strength for claim in stored_claims())
    total = sum(counts.values())
    shares = ", ".join(f"{counts[each]} {each} ({percent(counts[each] / total)})" for each in STRENGTHS if counts[each])
    parts = [
        "# Claims of the course\n",
        f"{total} claims on a machine without a GPU: {shares}. *Live*: measured or counted on the machine that runs "
        "the notebook. *Recorded*: measured earlier, on hardware that is named. *Modelled*: a virtual GPU, a "
        "simulation or a prediction takes part; the notebook then says MODEL SAYS instead of HOLDS. On a machine with "
        "a GPU, most modelled claims become live. `python tools/claims.py` generates this page from the stored "
        "notebooks.\n",
    ]
    for one in lessons():
        claims = [claim for claim in stored_claims() if claim.lesson == one.id]
        live = sum(claim.strength == "live" for claim in claims)
        parts += [f"## {one.number} {one.title}: {live} of {len(claims)} live\n", "| | claim | strength | source |"]
        parts += ["|---|---|---|---|"]
        parts += [f"| {each.experiment} | {each.sentence} | {each.strength} | {each.source} |" for each in claims]
        parts += [""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
