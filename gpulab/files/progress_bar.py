"""A bar for loads that take long enough to wonder."""

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

DELAY_S = 1.0  # who waits less needs no bar, nor the time it takes to import one
_NAME_LETTERS = 40


class Progress:
    """How many bytes of the files have been read, as a bar while it takes; gone in the end, however that comes."""

    def __init__(self, files: Sequence[Path], *, shown: bool) -> None:
        self._sizes = {path: _size(path) for path in files}
        self._due_s = time.monotonic() + DELAY_S if shown else float("inf")
        self._read = self._before = 0  # of all files; of those before the present one
        self._name = ""
        self._bar: _Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is None:
            return
        try:
            self._bar.close()
        except KeyboardInterrupt:  # pressed while it was going away
            self._bar.close()
            raise

    def begin(self, path: Path) -> None:
        """One of the files is read next; those before it count as read, however much of them was."""
        self._name = path.name
        if self._bar is not None:
            self._bar.name(path.name)
        self.advance(self._before - self._read)
        self._before += self._sizes[path]

    def advance(self, count: int) -> None:
        """So many more bytes have been read."""
        self._read += count
        if self._bar is not None:
            self._bar.advance(count)
        elif time.monotonic() >= self._due_s:
            self._due_s = float("inf")
            self._bar = _bar_for_here()
            if self._bar is not None:
                self._bar.open(sum(self._sizes.values()), self._read, self._name)


class _Bar:
    """One bar of tqdm's, in a terminal or a notebook, that leaves no line, output, widget or thread behind."""

    def __init__(self, kind: Any, display: Any) -> None:
        own: Any = type("Bar", (kind,), {"monitor_interval": 0})  # tqdm's monitor is a thread that never ends
        own.set_lock(threading.RLock())  # its own lock may start a process
        self._kind = own
        self._display = display  # of a notebook
        # What a notebook shows can be replaced, though not taken back; by a name, known before it is shown.
        self._place = {"display_id": uuid4().hex}
        self._bar: Any = None
        self._shown = False

    def open(self, total: int, read: int, name: str) -> None:
        """Show it."""
        options: dict[str, Any] = {"display": False} if self._display else {"dynamic_ncols": True}
        self._bar = self._kind(
            total=total, initial=read, unit="B", unit_scale=True, unit_divisor=1024, leave=False, **options
        )
        self.name(name)
        if self._display and not self._bar.disable:
            self._shown = True
            self._display(self._bar.container, **self._place)

    def name(self, name: str) -> None:
        """Say which file is read."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in name)
        if len(plain) > _NAME_LETTERS:
            plain = f"{plain[: _NAME_LETTERS - 1]}…"
        self._bar.set_description(plain)

    def advance(self, count: int) -> None:
        """So many more bytes."""
        self._bar.update(count)

    def close(self) -> None:
        """Away with it; as often as it takes."""
        if self._bar is None:
            return
        if self._shown:
            self._display({"text/plain": ""}, raw=True, update=True, **self._place)
        self._bar.total = self._bar.n  # in a notebook, tqdm lets a bar stand that did not reach its end
        self._bar.close()
        if self._shown:
            box = self._bar.container
            for widget in (*box.children, box):
                for part in (widget.layout, getattr(widget, "style", None), widget):
                    if part is not None:
                        part.close()


def _bar_for_here() -> _Bar | None:
    """A bar where someone may see it: in a notebook or a terminal."""
    from concurrent.futures import ThreadPoolExecutor

    # In a thread, where no Ctrl-C reaches it: an import that is cut off stays half done, and fails ever after.
    with ThreadPoolExecutor(max_workers=1) as thread:
        kind = thread.submit(_kind).result()
    notebook: Any = sys.modules.get("tqdm.notebook")
    display = notebook.display if notebook is not None and issubclass(kind, notebook.tqdm) else None
    if display is None and not (sys.stderr is not None and sys.stderr.isatty()):
        return None  # a log would keep every state of it
    return _Bar(kind, display)


def _kind() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns of a notebook without ipywidgets, and makes do
        from tqdm.auto import tqdm
    return tqdm


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
