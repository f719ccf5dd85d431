"""What the notebooks call: experiments to run, and lessons that ask, measure, claim and sum up.

trials, equality     two variants run in turn and compared: experiment; whether both gave the same result
lesson, course       a lesson as data; all of them, one module for each notebook
laboratory           Lab: a lesson as it is being done; lab() opens one
asked, verdicts      questions and what is said to an answer; claims, sameness, scores
card, contents       what was learnt, to keep; the course at a glance, and how far one got
handout              the course, in a folder of the learner
said, sources        text that is the same on every machine; where a number comes from
regions              fixes and blanks in a cell, and the cell as it was without them
labs                 what the notebooks import: data sets, counters, small models
"""

from __future__ import annotations

from gpulab.lessons.ab_experiment import Experiment, experiment
from gpulab.lessons.contents import progress
from gpulab.lessons.equality import Equality
from gpulab.lessons.lesson_lab import Lab, lab
from gpulab.lessons.sources import COUNTED, GIVEN, MEASURED, SIMULATED

__all__ = [
    "COUNTED",
    "GIVEN",
    "MEASURED",
    "SIMULATED",
    "Equality",
    "Experiment",
    "Lab",
    "experiment",
    "lab",
    "progress",
]
