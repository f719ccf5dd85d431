"""Ranges of the program's own that are entered in one window of a recording and left in a later one, many times."""

import contextlib
import sys

import torch
from torch.profiler import record_function

import gpulab


def program(loops):
    tensor, results = torch.ones(4), []
    for _ in range(loops):
        with contextlib.ExitStack() as ranges:
            for name in range(200):
                ranges.enter_context(record_function(f"range {name}"))
            with gpulab.profile("ranges", level=sys.argv[1]):
                with contextlib.ExitStack() as inner:
                    for name in range(200):
                        inner.enter_context(record_function(f"inner {name}"))
                    for _ in range(9):  # opening, warm-up, and a window that records
                        results += [tensor.add(number) for number in range(20)]
                        gpulab.step()
                    others = [bytes(200) for _ in range(5000)]
                tensor.add_(1)
            with torch.profiler.profile():
                tensor.add(1)
                ranges.close()
    assert all(other == bytes(200) for other in others)
    return len(results)


sys.stdout.write(f"{program(10)}\n")
