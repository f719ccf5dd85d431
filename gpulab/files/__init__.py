"""Load runs: one file, a directory of ranks, or a pattern, in any supported format."""

from gpulab.files.loading import load, load_ranks, load_run
from gpulab.files.ranks import Ranks

__all__ = ["Ranks", "load", "load_ranks", "load_run"]
