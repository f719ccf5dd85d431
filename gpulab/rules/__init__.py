"""Diagnosis: run every rule on a run and rank the findings by predicted saving.

A rule is a function from Evidence to a Finding, or None if it has nothing to report; its docstring is its page in
%gpuwhy. To add a rule, write the function in the folder of its topic, list it in `engine/catalogue.py`, and add a
folder to tests/cases with runs in which it must and must not fire.

    engine/      Rule, Need, Evidence, Finding, the catalogue, the diagnosis of one run and of all ranks
    data/        DataLoader: no workers, too few, too many, storage, CPU cost of samples
    host/        Python code, GIL, garbage collection, operator dispatch, synchronisation, CPU threads
    steps/       periodic stalls and slow first steps
    copies/      host-to-device copies
    kernels/     precision, fusion, layout, shapes, batch size, optimizer
    memory/      out of memory, allocator, fragmentation, growth
    ranks/       communication, stragglers, DataParallel, idle GPUs
    machine/     clocks, sharing, PCIe link, model on the CPU
"""

from __future__ import annotations

from gpulab.rules.engine.all_ranks import diagnose
from gpulab.rules.engine.catalogue import RULES
from gpulab.rules.engine.finding import Diagnosis, Finding, Gain, Masked, Unjudged
from gpulab.rules.engine.rule import Rule, Stage

__all__ = ["RULES", "Diagnosis", "Finding", "Gain", "Masked", "Rule", "Stage", "Unjudged", "diagnose"]
