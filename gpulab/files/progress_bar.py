"""Progress bar for slow loads."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from gpulab.deferred_signals import DeferredSignals

DELAY_S = 1.0  # shorter loads need neither a bar nor the time to import one
_NAME_LETTERS = 40


class Progress:
    """Number of bytes read so far, shown as a bar while loading; the bar always disappears at the end.

    `total_bytes`: of files that other processes read, in any order; then only `advance` is called.
    """

    def __init__(self, files: Sequence[Path], *, visible: bool, total_bytes: int = 0) -> None:
        self._sizes = {path: _size(path) for path in files}
        self._total = total_bytes + sum(self._sizes.values())
        self._due_s = time.monotonic() + DELAY_S if visible else float("inf")
        self._read = self._before = 0  # bytes of all files; of the files before the current one
        self._name = ""
        self._bar: _Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is None:
            return
        try:
            self._bar.close()
        except KeyboardInterrupt:  # pressed while the bar was closing
            self._bar.close()
            raise

    def begin(self, path: Path) -> None:
        """Start the next file; the files before it count as completely read."""
        self._name = path.name
        if self._bar is not None:
            self._bar.name(path.name)
        self.advance(self._before - self._read)
        self._before += self._sizes[path]

    def advance(self, count: int) -> None:
        """Add the number of bytes read."""
        self._read += count
        if self._bar is not None:
            self._bar.advance(count)
        elif time.monotonic() >= self._due_s:
            self._due_s = float("inf")
            self._bar = _new_bar()
            if self._bar is not None:
                self._bar.open(self._total, self._read, self._name)


class _Bar:
    """A tqdm bar in a terminal or a notebook that leaves no line, output, widget or thread behind."""

    def __init__(self, bar_class: Any, display: Any) -> None:
        subclass: Any = type("Bar", (bar_class,), {"monitor_interval": 0})  # tqdm's monitor is a thread that never ends
        subclass.set_lock(threading.RLock())  # tqdm's default lock may start a process
        self._class = subclass
        self._display = display  # of a notebook
        # An output of a notebook cannot be removed, but replaced under its display id.
        self._place = {"display_id": uuid4().hex}
        self._bar: Any = None
        self._visible = False

    def open(self, total: int, read: int, name: str) -> None:
        """Show the bar."""
        options: dict[str, Any] = {"display": False} if self._display else {"dynamic_ncols": True}
        self._bar = self._class(
            total=total, initial=read, unit="B", unit_scale=True, unit_divisor=1024, leave=False, **options
        )
        self.name(name)
        if self._display and not self._bar.disable:
            self._visible = True
            self._display(self._bar.container, **self._place)

    def name(self, name: str) -> None:
        """Show the name of the file being read."""
        label = "".join(letter if letter.isprintable() else "?" for letter in name)
        if len(label) > _NAME_LETTERS:
            label = f"{label[: _NAME_LETTERS - 1]}…"
        self._bar.set_description(label)

    def advance(self, count: int) -> None:
        """Add the number of bytes read."""
        self._bar.update(count)

    def close(self) -> None:
        """Remove the bar; may be called several times."""
        if self._bar is None:
            return
        if self._visible:
            self._display({"text/plain": ""}, raw=True, update=True, **self._place)
        self._bar.total = self._bar.n  # in a notebook, tqdm keeps a bar that did not reach its end
        self._bar.close()
        if self._visible:
            box = self._bar.container
            for widget in (*box.children, box):
                for part in (widget.layout, getattr(widget, "style", None), widget):
                    if part is not None:
                        part.close()


def _new_bar() -> _Bar | None:
    """A bar for a notebook or a terminal; None elsewhere."""
    with DeferredSignals():  # an interrupted import stays incomplete and fails from then on
        kind = _bar_class()
    notebook: Any = sys.modules.get("tqdm.notebook")
    display = notebook.display if notebook is not None and issubclass(kind, notebook.tqdm) else None
    if display is None and not (sys.stderr is not None and sys.stderr.isatty()):
        return None  # a log file would keep every state of the bar
    return _Bar(kind, display)


def _bar_class() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns about missing ipywidgets in a notebook, and works without
        from tqdm.auto import tqdm
    return tqdm


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
