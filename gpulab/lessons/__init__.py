"""What the notebooks call to try a thing out, not only to watch it.

trials     two variants run in turn and compared: experiment
equality   whether both gave the same result
"""

from __future__ import annotations

from gpulab.lessons.equality import Equality
from gpulab.lessons.trials import Experiment, experiment

__all__ = ["Equality", "Experiment", "experiment"]
