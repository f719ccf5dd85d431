"""A live IPython kernel over ZMQ, as a front end sees it: cells go in, messages come out."""

from __future__ import annotations

import ast
import contextlib
import os
import queue
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import gpulab

ROOT = Path(gpulab.__file__).parent.parent
TIMEOUT_S = 120
# Lets a kernel that hangs write where each of its threads is.
REPORT_THREADS = """
import faulthandler as _faulthandler, signal as _signal
_faulthandler.register(_signal.SIGUSR2, file=open({path!r}, "w"), all_threads=True)
del _faulthandler, _signal
"""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Reply:
    """Everything a cell gave."""

    content: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.content["status"]

    @property
    def count(self) -> int:
        return self.content["execution_count"]

    @property
    def payload(self) -> list[Any]:
        return self.content.get("payload", [])

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    @property
    def value(self) -> str | None:
        """The text of Out, if the cell had a value."""
        return next((m["content"]["data"]["text/plain"] for m in self.of("execute_result")), None)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [message["content"] for message in self.of("error")]

    @property
    def traceback(self) -> str:
        """The traceback as shown, without colours."""
        return _COLOUR.sub("", "\n".join(line for error in self.errors for line in error["traceback"]))

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """What a notebook shows in the end, in order, as (kind, text): updated in place, cleared when the cell asks."""
        outputs: list[tuple[str, str, str]] = []
        clearing = False
        for message in self.messages:
            kind, content = message["msg_type"], message["content"]
            name = content.get("transient", {}).get("display_id", "")
            text = _text(kind, content)
            if kind == "clear_output":
                clearing = content["wait"]
                outputs = outputs if clearing else []
            elif kind == "update_display_data":
                outputs = [(k, text if display == name else t, display) for k, t, display in outputs]
            elif text is not None:
                outputs = [*([] if clearing else outputs), (content["name"] if kind == "stream" else kind, text, name)]
                clearing = False
        return [(kind, text) for kind, text, _ in outputs]

    @property
    def bundles(self) -> list[dict[str, Any]]:
        """What every display ends as, by MIME type."""
        last: dict[str, dict[str, Any]] = {}
        for number, message in enumerate(self.of("display_data", "update_display_data")):
            content = message["content"]
            last[content.get("transient", {}).get("display_id") or str(number)] = content["data"]
        return list(last.values())

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["msg_type"] in kinds]

    def _stream(self, name: str) -> str:
        return "".join(m["content"]["text"] for m in self.of("stream") if m["content"]["name"] == name)


def _text(kind: str, content: dict[str, Any]) -> str | None:
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return str(content["ename"])
    return str(content["data"].get("text/plain", "")) if "data" in content and "comm_id" not in content else None


class Kernel:
    """One kernel. `run` waits for the cell; `begin` and `end` leave time between for other things."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, folder: Path) -> None:
        self.manager, self.client, self.folder = manager, client, folder
        self.is_lost = False  # it died, or a cell never ended: no further cell runs in it

    def run(self, code: str, *, notebook: bool = False, during: Callable[[Reply], None] | None = None) -> Reply:
        """Run a cell. `notebook`: as JupyterLab sends it, else as nbconvert does. `during`: called at each message."""
        request = self.begin(code, notebook=notebook)
        return self.end(request, during)

    def begin(self, code: str, *, notebook: bool = False) -> str:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "stop_on_error": True}
        message = self.client.session.msg("execute_request", {**content, "allow_stdin": notebook})
        if notebook:
            message["metadata"] = {"cellId": "a-cell"}
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def end(self, request: str, during: Callable[[Reply], None] | None = None) -> Reply:
        reply, idle = Reply(), False
        deadline_s = time.monotonic() + TIMEOUT_S
        while not idle:
            if time.monotonic() > deadline_s or not self.manager.is_alive():
                self.is_lost = True
                raise TimeoutError(f"the cell did not end; so far {reply.outputs}\n{self._condition()}")
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=0.1)
                if message["parent_header"].get("msg_id") != request:
                    continue
                if message["msg_type"] == "status":
                    idle = message["content"]["execution_state"] == "idle"
                    continue
                reply.messages.append(message)
            if during is not None:
                during(reply)
        while not reply.content:
            message = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") == request:
                reply.content = message["content"]
        return reply

    def _condition(self) -> str:
        """Say whether the kernel has died, and where its threads are if not."""
        if not self.manager.is_alive():
            return "the kernel has died"
        self.manager.signal_kernel(signal.SIGUSR2)
        time.sleep(1)
        threads = self.stacks.read_text().split("\n\n")
        return "\n".join(
            ["where its threads are:", *("\n".join(lines.splitlines()[:8]) for lines in reversed(threads))]
        )

    @property
    def stacks(self) -> Path:
        return self.folder.parent / "threads.txt"

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def interrupted(self, code: str, *, notebook: bool = False, shows: str = "started") -> Reply:
        """Run a cell and interrupt it as soon as it has printed the word."""
        once = threading.Event()

        def during(reply: Reply) -> None:
            if shows in reply.stdout and not once.is_set():
                once.set()
                time.sleep(0.2)  # past the print, into the work
                self.interrupt()

        return self.run(code, notebook=notebook, during=during)

    def complete(self, code: str) -> list[str]:
        """What tab completion offers at the end of the code: the whole text each offer gives."""
        request = self.client.complete(code)
        while True:
            message = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") == request:
                reply = message["content"]
                return [code[: reply["cursor_start"]] + match for match in reply["matches"]]

    def value(self, expression: str) -> Any:
        """A value of the kernel's namespace that has a literal."""
        reply = self.run(expression)
        assert reply.status == "ok", reply.traceback
        return ast.literal_eval(reply.value or "None")


@contextlib.contextmanager
def kernel(*cells: str) -> Iterator[Kernel]:
    """A kernel in a folder of its own, with these cells run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONWARNINGS": "default",
        }
        manager = KernelManager(transport="ipc", ip=str(folder / "socket"))
        manager.start_kernel(cwd=str(folder / "work"), env=environment)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=TIMEOUT_S)
            live = Kernel(manager, client, folder / "work")
            for cell in (REPORT_THREADS.format(path=str(live.stacks)), *cells):
                reply = live.run(cell)
                assert reply.status == "ok", reply.traceback
            yield live
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
            client.context.destroy(linger=0)
