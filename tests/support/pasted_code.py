"""A process that pastes code into a notebook's namespace as it may look, on the CPU; each time in a fork of its own.

    with Notebook() as notebook:
        assert notebook.paste("model = torch.compile(model)", names={"model": "model"}) is None

The namespace holds a real model, optimizer, dataset and loader under the names the user gave them. What only a GPU or
several processes can do is stood in for: a GPU's tensors are CPU tensors, and torch.compile, DistributedDataParallel
and their like check their arguments against the real signature and do nothing. What is left behind stays in the fork.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

LONGEST_S = 60


class Notebook:
    """The process, seen from the tests."""

    def __enter__(self):
        here = Path(__file__)
        environ = {**os.environ, "PYTHONPATH": str(here.parents[2])}
        self._folder = tempfile.TemporaryDirectory()
        self._replies = {}
        self._process = subprocess.Popen(
            [sys.executable, str(here)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder.name,
            env=environ,
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(LONGEST_S)
        self._process.stdout.close()
        self._folder.cleanup()

    def paste(self, code, *, names, functions=(), lists=()):
        """Return the traceback, or None. `names`: the user's names of model, optimizer, loader and dataset."""
        names_in_scope = {"names": dict(names), "functions": sorted(functions), "lists": sorted(lists)}
        request = json.dumps({"code": code, **names_in_scope})
        if request not in self._replies:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            self._replies[request] = json.loads(self._process.stdout.readline())
        return self._replies[request]


# Inside the process.


def serve():
    """Answer each request in a fork."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what pasted code prints is no answer
    import torch
    import torch.distributed.algorithms.ddp_comm_hooks.default_hooks
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.utils.checkpoint

    # A fork of a process that has computed on several threads would wait for threads it does not have.
    torch.set_num_threads(1)
    # What is imported late is imported once.
    run({"code": "", "names": {}, "functions": (), "lists": ()}, standing_in=False)
    for line in sys.stdin:
        answers.write(json.dumps(forked(json.loads(line))) + "\n")
        answers.flush()


def forked(request):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        error = None
        try:
            run(request)
        except BaseException:
            error = traceback.format_exc(limit=-3)
        with os.fdopen(writes, "w") as pipe:
            json.dump(error, pipe)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "the process died"


def run(request, standing_in=True):
    import signal

    signal.alarm(LONGEST_S if standing_in else 0)
    warnings.simplefilter("ignore")  # of a GPU that is not there
    os.environ["LOCAL_RANK"] = "0"
    with stand_ins() if standing_in else contextlib.nullcontext():
        space = namespace(request["names"], request["functions"])
        space |= {name: [] for name in request["lists"]}
        exec(compile(request["code"], "<fix>", "exec"), space)


def namespace(names, functions):
    """What a notebook that trains something holds."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader, Dataset, TensorDataset

    dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    objects = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "dataset": dataset,
        "loader": DataLoader(dataset, batch_size=16),
    }
    batch, labels = next(iter(objects["loader"]))
    space = {
        **{"torch": torch, "nn": nn, "F": functional, "np": np, "gc": gc, "os": os},
        **{"DataLoader": DataLoader, "Dataset": Dataset},
        **{"get_ipython": shell},
        **{"device": torch.device("cpu"), "step": 50, "epoch": 1, "__name__": "__main__"},
        **{"batch": batch, "x": batch, "inputs": batch, "images": batch, "labels": labels, "y": labels},
        **{"target": labels, "targets": labels, "loss_fn": nn.CrossEntropyLoss(), "criterion": nn.CrossEntropyLoss()},
        **dict.fromkeys(functions, lambda *args, **_: args[0] if args else None),
    }
    space["outputs"] = model(batch)
    space["loss"] = space["loss_fn"](space["outputs"], labels)
    space["losses"] = [space["loss"]]
    for role, name in names.items():
        put(space, name, objects.get(role.partition(" ")[0]))  # "loader 1": another one
    return space


def put(space, name, value):
    """Set a variable, or an attribute of one: `self.model`."""
    first, _, rest = name.partition(".")
    if not rest:
        space[first] = value
    elif first not in space:
        space[first] = type("User", (), {})()
        setattr(space[first], rest, value)
    elif not hasattr(space[first], rest):
        setattr(space[first], rest, value)


