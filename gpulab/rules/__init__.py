"""What is worth changing: every rule asked of a run, ranked by what its fix would save.

A rule is a function from Evidence to a Finding or None; its docstring is its page. To add one, write it in the file
of its family, name it in `catalogue.py`, and give it a folder in tests/cases with runs that provoke and spare it.

    rule, needs, names   what a rule is, what it may ask for, how the user calls things
    evidence             what a rule is given
    finding              what it answers
    catalogue            all of them
    diagnosis            asking them, masking, ranking
    job                  one run, or all ranks of a job
"""

from __future__ import annotations

from gpulab.rules.engine.all_ranks import diagnose
from gpulab.rules.engine.catalogue import RULES
from gpulab.rules.engine.finding import Diagnosis, Finding, Gain, Masked, Unjudged
from gpulab.rules.engine.rule import Rule, Stage

__all__ = ["RULES", "Diagnosis", "Finding", "Gain", "Masked", "Rule", "Stage", "Unjudged", "diagnose"]
