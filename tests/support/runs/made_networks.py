"""Training steps on a made GPU: kernels with the names that libraries give them, launched one after the other.

A host that calls, a GPU that works, both simulated as in `simulated`, with what rewrites look at beside: names,
operators, sizes, the optimizer's step, threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import build_replay_model, predict
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, on_gpu

SGEMM = "volta_sgemm_128x64_nn"
CONV = "volta_scudnn_128x64_relu_interior_nn_v1"
HALF = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
TF32 = "ampere_tf32_s1688gemm_128x128_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::clamp_min_scalar_kernel_impl<float>>"
BATCH_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>"
LAYER_NORM = "void at::native::vectorized_layer_norm_kernel<float, float>"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>"
TRANSPOSE = "void nchwToNhwcKernel<float, float, float, false, true>"


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or wait and its call, in microseconds."""

    name: str
    us: float
    host_us: float = 8.0  # dispatch before the call
    python: bool = False  # the host runs user Python instead of dispatch
    op: str | None = None
    shapes: list | None = None
    grid: int = -1
    updates: bool = False  # inside the optimizer step
    waits: bool = False  # the host waits for all work instead of launching a kernel
    kind: EventKind = EventKind.KERNEL


def network(kernels, *, count=6, gpu="V100", queue=1000, **more):
    """Return the run that a profiler would record of a loop over these kernels."""
    events, ends = [], []
    now, number = 0.0, 0
    for step in range(count):
        begin = now
        optimizer_start = None
        for kernel in kernels:
            if kernel.updates and optimizer_start is None:
                optimizer_start = now
            now, number = _run_kernel(kernel, now, number, events, ends, queue)
        if optimizer_start is not None:
            events.append(
                event(
                    EventKind.ANNOTATION,
                    "Optimizer.step#Adam.step",
                    optimizer_start / 1e3,
                    (now - optimizer_start) / 1e3,
                )
            )
        events.append(event(EventKind.STEP, f"ProfilerStep#{step}", begin / 1e3, (now - begin) / 1e3))
    return on_gpu(events, gpu, **more)


def _run_kernel(kernel, now, number, events, ends, queue):
    at, last = now + kernel.host_us, ends[-1] if ends else 0.0
    if kernel.waits:
        call_end = max(at + 3.0, last + 3.0)
        events.append(event(EventKind.SYNC, "cudaStreamSynchronize", at / 1e3, (call_end - at) / 1e3))
        return call_end, number
    number += 1
    call_end = at + 5.0
    if len(ends) >= queue:
        call_end = max(call_end, ends[-queue] + 2.0)
    start = max(at + 7.0, last + 1.0)
    ends.append(start + kernel.us)
    if kernel.kind is not EventKind.KERNEL:
        call = event(EventKind.COPY_CALL, "cudaMemcpyAsync", at / 1e3, 0.004, correlation=number)
        events.extend([call, event(kernel.kind, kernel.name, start / 1e3, kernel.us / 1e3, correlation=number)])
        return call_end, number
    dtypes = ["float"] * len(kernel.shapes or [])
    sizes = {"shapes": json.dumps(kernel.shapes), "dtypes": json.dumps(dtypes)} if kernel.shapes else None
    op = event(EventKind.OP, kernel.op or "aten::op", (at - 0.1) / 1e3, (call_end - at + 0.2) / 1e3)
    call = event(EventKind.LAUNCH, "cudaLaunchKernel", at / 1e3, (call_end - at) / 1e3, correlation=number)
    work = event(EventKind.KERNEL, kernel.name, start / 1e3, kernel.us / 1e3, correlation=number)
    op_events = [{**op, "sizes": sizes}, call, {**work, "grid": kernel.grid}]
    if not kernel.python:  # the host was in an operator
        events.append(event(EventKind.OP, "aten::dispatched", (now + 0.1) / 1e3, max(0.0, kernel.host_us - 0.3) / 1e3))
    events.extend(op_events)
    return call_end, number


def replay_scene(run):
    """Return the replay scene of a run."""
    run_steps = find_steps(run)
    return build_replay_model(run, run_steps, build_ledger(run, run_steps))


def predict_rewrites(run, rewrites, samples=40):
    """Predict these rewrites, given as a user types them."""
    return predict(replay_scene(run), parse_changes(rewrites), samples=samples)


def in_predicted_range(prediction, step_ns):
    """Whether a measured step time is in the predicted range."""
    return prediction.best_ns <= step_ns <= prediction.worst_ns
