"""gpulab, a GPU profiler for PyTorch notebooks: find out why the GPU is idle, and how to fix it.

In a notebook: %load_ext gpulab, then %%gpuprofile in a cell. Without IPython:

    with gpulab.profile("before"):
        train()
    print(gpulab.report(gpulab.runs["before"]))

Modules and packages, lowest layer first. A module imports only from layers above it in this list:

    intervals, wording   arithmetic of time spans; formatting of numbers and text
    phase_names          names of phases that mean training or evaluation
    errors, columns      expected failures; definition of a column: its label, unit, limit and plausible values
    locations            where the user's files are
    extras               optional packages, and the error that names what installs them
    rows, tables         tables in memory; the tables of a run and their columns
    sensor_tables        the tables of sensor readings
    run                  a finished recording and the machine it was made on, frozen
    hardware             facts about GPUs: peak rates, memory, caches, links, clocks, power
    trace                traces of torch.profiler (Kineto's JSON) to runs
    sensors              GPU sensors (NVML), host sensors (psutil), the user's current line
    store                a run on disk: `.gpulab` files
    files                loading and saving: files, directories of ranks, patterns, the recorded datasets
    capture              recording a cell or a block to a run
    analysis             from a run to numbers: steps, ledger, kernels, copies, memory, ranks, ...
    replay               what-if: the step time predicted with something changed
    rules                diagnosis: findings with evidence and fixes, ranked by predicted gain
    user_data            small files kept for the user between sessions: measured predictions, course progress
    virtual              a virtual GPU: a run without a GPU, timed by a model
    comparison           two or more runs side by side
    fleet                all ranks of a large job, analysed on a Dask cluster
    watch                GPUs over weeks: a database of readings, events, alerts, patterns
    questions            diagnose, predict and compare, with the predictions measured on this machine
    run_summary          a run as one flat dict of numbers
    views                text, HTML, charts, timeline, the live panel
    workloads            small training loops with one planted fault each
    synthetic            small data sets, generated and cached
    lessons              experiments and the lessons of the course notebooks
    integrations         callbacks for Lightning, Transformers and Accelerate; exporters to trackers and monitoring
    magics               %%gpuprofile and the other IPython magics
    cli                  gpulab run and the other commands of the shell
    __main__             python -m gpulab
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulab.errors import GpulabError

if TYPE_CHECKING:
    from gpulab import virtual
    from gpulab.capture.active_session import phase, step
    from gpulab.capture.profile_block import profile
    from gpulab.capture.run_registry import runs
    from gpulab.capture.spool.recovery import recover
    from gpulab.files import load
    from gpulab.fleet.analysis import fleet
    from gpulab.lessons import experiment, lab
    from gpulab.questions import compare, diagnose
    from gpulab.questions.run_names import save
    from gpulab.run import Run
    from gpulab.run_summary import summary
    from gpulab.views import charts
    from gpulab.views.history.history_view import history
    from gpulab.views.info import info
    from gpulab.views.live.monitor import monitor
    from gpulab.views.perfetto import to_perfetto
    from gpulab.views.report.report import report
    from gpulab.views.sheet.view import View as View  # re-exported for editors only
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
    "fleet",
    "history",
    "info",
    "lab",
    "load",
    "monitor",
    "phase",
    "profile",
    "recover",
    "report",
    "runs",
    "save",
    "step",
    "summary",
    "timeline",
    "to_perfetto",
    "virtual",
    "virtual_gpu",
    "whatif",
]
_MODULES = {"charts": "gpulab.views.charts", "fleet": "gpulab.fleet", "virtual": "gpulab.virtual"}
_SOURCE_MODULES = {
    "compare": "gpulab.questions",
    "diagnose": "gpulab.questions",
    "experiment": "gpulab.lessons",
    "history": "gpulab.views.history.history_view",
    "info": "gpulab.views.info",
    "lab": "gpulab.lessons",
    "load": "gpulab.files",
    "monitor": "gpulab.views.live.monitor",
    "phase": "gpulab.capture.active_session",
    "profile": "gpulab.capture.profile_block",
    "recover": "gpulab.capture.spool.recovery",
    "Run": "gpulab.run",
    "report": "gpulab.views.report.report",
    "runs": "gpulab.capture.run_registry",
    "save": "gpulab.questions.run_names",
    "step": "gpulab.capture.active_session",
    "summary": "gpulab.run_summary",
    "timeline": "gpulab.views.timeline.view",
    "to_perfetto": "gpulab.views.perfetto",
    "virtual_gpu": "gpulab.virtual.session",
    "whatif": "gpulab.views.whatif.whatif",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `import gpulab` must be fast.
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        return version("gpulab")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _SOURCE_MODULES:
        from gpulab.wording import did_you_mean

        hint = did_you_mean(name, __all__) if not name.startswith("_") else ""
        raise AttributeError(f"module 'gpulab' has no attribute {name!r}{hint and '; ' + hint}")
    return getattr(importlib.import_module(_SOURCE_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; called by %load_ext gpulab."""
    from gpulab import magics

    magics.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; called by %unload_ext gpulab."""
    from gpulab import magics

    magics.unload_ipython_extension(shell)
