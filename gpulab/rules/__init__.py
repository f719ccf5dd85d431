"""What is worth changing: every rule asked of a run, ranked by what its fix would save.

A rule is a function from Evidence to a Finding or None; its docstring is its page. To add one, write it in the file
of its family and name it in RULES.
"""

from __future__ import annotations

from gpulab.rules.device import device_bound, exposed_copies, host_syncs
from gpulab.rules.diagnosis import RULES, Rule, diagnose
from gpulab.rules.feeding import few_workers, starving
from gpulab.rules.finding import Diagnosis, Finding, Gain, Unjudged
from gpulab.rules.host import dispatch_bound, host_python

__all__ = [
    "RULES",
    "Diagnosis",
    "Finding",
    "Gain",
    "Rule",
    "Unjudged",
    "device_bound",
    "diagnose",
    "dispatch_bound",
    "exposed_copies",
    "few_workers",
    "host_python",
    "host_syncs",
    "starving",
]
