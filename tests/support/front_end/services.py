"""One Chromium, one JupyterLab and one kernel for a whole test run, each started by the first test that needs it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.support.front_end.browser import Lab, Notebook, browser, lab
from tests.support.front_end.kernel import Kernel, kernel

Value = TypeVar("Value")

# Makes a kernel as good as new: no names, no runs, gpulab not loaded, in the folder of the test.
CLEAN = """
import os, sys
os.chdir({folder!r})
if 'gpulab.magics' in sys.modules:
    get_ipython().run_line_magic('unload_ext', 'gpulab')
if 'gpulab' in sys.modules:
    sys.modules['gpulab'].runs._runs.clear()
if 'ipywidgets' in sys.modules:
    sys.modules['ipywidgets'].Widget.close_all()
get_ipython().run_line_magic('reset', '-f')
"""


class Service(Generic[Value]):
    """A context manager that is entered when it is first needed and left by `stop`."""

    def __init__(self, start: Callable[[], AbstractContextManager[Value]]) -> None:
        self._start = start
        self._stack: ExitStack | None = None
        self._value: Value | None = None

    def get(self) -> Value:
        """Return the value of the context manager; enter it if it is not running."""
        if self._stack is None:
            with ExitStack() as stack:
                self._value = stack.enter_context(self._start())
                self._stack = stack.pop_all()
        assert self._value is not None
        return self._value

    def stop(self) -> None:
        """Leave the context manager if it is running."""
        stack, self._stack, self._value = self._stack, None, None
        if stack is not None:
            stack.close()


class SharedNotebook(Notebook):
    """A notebook on a kernel that others use after it."""

    def close(self) -> None:
        """Interrupt what still runs, close the notebook, and leave the kernel without names, runs and widgets."""
        self.interrupt()
        self.execute(CLEAN.format(folder="/"))
        super().close()


@dataclass
class JupyterLab:
    """A JupyterLab, one page of it in Chromium, and a kernel that all notebooks of that page share."""

    server: Lab
    page: Any
    context: Any
    folder: Path
    kernel: str
    _reader: Any = None

    def subfolder(self, name: str) -> Path:
        """Make an empty folder that JupyterLab serves."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path

    def open(self, path: Path) -> Notebook:
        """Open a notebook in the shared page; its kernel is the shared one, cleaned, in the notebook's folder."""
        self.page.bring_to_front()  # a page behind another one is hidden: it neither draws nor polls
        notebook = SharedNotebook(self.page, self.server, self.name(path), kernel=self.kernel)
        notebook.execute(CLEAN.format(folder=str(path.parent)))
        return notebook

    def read(self, path: Path) -> Notebook:
        """Open a notebook without a kernel, in a second page that is for reading alone."""
        if self._reader is None:
            self._reader = self.context.new_page()
        self._reader.bring_to_front()
        return Notebook(self._reader, self.server, self.name(path), kernel=False)

    def name(self, path: Path) -> str:
        """Return the path of a file as JupyterLab names it."""
        return str(path.relative_to(self.folder))


@contextlib.contextmanager
def _jupyterlab() -> Iterator[JupyterLab]:
    with tempfile.TemporaryDirectory() as name, lab(Path(name)) as server:
        context = CHROMIUM.get().new_context(viewport={"width": 1200, "height": 1000})
        try:
            yield JupyterLab(server, context.new_page(), context, Path(name), server.start_kernel())
        finally:
            context.close()


CHROMIUM: Service[Any] = Service(browser)
JUPYTERLAB: Service[JupyterLab] = Service(_jupyterlab)
KERNEL: Service[Kernel] = Service(kernel)

# The services behind each fixture. Services stop in this order.
BEHIND = {"jupyterlab": (JUPYTERLAB, CHROMIUM), "chromium": (CHROMIUM,), "shared_kernel": (KERNEL,)}


def clean_kernel(*cells: str) -> Kernel:
    """Return the shared kernel, cleaned, after running these cells in it."""
    if KERNEL.get().is_lost:
        KERNEL.stop()
    running = KERNEL.get()
    for cell in (CLEAN.format(folder=str(running.folder)), *cells):
        reply = running.run(cell)
        assert reply.status == "ok", reply.traceback
    return running


def stop_unused(fixtures: list[str]) -> None:
    """Stop every service that a test with these fixtures does not use."""
    used = {service for name in fixtures for service in BEHIND.get(name, ())}
    for service in (JUPYTERLAB, CHROMIUM, KERNEL):
        if service not in used:
            service.stop()
