"""gpulab: why is the GPU idle, and what would mend it? In a notebook: %load_ext gpulab, then %%gpuprofile on a cell.

The same without IPython:

    with gpulab.profile("before"):
        train()
    print(gpulab.report(gpulab.runs["before"]))

The map of the house; imports point down this list only:

    errors, intervals    expected failures; spans of time
    columns              name, dtype, meaning; label, unit and limit of a reading
    rows, tables, run    columns in memory; what each of them means; what was recorded, frozen
    trace, sensors       PyTorch's trace files; what GPU and host can be asked
    store                a run on disk
    files                from disk and to disk, whatever lies there; the recorded datasets
    capture              recording a cell to a run
    analysis             questions with a number for an answer
    replay               what-if
    rules, virtual       what is worth changing; a GPU that is not there
    comparison           two runs, or more
    questions            why, what if, and what came of it, with what this machine taught
    views                how it looks: text, HTML, pictures, timeline, charts, the live panel
    workloads            small training loops with one planted flaw each
    synthetic            small data, made and kept in a folder
    lessons              two variants run in turn; what the notebooks of the course call
    magics               %%gpuprofile and its like
    __main__             python -m gpulab: the course, and the file for nbval
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulab.errors import GpulabError

if TYPE_CHECKING:
    from gpulab import virtual
    from gpulab.capture.active_session import step
    from gpulab.capture.run_registry import runs
    from gpulab.capture.session import profile
    from gpulab.files import load, save
    from gpulab.lessons import experiment, lab
    from gpulab.questions import compare, diagnose
    from gpulab.run import Run
    from gpulab.views import charts
    from gpulab.views.info import info
    from gpulab.views.live.monitor import monitor
    from gpulab.views.perfetto import to_perfetto
    from gpulab.views.report.report import report
    from gpulab.views.sheet.view import View as View  # for editors only: no names to import
    from gpulab.views.timeline.view import timeline
    from gpulab.views.whatif.whatif import WhatIf as WhatIf
    from gpulab.views.whatif.whatif import whatif
    from gpulab.virtual.session import virtual_gpu

__all__ = [
    "GpulabError",
    "Run",
    "charts",
    "compare",
    "diagnose",
    "experiment",
    "info",
    "lab",
    "load",
    "monitor",
    "profile",
    "report",
    "runs",
    "save",
    "step",
    "timeline",
    "to_perfetto",
    "virtual",
    "virtual_gpu",
    "whatif",
]
_MODULES = {"charts": "gpulab.views.charts", "virtual": "gpulab.virtual"}
_HOMES = {
    "compare": "gpulab.questions",
    "diagnose": "gpulab.questions",
    "experiment": "gpulab.lessons",
    "info": "gpulab.views.info",
    "lab": "gpulab.lessons",
    "load": "gpulab.files",
    "monitor": "gpulab.views.live.monitor",
    "profile": "gpulab.capture.session",
    "Run": "gpulab.run",
    "report": "gpulab.views.report.report",
    "runs": "gpulab.capture.run_registry",
    "save": "gpulab.files",
    "step": "gpulab.capture.active_session",
    "timeline": "gpulab.views.timeline.view",
    "to_perfetto": "gpulab.views.perfetto",
    "virtual_gpu": "gpulab.virtual.session",
    "whatif": "gpulab.views.whatif.whatif",
}


def __getattr__(name: str) -> Any:
    # On demand: `import gpulab` must cost nothing in a notebook that may never profile.
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        return version("gpulab")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'gpulab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """%load_ext gpulab."""
    from gpulab import magics

    magics.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """%unload_ext gpulab."""
    from gpulab import magics

    magics.unload_ipython_extension(shell)
