"""Stands between PyTorch's profiler and its readers: exported traces of CPU operators get the events of a GPU.

Each of the operators below launches a kernel, as on a GPU: a runtime call within the operator, and a kernel in a stream
that starts after the call and after the kernel before. Formats and fields are those that Kineto writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAUNCHING = {
    "aten::addmm": "ampere_sgemm_128x64_tn",
    "aten::mm": "ampere_sgemm_128x64_nn",
    "aten::clamp_min": "void at::native::vectorized_elementwise_kernel<4, at::native::clamp_min_scalar>",
    "aten::threshold_backward": "void at::native::vectorized_elementwise_kernel<4, at::native::threshold>",
    "aten::add_": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
}
DEVICE = {
    "id": 0,
    "name": "NVIDIA H200",
    "totalGlobalMem": 150_000_000_000,
    "computeMajor": 9,
    "computeMinor": 0,
    "warpSize": 32,
    "numSms": 132,
}
_DELAY_US = 4.0  # from the end of a launch to the start of its kernel


class GpuStream:
    """One stream of one GPU. `kernel_us`: how long each kernel takes."""

    def __init__(self, kernel_us: float) -> None:
        self.kernel_us = kernel_us
        self.launched = 0  # kernels in all windows
        self._free_us = 0.0  # when the latest kernel ended

    def exported_by(self, export: Callable[..., None]) -> Callable[..., None]:
        """Return `export_chrome_trace` of a profiler that also saw this GPU."""

        def export_with_gpu(profiler: Any, path: str) -> None:
            export(profiler, path)
            trace = json.loads(Path(path).read_text(encoding="utf-8"))
            operators = [event for event in trace["traceEvents"] if event.get("name") in LAUNCHING and "dur" in event]
            for operator in sorted(operators, key=lambda event: float(event["ts"])):
                trace["traceEvents"] += self._launch(operator)
            trace["deviceProperties"] = [DEVICE]
            Path(path).write_text(json.dumps(trace), encoding="utf-8")

        return export_with_gpu

    def _launch(self, operator: dict[str, Any]) -> list[dict[str, Any]]:
        self.launched += 1
        start_us, dur_us = float(operator["ts"]), float(operator["dur"])
        call_us = 0.2 * dur_us
        begin_us = max(self._free_us, start_us + 0.7 * dur_us + _DELAY_US)
        self._free_us = begin_us + self.kernel_us
        ids = {"correlation": self.launched, "External id": operator["args"].get("External id", 0)}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": operator["pid"], "tid": operator["tid"]}
        kernel = {"cat": "kernel", "name": LAUNCHING[operator["name"]], "pid": 0, "tid": 7}
        where = {"device": 0, "context": 1, "stream": 7, "grid": [264, 1, 1], "block": [256, 1, 1]}
        return [
            {"ph": "X", **call, "ts": start_us + 0.5 * dur_us, "dur": call_us, "args": {"cbid": 211, **ids}},
            {"ph": "X", **kernel, "ts": begin_us, "dur": self.kernel_us, "args": {**ids, **where}},
        ]
