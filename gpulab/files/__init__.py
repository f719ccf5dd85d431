"""Runs from disk and to disk: one file, a directory of ranks, or a pattern, whatever kind of file it is."""

from gpulab.files.loading import load, load_ranks, load_run, save
from gpulab.files.ranks import Ranks

__all__ = ["Ranks", "load", "load_ranks", "load_run", "save"]
