"""Tables of torch.profiler to read: of a loop that runs here, and of a recording, by PyTorch's own table code."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.analysis.steps.detection import find_steps
from gpulab.lessons.labs.drills import drills
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, EventKind

if TYPE_CHECKING:
    from torch import nn

LAYERS, WIDTH, ROWS = 8, 256, 128
COLUMNS = ("Name", "CPU total", "Self CUDA", "Self CUDA %", "# of Calls")


def stacked_model() -> nn.Module:
    """Return a model of eight linear layers, each followed by a GELU."""
    from torch import nn

    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))


def colleague_loop(model: nn.Module, steps: int = 3) -> None:
    """Train the model on the CPU, as a colleague does. The profiler's table shows what is special about it."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from gpulab.workloads.training import torch_threads

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = torch.randn(ROWS, WIDTH)
    with torch_threads(1):
        for _ in range(steps):
            optimizer.zero_grad()
            values = samples
            for block in model.children():
                values = checkpoint(block, values, use_reentrant=False)
            values.square().mean().backward()
            optimizer.step()


def recorded_table(name: str, sort_by: str = "self_cuda_time_total", rows: int = 8) -> str:
    """Return PyTorch's table of the operators and kernels of one step of a recording, by its dataset.

    It is what `key_averages().table(sort_by=...)` prints, computed from the events of the recording by the same code of
    PyTorch, with fewer columns.
    """
    order = sort_by.replace("cuda", "device")  # PyTorch's name for it since 2.3
    return selected_columns(_key_averages(name).table(sort_by=order, row_limit=rows, max_name_column_width=44))


def cpu_total_ms(name: str, operator: str) -> float:
    """Return the CPU total of the operators whose name begins like this, in one step of a recording, in ms."""
    return float(sum(row.cpu_time_total for row in _key_averages(name) if row.key.startswith(operator))) / 1e3


def calls_of(name: str, operator: str) -> int:
    """Return how often an operator runs in one step of a recording."""
    return sum(row.count for row in _key_averages(name) if row.key == operator)


def step_times_ms(name: str) -> tuple[float, float]:
    """Return the time of one step of a recording, and the time of its kernels, in ms."""
    run = drills.named_run(name)
    start_ns, end_ns = one_step(run)
    kernels = run.event_rows.of_kind(*DEVICE_KINDS)
    inside = (kernels["start_ns"] >= start_ns) & (kernels["start_ns"] < end_ns)
    return (end_ns - start_ns) / 1e6, float(kernels["dur_ns"][inside].sum()) / 1e6


def one_step(run: Run) -> tuple[int, int]:
    """Return start and end of a typical complete step, in ns: the one of median duration."""
    steps = find_steps(run)
    complete = np.flatnonzero(steps.interior if steps.interior.any() else steps.recorded)
    durations = (steps.end_ns - steps.start_ns)[complete]
    chosen = complete[np.argsort(durations)[len(durations) // 2]]
    return int(steps.start_ns[chosen]), int(steps.end_ns[chosen])


def selected_columns(table: str, columns: tuple[str, ...] = COLUMNS) -> str:
    """Keep some columns of a profiler table: it is wider than a notebook."""
    lines = [line for line in table.split("\n") if line.strip()]
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines if not line.startswith(("---", "Self "))]
    positions = [cells[0].index(title) for title in columns]
    width = max(len(row[0]) for row in cells)
    rows = [row[0].ljust(width) + "".join(row[index].rjust(14) for index in positions[1:]) for row in cells]
    totals = [line for line in lines if line.startswith("Self ")]
    return "\n".join((rows[0], "-" * len(rows[0]), *rows[1:], "", *totals))


@cache
def _key_averages(name: str) -> Any:
    from torch._C._autograd import DeviceType
    from torch.autograd.profiler_util import EventList, FunctionEvent

    run = drills.named_run(name)
    start_ns, end_ns = one_step(run)
    rows = run.event_rows.of_kind(EventKind.OP, EventKind.ANNOTATION, *RUNTIME_KINDS, *DEVICE_KINDS)
    rows = rows.select(np.flatnonzero((rows["start_ns"] >= start_ns) & (rows["start_ns"] < end_ns)))
    numbers = (rows[column].tolist() for column in ("kind", "start_ns", "dur_ns", "thread", "correlation"))
    host: list[tuple[Any, int]] = []
    device: list[tuple[Any, int]] = []
    for label, kind, begin_ns, duration_ns, thread, correlation in zip(
        rows.text("name").to_list(), *numbers, strict=True
    ):
        on_device = kind in DEVICE_KINDS
        event = FunctionEvent(
            id=len(host) + len(device),
            name=label or "",
            thread=thread,
            start_us=begin_ns / 1e3,
            end_us=(begin_ns + duration_ns) / 1e3,
            stack=[],
            device_type=DeviceType.CUDA if on_device else DeviceType.CPU,
            use_device="cuda",
        )
        (device if on_device else host).append((event, correlation))
    events = EventList([event for event, _ in (*host, *device)], use_device="cuda")
    launches = {correlation: event for event, correlation in host if correlation > 0}
    events._build_tree()
    for kernel, correlation in device:
        launch = launches.get(correlation)
        operator = launch.cpu_parent if launch is not None and launch.cpu_parent is not None else launch
        if operator is not None:
            operator.append_kernel(kernel.name, 0, kernel.time_range.elapsed_us())
    return events.key_averages()