@contextlib.contextmanager
def stand_ins():
    """What a GPU and other processes would do, done on the CPU or only checked."""
    import torch
    from torch import distributed
    from torch.distributed import checkpoint
    from torch.nn import parallel
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        """Whatever asks for a GPU gets the CPU."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", "")
            if name in ("cuda", "pin_memory") and args and isinstance(args[0], torch.Tensor):
                return args[0]
            if name in ("to", "_parse_to"):
                args = [torch.device("cpu") if type(value) is int else value for value in args]
            args = [to_cpu(value) for value in args]
            kwargs = {key: to_cpu(value) for key, value in (kwargs or {}).items() if key != "pin_memory"}
            return function(*args, **kwargs)

    def to_cpu(value):
        on_gpu = (isinstance(value, str) and value.startswith("cuda")) or (
            isinstance(value, torch.device) and value.type == "cuda"
        )
        return torch.device("cpu") if on_gpu or type(value) is Gpu else value

    class Gpu(int):
        """The index that current_device returns; it represents the CPU."""

    class Wrapped(torch.nn.Module):
        """A model wrapper."""

        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

        def no_sync(self):
            return contextlib.nullcontext()

        def register_comm_hook(self, state, hook):
            signature_of(distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)
            assert callable(hook)

    def signature_of(function):
        return inspect.signature(function)

    def checked(function, give):
        """Return a stand-in that raises TypeError for arguments that the real function does not accept."""
        signature = signature_of(function)

        def stand_in(*args, **kwargs):
            signature.bind(*args, **kwargs)
            return give(*args, **kwargs)

        return stand_in

    class Stream:
        def __init__(self, device=None, priority=0):
            self.device = device

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def wait_stream(self, stream):
            assert isinstance(stream, Stream)

        def wait_event(self, event):
            assert event is not None

        def synchronize(self):
            return None

        def record_event(self, event=None):
            return event or Event()

        def query(self):
            return True

    class Event:
        def __init__(self, enable_timing=False, blocking=False, interprocess=False):
            self.timed = enable_timing

        def record(self, stream=None):
            return None

        def wait(self, stream=None):
            return None

        def synchronize(self):
            return None

        def query(self):
            return True

        def elapsed_time(self, other):
            return 1.0

    cuda, real = torch.cuda, torch.nn.parallel.DistributedDataParallel
    replaced = {
        (cuda, "Stream"): Stream,
        (cuda, "Event"): Event,
        (cuda, "stream"): lambda stream: stream,
        (cuda, "current_stream"): lambda device=None: Stream(),
        (cuda, "default_stream"): lambda device=None: Stream(),
        (cuda, "current_device"): lambda: Gpu(0),
        (cuda, "set_device"): checked(cuda.set_device, lambda device: None),
        (cuda, "device_count"): lambda: 1,
        (cuda, "synchronize"): lambda device=None: None,
        (cuda, "set_sync_debug_mode"): checked(cuda.set_sync_debug_mode, lambda mode: None),
        (cuda, "make_graphed_callables"): checked(cuda.make_graphed_callables, lambda function, *_, **__: function),
        (cuda, "set_per_process_memory_fraction"): checked(cuda.set_per_process_memory_fraction, lambda *_, **__: None),
        (cuda, "memory_allocated"): lambda device=None: 0,
        (cuda, "max_memory_allocated"): lambda device=None: 0,
        (cuda, "memory_summary"): lambda device=None, abbreviated=False: "",
        (cuda.memory, "_record_memory_history"): lambda *_, **__: None,
        (cuda.memory, "_dump_snapshot"): lambda filename="dump_snapshot.pickle": None,
        (torch.Tensor, "record_stream"): lambda tensor, stream: stream.device,
        (torch, "compile"): checked(torch.compile, lambda model=None, **_: model or (lambda function: function)),
        (distributed, "init_process_group"): checked(distributed.init_process_group, lambda *_, **__: None),
        (subprocess, "run"): checked(subprocess.run, lambda *_, **__: None),
        (distributed, "get_world_size"): lambda group=None: 1,
        (distributed, "get_rank"): lambda group=None: 0,
        (distributed, "barrier"): lambda *_, **__: None,
        (parallel, "DistributedDataParallel"): checked(real, lambda module, *_, **__: Wrapped(module)),
        (checkpoint, "async_save"): checked(checkpoint.async_save, lambda *_, **__: Done()),
    }
    import torch.distributed.algorithms.ddp_comm_hooks.default_hooks

    for (place, name), value in replaced.items():
        setattr(place, name, value)
    with OnCpu():
        yield


def shell():
    """What get_ipython gives: a real one that remembers nothing on disk."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    os.environ["IPYTHONDIR"] = str(Path.cwd())
    return InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))


class Done:
    """A future that has come."""

    def result(self, timeout=None):
        return None

    def done(self):
        return True


if __name__ == "__main__":
    serve()
