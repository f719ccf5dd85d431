"""JPEG files decoded by threads and by processes, and how often a function lets other threads have the GIL."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulab.lessons.labs.data.loading import burn_cpu
from gpulab.lessons.labs.data.page_photos import decode_image

if TYPE_CHECKING:
    from torch import Tensor

NEVER_S = 60.0  # switch interval: longer than anything that is counted here


class DecodedFiles:
    """A dataset of decoded and resized JPEG files; `python_s`: CPU time of pure Python code per file, besides."""

    def __init__(self, files: Sequence[Path], python_s: float = 0.0) -> None:
        self.files, self.python_s = tuple(files), python_s
        self.threads: set[int] = set()  # that loaded a file in this process

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        import torch

        self.threads.add(threading.get_ident())
        pixels = torch.tensor(decode_image(self.files[index]))
        burn_cpu(self.python_s)
        return pixels


def files_per_s(load_all: Callable[[], Any], count: int, repeats: int = 2) -> float:
    """Time a function that loads `count` files; return files per second, of the fastest repeat."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        load_all()
        seconds.append(time.perf_counter() - start)
    return count / min(seconds)


def loader_files_per_s(loader: Any) -> float:
    """Time an epoch of a DataLoader; the clock starts when its workers have started."""
    batches = iter(loader)
    start = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    return count / (time.perf_counter() - start)


def count_gil_turns(function: Callable[[], Any]) -> int:
    """Count how often another thread gets the global interpreter lock while a function runs.

    Python would take the lock from the function every 5 ms. This is suspended here, so that only a function that
    releases the lock itself, as C code may do while it computes, lets the other thread run.
    """
    turns, finished = 0, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not finished.is_set():
            turns += 1
            time.sleep(0)  # releases the lock, and asks for it again

    thread = threading.Thread(target=take_turns)
    with _without_switching():
        thread.start()
        first = turns
        function()
        last = turns
        finished.set()
    thread.join()
    return last - first


@contextlib.contextmanager
def _without_switching() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(NEVER_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
