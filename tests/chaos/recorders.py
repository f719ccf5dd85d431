"""The ways to record a program: each runs it plain and recorded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import gpulab
from gpulab.capture.session import Session
from tests.chaos.program import Log

Call = Callable[[], Any]
_BLOCKS: dict[str, Callable[[], Any]] = {
    "profile": lambda: gpulab.profile("probe"),
    "profile steps": lambda: gpulab.profile("probe", steps=3),
    "profile sensors": lambda: gpulab.profile("probe", level="sensors"),
    "profile deep": lambda: gpulab.profile("probe", level="deep", steps=2),
    "monitor": lambda: gpulab.monitor("probe", every=0.1),
    "virtual": lambda: gpulab.virtual_gpu("t4", "probe"),
}
_CELLS = {"cell": "%%gpuprofile probe", "cell steps": "%%gpuprofile probe --steps 3 --no-live"}
RECORDERS = (*_BLOCKS, *_CELLS)
PROFILERS = tuple(name for name in RECORDERS if name != "virtual")
warm_ups: list[Any] = []  # runs made before the probes
_CELL = "result_of_cell = program()\nresult_of_cell"


class _SilentPublisher(DisplayPublisher):
    """Drops gpulab's panels and reports: they are its own output."""

    def publish(self, *args: Any, **options: Any) -> None:
        """Drop it."""

    def clear_output(self, wait: bool = False) -> None:
        """Ignore it."""


def open_shell() -> None:
    """Open the shell of cells, with the magics loaded; once, before the probes."""
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.display_pub = _SilentPublisher(parent=shell)
    shell.displayhook.write_output_prompt = lambda: None
    shell._showtraceback = lambda *_: None  # its line numbers differ by the line of the magic
    shell.run_cell("%load_ext gpulab", silent=True)


def warm_up() -> None:
    """Import and calibrate what the recorders need, so that the probes do not pay for it."""
    open_shell()
    for name in _BLOCKS:
        with _BLOCKS[name]():
            pass
    InteractiveShell.instance().run_cell("%%gpuprofile warm\npass", store_history=False)
    gpulab.report(gpulab.runs["warm"])
    with contextlib.suppress(ImportError):
        import torch.profiler._cupti_monitor  # noqa: F401  (the first backward pass imports it)
    warm_ups.extend(gpulab.runs.values())
    gc.collect()
    gc.freeze()  # the collections of the children then look at their own objects only


def record(recorder: str, call: Call, log: Log, *, plain: bool) -> Any:
    """Run the call in the block or cell of a recorder, or plain as it would be without gpulab."""
    if recorder == "pipeline":  # gpulab alone, without a program beside it
        return None if plain else call()
    if recorder in _CELLS:
        return _run_cell(_CELLS[recorder], call, log, plain=plain)
    block = nullcontext() if plain else _BLOCKS[recorder]()
    try:
        with block:
            return call()
    finally:
        if not plain:
            log.recorded += _description()


def _run_cell(magic: str, call: Call, log: Log, *, plain: bool) -> Any:
    shell = InteractiveShell.instance()
    shell.user_ns["program"] = call
    names = set(shell.user_ns)
    try:
        result = shell.run_cell(_CELL if plain else f"{magic}\n{_CELL}", store_history=False)
        log.note(f"names: {sorted(set(shell.user_ns) - names - {'_', '__', '___'})}")
        if not plain:
            log.recorded += _description()
        result.raise_error()
        return result.result
    finally:
        shell.user_ns.pop("program", None)


def _description() -> list[str]:
    run = next((run for run in gpulab.runs.values() if not any(run is each for each in warm_ups)), None)
    if run is None:
        return []
    return ["run", *(["events"] if len(run.event_rows) else []), *(gap.what for gap in run.recording.left_out)]


def is_usable() -> str:
    """Start and discard another recording; return why this fails, or an empty text."""
    try:
        session = Session("afterwards", level="sensors")
        session.start()
        session.abandon()
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return ""
