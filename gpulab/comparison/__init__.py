"""Runs side by side: what changed, by how much, how sure that is, and how the prediction did.

comparing   two runs, or more
sides       a run, or several of the same thing
interval    how sure a ratio of step times is
pairs       two sides: everything that is compared
moved       their ledgers
reasons     what else differs, and so may be why a prediction missed
stories     three sides and more
outcomes    predicted beside measured, to keep
"""

from __future__ import annotations

from gpulab.comparison.compare_runs import compare
from gpulab.comparison.comparison import LEAST_FRAC, Comparison
from gpulab.comparison.outcomes import outcome
from gpulab.comparison.reasons import Reason
from gpulab.comparison.sides import Side
from gpulab.comparison.stories import Story

__all__ = ["LEAST_FRAC", "Comparison", "Reason", "Side", "Story", "compare", "outcome"]
