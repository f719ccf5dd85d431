"""What the notebooks call: A/B experiments, and lessons with questions, measurements, claims and a summary card.

ab_experiment, equality   run two variants in turn and compare them; check that both give the same result
lesson, course            a lesson as data; all lessons, one module for each notebook
lesson_lab                Lab: an open lesson, on which a notebook calls its methods; lab() opens one
question_view, verdicts   questions and the feedback on answers; claims, equality checks, scores
card, contents            the cards at the start and end of a notebook; the index of the course, progress
handout                   copy the course into a learner's folder
answer, sources           views whose text is the same on every machine; labels for the source of a number
regions                   fixes and blanks in a cell, and the cell without them
labs                      datasets, counters and small models that the notebooks import
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
