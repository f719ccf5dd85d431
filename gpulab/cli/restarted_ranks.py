"""Record the processes in which a program starts itself again, as further ranks of its job.

Lightning's strategies for several devices do so, if no launcher has started the ranks: they run `python train.py` once
more for each of them, with LOCAL_RANK in its environment. Each of these processes gets the command
`python -m gpulab run ... train.py` instead, with the folder of this recording.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import wraps
from itertools import takewhile
from pathlib import Path
from typing import Any

from gpulab.capture.job_rank import OWN_VARIABLES, JobRank
from gpulab.cli.program import Program

_SIMPLE_FLAG = re.compile(r"-[a-bd-ln-zA-VYZ]+$")  # of python, without a value: not -c, -m, -W, -X


class RestartedRanks:
    """Watches subprocess.Popen while a program runs."""

    def __init__(self, program: Program, options: Sequence[str]) -> None:
        self._program, self._options = program, tuple(options)
        self._script = Path(program.name).resolve()  # the program may change the current folder
        self._original: Any = None
        self._replacement: Any = None
        self._pid = os.getpid()
        self.world_size: int | None = None  # of the job, once a rank was started

    def install(self) -> None:
        """Replace the constructor of Popen; does nothing if its processes could not import gpulab."""
        try:
            importlib.metadata.version("gpulab")
        except importlib.metadata.PackageNotFoundError:
            return
        original = subprocess.Popen.__init__

        @wraps(original)
        def with_recorded_ranks(popen: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = self._recorded(args, kwargs)
            original(popen, *args, **kwargs)

        self._original, self._replacement = original, with_recorded_ranks
        subprocess.Popen.__init__ = with_recorded_ranks  # type: ignore[method-assign,assignment]

    def remove(self) -> None:
        """Restore the constructor, unless the program has replaced it in between."""
        if self._original is not None and subprocess.Popen.__init__ is self._replacement:
            subprocess.Popen.__init__ = self._original  # type: ignore[method-assign]
        self._original = None

    def _recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of Popen, with another command if they start this program again as a rank."""
        # A command by position, and only these settings by name: everything else is left alone.
        if len(args) != 1 or kwargs.get("shell") or kwargs.get("executable") or os.getpid() != self._pid:
            return args, kwargs
        environ = os.environ if kwargs.get("env") is None else kwargs["env"]
        if type(environ) not in (dict, type(os.environ)) or not all(type(name) is str for name in environ):
            return args, kwargs  # os.environb, for example
        job = _restarted_rank(environ)
        command = self._command(args[0], kwargs.get("cwd")) if job is not None else None
        if job is None or command is None:
            return args, kwargs
        self.world_size = job.world_size
        rank_variables = dict(zip(OWN_VARIABLES, map(str, job), strict=True))
        return (command,), {**kwargs, "env": {**environ, **rank_variables}}

    def _command(self, command: Any, cwd: Any) -> list[str] | None:
        """Return the command that also records the process; None if it runs something else."""
        if not isinstance(command, (list, tuple)) or not all(isinstance(argument, str) for argument in command):
            return None
        if len(command) < 2 or command[0] != sys.executable:
            return None
        flags = list(takewhile(_SIMPLE_FLAG.match, command[1:]))
        rest = command[1 + len(flags) :]
        if not self._is_this_program(rest, cwd):
            return None
        return [sys.executable, *flags, "-m", "gpulab", "run", *self._options, *rest]

    def _is_this_program(self, arguments: Sequence[str], cwd: Any) -> bool:
        if self._program.is_module:
            name = self._program.name
            return len(arguments) >= 2 and arguments[0] == "-m" and arguments[1] in (name, f"{name}.__main__")
        return bool(arguments) and Path(cwd or os.curdir, arguments[0]).resolve() == self._script


def _restarted_rank(environ: Mapping[str, str]) -> JobRank | None:
    """Return the rank of a process that has this environment; None if it is none, or of another machine than the first.

    On other machines, the number of a rank does not follow from the environment.
    """
    local, size = environ.get("LOCAL_RANK", ""), environ.get("WORLD_SIZE", "")
    if not (local.isdigit() and size.isdigit()) or environ.get("NODE_RANK", "0") != "0" or "RANK" in environ:
        return None
    return JobRank(int(local), int(size)) if 0 < int(local) < int(size) else None
