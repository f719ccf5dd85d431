"""Trials: run a cell for some seconds with and without a fix, on copies of the user's objects, and compare."""

from gpulab.trial.fix_trial import Trial, try_fix

__all__ = ["Trial", "try_fix"]
