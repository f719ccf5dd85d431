"""Many ranks of one job, analysed on a Dask cluster: call it, `gpulab.fleet("traces/")`.

Each file becomes a summary of at most 50 kB where it lies; the summaries are joined as a tree.

analysis         fleet(): the question and its options
rank_files       files at paths and URLs
rank_task        what a worker does with one file
rank_summary     the summary of a rank, its size limits and its form as bytes
summarise        from the run of a rank to its summary
summary_cache    summaries kept for a further analysis
job_summary      the summaries of all ranks, joined
cluster          tasks and joins on Dask; worker failures; progress
group_arrivals   stragglers by process group, and why they are late
fleet_result     Fleet: the result
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gpulab.fleet.analysis import fleet
from gpulab.fleet.fleet_result import Fleet

__all__ = ["Fleet", "fleet"]


class _CallableModule(ModuleType):
    """The package, which is also the function: importing `gpulab.fleet` would hide a function of that name."""

    __doc__ = fleet.__doc__
    __wrapped__ = staticmethod(fleet)  # the signature that help shows

    def __call__(self, *arguments: Any, **options: Any) -> Fleet:
        return fleet(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
