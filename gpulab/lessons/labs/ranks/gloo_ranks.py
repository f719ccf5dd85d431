"""Real ranks on this machine: processes that run a function of the notebook, joined by PyTorch's gloo back end."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.errors import GpulabError

TIMEOUT_S = 120  # for one call; a collective that a rank does not reach waits that long
_PRELOADED = (
    "torch.distributed.fsdp",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.nn.parallel",
    "torch.utils._python_dispatch",
)
_HELPERS = (("gpulab.lessons.labs.ranks.splits", ("sum_forward", "sum_backward")),)


@dataclass(frozen=True)
class SentFunction:
    """A function on its way to a rank: by its module, or by its source text if the notebook defines it."""

    name: str
    module: str = ""
    source: str = ""


class RankPool:
    """Processes that wait for functions to run as ranks 0, 1, ... of a process group.

    They start in the background, once; each call has a new process group. `close` ends them, and so does the end of
    this program. After a call that fails they start again.
    """

    def __init__(self, count: int = 2) -> None:
        """Start `count` processes. Raises GpulabError if PyTorch has no gloo here."""
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            raise GpulabError(
                "Ranks cannot be started here.",
                why="this PyTorch was built without gloo",
                fix="run this notebook on Linux or macOS",
            )
        self.count = count
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        self._start()

    def run(self, function: Callable[..., Any], *arguments: Any, ranks: int = 2) -> list[Any]:
        """Run a function on this number of ranks; return what each rank returns.

        A function of the notebook, also one among the arguments, is sent as its source text. On the rank it sees torch,
        nn, functional, dist, DistributedDataParallel, default_hooks, powerSGD_hook, nullcontext and time, and no other
        name of the notebook. Raises GpulabError with the error of the first rank that fails.
        """
        if not 1 <= ranks <= self.count:
            raise GpulabError(
                f"There are {self.count} ranks, not {ranks}.",
                why="a pool starts its processes once",
                fix="use fewer ranks, or a larger pool",
            )
        self._start()
        sent = [sent_function(each) if inspect.isfunction(each) else each for each in (function, *arguments)]
        with tempfile.TemporaryDirectory(prefix="gpulab-ranks-", ignore_cleanup_errors=True) as folder:
            for rank, pipe in enumerate(self._pipes[:ranks]):
                pipe.send_bytes(pickle.dumps((str(Path(folder) / "store"), rank, ranks, sent)))
            try:
                return self._answers(ranks)
            except BaseException:  # also an interrupted cell: no later call may get the answers to this one
                self.close()
                raise

    def close(self) -> None:
        """End the processes."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            pipe.close()
            process.terminate()
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        from torch import multiprocessing

        if self._processes and all(process.is_alive() for process in self._processes):
            return
        self.close()
        method = "forkserver" if sys.platform == "linux" else "spawn"  # then PyTorch is imported once for all ranks
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(list(_PRELOADED))
        for _ in range(self.count):
            pipe, far_end = context.Pipe()
            process = context.Process(target=_serve, args=(far_end,), daemon=True)
            process.start()
            far_end.close()
            self._processes.append(process)
            self._pipes.append(pipe)

    def _answers(self, ranks: int) -> list[Any]:
        from multiprocessing.connection import wait

        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes[:ranks])}
        values: dict[int, Any] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(
                    min(waiting.values()), f"no answer within {TIMEOUT_S} s: do all ranks reach each collective?"
                )
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    error, values[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    error = "its process ended"
                if error:
                    self._fail(rank, error)
        return [values[rank] for rank in range(ranks)]

    def _fail(self, rank: int, error: str) -> None:
        raise GpulabError(
            f"Rank {rank} failed.",
            why=error,
            fix="a function that runs on ranks sees torch, nn, functional, dist and its arguments only"
            if error.startswith("NameError")
            else "correct the function that runs on the ranks, and run the cell again; all ranks start anew",
        )


def sent_function(function: Callable[..., Any]) -> SentFunction:
    """Return a function in a form that another process can run. Raises GpulabError if its source is unknown."""
    module = function.__module__ or ""
    if module.startswith("gpulab."):
        return SentFunction(function.__name__, module=module)
    try:
        return SentFunction(function.__name__, source=textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError) as error:
        raise GpulabError(
            f"The source of {function.__name__} is not known.",
            why=str(error),
            fix="define it with def in a cell of the notebook",
        ) from error


def rebuilt_function(sent: SentFunction) -> Callable[..., Any]:
    """Return the function on the rank."""
    if sent.module:
        imported: Callable[..., Any] = getattr(importlib.import_module(sent.module), sent.name)
        return imported
    names = _names()
    exec(compile(sent.source, f"<{sent.name}>", "exec"), names)  # the learner's own code, in a process of its own
    defined: Callable[..., Any] = names[sent.name]
    return defined


def _names() -> dict[str, Any]:
    """Return the names that a function of the notebook sees on a rank."""
    from contextlib import nullcontext

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    names = {
        "torch": torch,
        "dist": dist,
        "nn": nn,
        "functional": functional,
        "DistributedDataParallel": DistributedDataParallel,
        "default_hooks": default_hooks,
        "powerSGD_hook": powerSGD_hook,
        "nullcontext": nullcontext,
        "time": time,
    }
    for module, functions in _HELPERS:
        names |= {name: getattr(importlib.import_module(module), name) for name in functions}
    return names


def _serve(pipe: Any) -> None:
    """Run the functions that arrive, until the other end is closed."""
    import logging
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        pipe.send_bytes(pickle.dumps(_answer(*pickle.loads(message))))


def _answer(store: str, rank: int, ranks: int, sent: Sequence[Any]) -> tuple[str, Any]:
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    try:
        function, *arguments = (rebuilt_function(each) if isinstance(each, SentFunction) else each for each in sent)
        torch.manual_seed(0)
        dist.init_process_group(
            "gloo",
            store=FileStore(store, ranks),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        value = function(*arguments)
        dist.barrier()  # nobody leaves while another rank still exchanges data
        dist.destroy_process_group()
        return "", value
    except Exception as error:  # the learner's code may raise anything
        # The process group stays, so that the other ranks wait instead of failing, too: the pool ends all of them.
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} (line {last.lineno} of {last.name})", None
