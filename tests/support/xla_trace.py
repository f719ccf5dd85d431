"""Write traces like those of jax.profiler.trace on a GPU: HOST.trace.json.gz with lanes for streams, modules, steps."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST, GPU = 701, 1
COMPUTE, COPIES = "Stream #13(Compute)", "Stream #14(MemcpyH2D)"
MODULES, OPS, STEPS, PYTHON = "XLA Modules", "XLA Ops", "Steps", "python"


@dataclass
class XlaTrace:
    """A trace in the making: events by lane; times are in us, as in the file."""

    events: list[dict[str, Any]] = field(default_factory=list)
    lanes: dict[tuple[int, str], int] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=lambda: {HOST: "/host:CPU", GPU: "/device:GPU:0"})

    def add(self, lane: str, name: str, start: float, dur: float, *, process: int = GPU, **args: Any) -> None:
        """Add an event."""
        tid = self.lanes.setdefault((process, lane), len(self.lanes) + 1)
        event = {"ph": "X", "pid": process, "tid": tid, "ts": start, "dur": dur, "name": name}
        self.events.append({**event, "args": args} if args else event)

    def kernel(self, name: str, start: float, dur: float, *, lane: str = COMPUTE, **args: Any) -> None:
        """Add a kernel and the operation of XLA that it belongs to."""
        details = "regs:32 static_shared:1024 dynamic_shared:0 grid:108,2,1 block:256,1,1 occ_pct:100"
        self.add(lane, name, start, dur, kernel_details=details, hlo_op="fusion.1", hlo_module="jit_step", **args)
        self.add(OPS, "fusion.1", start, dur, hlo_module="jit_step")

    def text(self) -> bytes:
        """The JSON of the trace, as XLA writes it: names first, an empty event last."""
        names = [
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
            for pid, name in self.processes.items()
        ]
        names += [
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": lane}}
            for (pid, lane), tid in self.lanes.items()
        ]
        document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
        events = [*names, *self.events, {}]
        return json.dumps({**document, "traceEvents": events}, separators=(",", ":")).encode()

    def write(self, folder: Path) -> Path:
        """Write it where jax.profiler.trace does."""
        path = folder / "plugins" / "profile" / "2025_06_01_12_00_00" / "myhost.trace.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(self.text()))
        return path


def training_trace(steps: int = 8, *, with_steps: bool = True) -> XlaTrace:
    """Steps of 1000 us: 100 us idle before the copy, a copy of 100 us, 700 us of kernels, 100 us idle.

    The host runs ahead: it calls all steps within the first 80 us.
    """
    trace = XlaTrace()
    for step in range(steps):
        start = 1000.0 * step
        trace.add(PYTHON, "train", 10.0 * step, 9.0, process=HOST, step_num=str(step))
        trace.add(PYTHON, "$train.py:12 train_step", 10.0 * step, 8.5, process=HOST)
        trace.add(PYTHON, "cuLaunchKernel", 10.0 * step + 1, 2.0, process=HOST, correlation_id=str(step + 1))
        trace.add(PYTHON, "PjitFunction(step)", 10.0 * step + 0.5, 8.0, process=HOST)
        copy = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
        trace.add(COPIES, "MemcpyH2D", start + 100, 100.0, memcpy_details=copy, correlation_id=str(100 + step))
        trace.kernel("gemm_fusion_dot_1", start + 200, 400.0, correlation_id=str(step + 1))
        trace.kernel("loop_add_fusion", start + 600, 300.0)
        trace.add(MODULES, "jit_step(1234)", start + 100, 800.0)
        if with_steps:
            trace.add(STEPS, str(step), start + 100, 800.0)
    return trace
