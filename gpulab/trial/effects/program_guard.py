"""Keeps the code of a trial from starting programs and opening network connections."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

REFUSAL = "gpulab does not let"  # begins the message of each refusal


class RefusedChangeError(PermissionError):
    """The code tried to change something outside its objects."""


class ProgramGuard:
    """Refuses new programs and connections in the thread that runs the code, and in its threads."""

    _code = "a script"  # what is refused something

    def __init__(self) -> None:
        self.refused: list[str] = []  # what the code tried to do
        self._others = frozenset(threading.enumerate())  # threads from before the trial may do what they do

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Guard the code that runs inside this context."""
        self._others = frozenset(threading.enumerate()) - {threading.current_thread()}
        with contextlib.ExitStack() as stack:
            for owner, name, guarded in self._guarded_functions():
                stack.enter_context(patch.object(owner, name, guarded(getattr(owner, name))))
            yield

    def _guarded_functions(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        for name in ("system", "posix_spawn", "posix_spawnp", "execv", "execve"):
            if hasattr(os, name):
                yield os, name, self._guarded_program
        yield subprocess, "Popen", self._guarded_popen
        # Imported here if nothing else has: the code may do so later.
        socket = importlib.import_module("socket").socket
        for name in ("connect", "connect_ex"):
            yield socket, name, self._guarded_connect
        yield socket, "sendto", self._guarded_message

    def _guarded_program(self, original: Any) -> Any:
        def guarded(*arguments: Any, **options: Any) -> Any:
            self._refuse("start a program")
            return original(*arguments, **options)

        return guarded

    def _guarded_popen(self, original: Any) -> Any:
        guard = self

        class Popen(original):  # type: ignore[misc]  # a class, because code subclasses it and tests for it
            def __init__(self, *arguments: Any, **options: Any) -> None:
                guard._refuse("start a program")
                super().__init__(*arguments, **options)

        return Popen

    def _guarded_connect(self, original: Any) -> Any:
        def guarded(connection: Any, address: Any) -> Any:
            if connection.family.name != "AF_UNIX":  # workers of a DataLoader use local sockets
                self._refuse("open a network connection")
            return original(connection, address)

        return guarded

    def _guarded_message(self, original: Any) -> Any:
        def guarded(connection: Any, *arguments: Any) -> Any:
            if connection.family.name != "AF_UNIX":
                self._refuse("send data over the network")
            return original(connection, *arguments)

        return guarded

    def _refuse(self, action: str) -> None:
        if threading.current_thread() in self._others or _is_compiler():
            return
        if action not in self.refused:
            self.refused.append(action)
        raise RefusedChangeError(f"{REFUSAL} {self._code} {action} during a trial")


def _is_compiler() -> bool:
    """Whether a compiler of PyTorch asks."""
    frame = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(("torch._inductor", "torch._dynamo", "triton.")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
