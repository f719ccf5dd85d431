"""A private JupyterLab and a Chromium to look at it with."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.front_end.kernel import ROOT

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
FLAGS += ("--disable-sync", "--no-first-run", "--disable-dev-shm-usage")
START_S = 180
OPEN_MS = 120_000

_READY = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  const kernel = panel.sessionContext.session.kernel;
  await kernel.info;
  while (kernel.connectionStatus !== 'connected' || kernel.status !== 'idle')
    await new Promise(resolve => setTimeout(resolve, 50));
}"""
_EXECUTE = """async code => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  const reply = await kernel.requestExecute({ code, silent: true }).done;
  if (reply.content.status !== 'ok') throw new Error(reply.content.evalue);
}"""
_INTERRUPT = """async () => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel;
  if (kernel?.status === 'busy') await kernel.interrupt();
  while (kernel && kernel.status !== 'idle') await new Promise(resolve => setTimeout(resolve, 50));
}"""
_CLOSE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  panel.context.model.dirty = false;
  panel.close();
}"""
_RUN = """index => {
  const app = window.jupyterapp, notebook = app.shell.currentWidget.content;
  const code = notebook.widgets.flatMap((cell, at) => cell.model.type === 'code' ? [at] : []);
  notebook.activeCellIndex = code[index];
  notebook.mode = 'command';
  app.commands.execute('notebook:run-cell');
}"""


class Lab:
    """A JupyterLab server over one folder."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def start_kernel(self) -> str:
        """Start a Python kernel that belongs to no notebook; return its id."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/kernels", b'{"name": "python3"}', headers)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            return str(json.load(answer)["id"])


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """Serve the folder, with settings of its own and gpulab on the kernels' path."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        folder_ = Path(name)
        news = folder_ / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
        news.parent.mkdir(parents=True)
        news.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
        probe.bind(("127.0.0.1", 0))
        port, token = probe.getsockname()[1], secrets.token_hex(16)
        probe.close()
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        command += [f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
        command += [f"--ServerApp.root_dir={folder}", "--expose-app-in-browser", "--LabApp.news_url=None"]
        with (folder_ / "log").open("w") as log:
            server = subprocess.Popen(command, env=_environment(folder_), stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(f"http://127.0.0.1:{port}/api?token={token}", server, folder_ / "log")
            yield Lab(f"http://127.0.0.1:{port}", token)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _environment(folder_: Path) -> dict[str, str]:
    folders = {"CONFIG_DIR": "config", "RUNTIME_DIR": "runtime", "DATA_DIR": "data"}
    return {
        **os.environ,
        **{f"JUPYTER_{name}": str(folder_ / folder) for name, folder in folders.items()},
        "JUPYTER_PLATFORM_DIRS": "1",
        "JUPYTERLAB_SETTINGS_DIR": str(folder_ / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder_ / "workspaces"),
        "IPYTHONDIR": str(folder_ / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "OMP_NUM_THREADS": "1",  # beside a browser, a second thread of a two-core machine only waits
    }


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=1) as answer:
            answer.read()
            return
        if server.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A Chromium; gives playwright's Browser, whose contexts are windows that share nothing."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)))
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))
        try:
            yield opened
        finally:
            opened.close()


class Notebook:
    """A notebook open in JupyterLab, with an idle kernel: one of its own, the one of this id, or none."""

    def __init__(self, page: Any, lab: Lab, name: str, *, kernel: bool | str = True) -> None:
        self.page = page
        page.set_default_timeout(OPEN_MS)  # also on a busy machine
        if not page.url.startswith(lab.url):
            # A workspace of its own: JupyterLab leaves one that another page has open while we wait.
            page.goto(f"{lab.url}/lab/workspaces/{secrets.token_hex(4)}?token={lab.token}", timeout=OPEN_MS)
            page.wait_for_function("window.jupyterapp !== undefined", timeout=OPEN_MS)
            page.evaluate("async () => { await window.jupyterapp.restored }")
        start: dict[str, Any] = {
            "shouldStart": bool(kernel),
            "canStart": bool(kernel),
            "autoStartDefault": bool(kernel),
        }
        if isinstance(kernel, str):
            start["id"] = kernel
        self.command("docmanager:open", {"path": name, "factory": "Notebook", "kernelPreference": start})
        label = json.dumps(name.rpartition("/")[2])
        page.wait_for_function(f"window.jupyterapp.shell.currentWidget?.title.label === {label}", timeout=OPEN_MS)
        page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell", timeout=OPEN_MS)
        if kernel:
            page.evaluate(_READY)
        if page.locator("#jp-left-stack").is_visible():
            self.command("application:toggle-left-area")

    def execute(self, code: str) -> None:
        """Execute code in the kernel, outside of any cell."""
        self.page.evaluate(_EXECUTE, code)

    def interrupt(self) -> None:
        """Interrupt what the kernel runs, and wait until it is idle."""
        self.page.evaluate(_INTERRUPT)

    def close(self) -> None:
        """Close the notebook; the kernel goes on."""
        self.page.evaluate(_CLOSE)

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Run one of JupyterLab's commands."""
        run = "async ([name, args]) => { await window.jupyterapp.commands.execute(name, args) }"
        self.page.evaluate(run, [name, arguments or {}])

    def cell(self, index: int) -> Any:
        """The code cell of this number."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").nth(index)

    def prompt(self, index: int) -> str:
        return str(self.cell(index).locator(".jp-InputPrompt").text_content()).strip()

    def start(self, index: int) -> Any:
        """Run a code cell and do not wait; through the command registry, so that focus plays no part."""
        self.page.evaluate(_RUN, index)
        return self.cell(index)

    def wait(self, index: int, timeout_s: float = 120) -> None:
        """Until the cell's prompt has a number."""
        deadline_s = time.monotonic() + timeout_s
        while not self.prompt(index).strip("[]:").isdigit():
            assert time.monotonic() < deadline_s, f"the cell did not end: {self.cell(index).text_content()}"
            self.page.wait_for_timeout(50)

    def run(self, index: int, timeout_s: float = 120) -> Any:
        self.start(index)
        self.wait(index, timeout_s)
        return self.cell(index)

    def save(self) -> None:
        self.page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.context.save() }")
