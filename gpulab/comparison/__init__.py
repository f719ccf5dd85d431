"""Compare runs: how much the step time changed, how certain that is, why, and whether the prediction was right.

compare_runs     compare(): two runs, or more
sides            one side of a comparison: a run, or several runs of the same program
interval         ratio of two step times with its confidence interval
recorded_changes settings that differ between two runs
compared_prediction  the prediction to check, by these settings, a finding, or the caller
comparison       two sides: everything that is compared
ledger_changes   the compared step times of two sides, part by part
reasons          other differences that may explain why a prediction missed
run_sequence     three sides and more
outcomes         a prediction with its measurement, for the history of this machine
"""

from __future__ import annotations

from gpulab.comparison.compare_runs import compare
from gpulab.comparison.comparison import MIN_DIFFERENCE_FRAC, Comparison
from gpulab.comparison.outcomes import measured_prediction
from gpulab.comparison.reasons import Reason
from gpulab.comparison.run_sequence import Story
from gpulab.comparison.sides import ComparedSide

__all__ = ["MIN_DIFFERENCE_FRAC", "ComparedSide", "Comparison", "Reason", "Story", "compare", "measured_prediction"]
