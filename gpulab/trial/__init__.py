"""Trials: run a cell for some seconds with and without a fix, on copies of the user's objects, and compare."""

from gpulab.trial.all_fixes import AllFixes, try_all_fixes
from gpulab.trial.fix_trial import Trial, try_fix

__all__ = ["AllFixes", "Trial", "try_all_fixes", "try_fix"]
