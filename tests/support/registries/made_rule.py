"""A rule that a test adds to the catalogue."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import Finding


def made_rule(evidence: Evidence) -> Finding:
    """A rule that always answers. Proof: none. Confused with: nothing. What to do: nothing."""
    return Finding(rule="made_rule", claim="This is always so.", evidence=())
