"""Fused or foreach optimizer: update all parameters at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily
from gpulab.analysis.kernels.optimizers import optimizer_steps
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.engine.graph_work import (
    DISPATCH_PARTS,
    call_roles,
    classified_ops,
    gpu_spec_of,
    optimizer_spans,
)
from gpulab.replay.rewrites.kernels.compile_on_cpu import fuse_optimizer_on_cpu, without_optimizer_on_cpu

FUSED, FOREACH = "fused", "foreach"
FUSED_AVAILABLE = ("Adam", "AdamW", "SGD", "Adagrad")


class UpdateCost(NamedTuple):
    """How an optimizer iterates over its parameters: bytes per parameter, operations, tensors per launch."""

    bytes: float  # per float32 parameter
    operations: float
    tensors: float  # maximum per kernel
    host_ns: float = 0.0  # per tensor, without the launches


# By optimizer and implementation: Adam reads parameter, gradient and two moments, and writes three of them; SGD without
# momentum reads two and writes one. A loop or foreach makes one pass per operation.
# Launches of foreach and fused: as many tensors as fit a kernel's arguments. A ResNet-50 with SGD, momentum and weight
# decay had 9 per step for 161 tensors, on V100.
# Host time per tensor: its Python, measured without the operators on the default CPU of virtual hosts (PyTorch 2.13,
# 200 to 1000 tensors: Adam 3.3 to 4.9 us, fused 1.4 to 2.0; SGD 0.5, with momentum 1.1; Adagrad 2.3 to 3.5, fused 1.3
# to 1.6; RMSprop 1.7 to 2.6; NAdam 5.4 to 8.0), plus 0.25 us per operator that takes the tensor in its list. Most of
# the time of a foreach Adam is reading each tensor's step count in Python.
_ADAM = {"loop": UpdateCost(100, 12, 1), FOREACH: UpdateCost(84, 12, 60, 7_500), FUSED: UpdateCost(28, 1, 30, 2_000)}
_SGD = {"loop": UpdateCost(28, 2, 1), FOREACH: UpdateCost(24, 2, 60, 1_800), FUSED: UpdateCost(20, 1, 40, 1_200)}
_ADAGRAD = {"loop": UpdateCost(28, 2, 1), FOREACH: UpdateCost(24, 2, 60, 3_500), FUSED: UpdateCost(20, 1, 40, 1_700)}
_OTHER = {"loop": UpdateCost(60, 7, 1), FOREACH: UpdateCost(52, 7, 60, 5_000), FUSED: UpdateCost(24, 1, 30, 1_700)}
_METHODS = {"Adam": _ADAM, "AdamW": _ADAM, "SGD": _SGD, "Adagrad": _ADAGRAD}

MAX_ELEMENTS = 21_000_000  # maximum number of parameters per launch: 320 blocks of 65536
RATE_FRAC = (0.85, 0.6)  # of peak memory bandwidth, reached by such kernels
RATIO_SPREAD = (0.7, 1.4)  # uncertainty of the ratio of bytes, if the time is derived from the recorded kernels
KERNEL_OVERHEAD_NS = 1_500.0  # fixed time per kernel, however few elements it has
KERNEL_NS = (2_000.0, 4_000.0)
HOST_NS = (50_000.0, 150_000.0)  # of any `Optimizer.step`: hooks, groups, checks
HOST_TENSOR = (0.8, 3.0)  # factor on `host_ns`, the fastest of many consecutive steps; in a loop caches are colder
HOST_LAUNCH_NS = (6_000.0, 20_000.0)


def fuse_optimizer(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`fused=True` or `foreach=True`: one kernel for many parameters instead of several for each.

    Models: inside `Optimizer.step`, as many kernels remain as are needed for all tensors. Their time is the bytes per
    parameter (28 for a fused Adam, 84 for foreach) over 60 to 85 % of peak memory bandwidth. If the number of
    parameters was not recorded, it is the time of the recorded kernels times the ratio of those bytes. The host costs
    50 to 150 us, 6 to 20 us per launch, and per tensor 0.8 to 3 times the value measured on one CPU: 7.5 us for foreach
    Adam, 2 for fused, 1 to 2 for SGD; never more than now. On a CPU, one operator per group of parameters remains.

    Priced from: the algorithms' reads and writes; launches counted in a recorded ResNet-50; measured Python time.

    Cannot know: parameters of mixed types or devices, which need more launches; custom optimizers.
    """
    if not graph.on_gpu:
        return fuse_optimizer_on_cpu(graph, draw)
    update = optimizer_work(graph)
    target, current = update.update_cost(str(value)), update.update_cost(update.implementation)
    launches = update.launches(target)
    device_ns = _device_ns(graph, update, target, current, launches, draw)
    host_ns = (
        draw.between("optimizer_host", *HOST_NS)
        + update.tensors * target.host_ns * draw.ratio("optimizer_tensor", *HOST_TENSOR)
        + launches * draw.between("optimizer_launch", *HOST_LAUNCH_NS)
    )
    return _scale_optimizer(graph, update, host_ns, device_ns, launches)


def optimizer_best_case(graph: Graph, value: Value) -> Graph:
    """`Optimizer.step` in no time, on host and device."""
    if not graph.on_gpu:
        return without_optimizer_on_cpu(graph)
    return _scale_optimizer(graph, optimizer_work(graph), 0.0, 0.0, 0)


class OptimizerWork(NamedTuple):
    """The work of the optimizer: recorded device ops and calls, and its amount per step."""

    ops: Mask  # device ops of the optimizer
    nodes: Mask
    steps: int  # optimizer steps in the recording
    kind: str
    implementation: str  # "loop", "foreach" or "fused"
    tensors: float  # per step
    elements: float | None

    def update_cost(self, way: str) -> UpdateCost:
        """Return the costs of this optimizer with that implementation."""
        return _METHODS.get(self.kind, _OTHER)[way]

    def launches(self, to: UpdateCost) -> int:
        """Return the number of launches per step."""
        by_tensors = np.ceil(self.tensors / to.tensors)
        by_elements = np.ceil((self.elements or 0) / MAX_ELEMENTS)
        return int(to.operations * max(1.0, by_tensors, by_elements))


@cached_per_run
def optimizer_work(graph: Graph) -> OptimizerWork:
    """Return the work of the optimizers of a run, as far as it was recorded."""
    kernels, roles = classified_ops(graph), call_roles(graph)
    is_update = kernels.in_optimizer & ~kernels.family_mask(KernelFamily.COLLECTIVE, KernelFamily.COPY)
    steps = max(1, len(roles.update_starts))
    kind, implementation = _kind(graph), _implementation(graph, is_update)
    recorded = [each for each in graph.run.optimizers if each.tensors]
    ops_per_step = float(is_update.sum()) / steps
    tensors = (
        sum(each.tensors or 0 for each in recorded) / len(recorded)
        if recorded
        else _estimated_tensors(kind, implementation, ops_per_step)
    )
    elements = sum(each.elements or 0 for each in recorded) / len(recorded) if recorded else None
    return OptimizerWork(is_update, roles.updates, steps, kind, implementation, tensors, elements or None)


def _estimated_tensors(kind: str, way: str, ops_per_step: float) -> float:
    method = _METHODS.get(kind, _OTHER)[way]
    return max(1.0, ops_per_step / method.operations) * method.tensors


def _kind(graph: Graph) -> str:
    rows = optimizer_steps(graph.run)
    if graph.run.optimizers:
        return graph.run.optimizers[0].kind
    name = (rows.text("name")[0] or "") if len(rows) else ""
    return name.removeprefix("Optimizer.step#").partition(".")[0]


def _implementation(graph: Graph, is_update: Mask) -> str:
    """Return the present implementation, judged by kernel names."""
    labels = graph.run.event_rows.text("name")
    codes = labels.codes[graph.device.event[is_update]]
    names = [labels.vocabulary[code].lower() for code in codes[codes >= 0].tolist()]
    if not names:
        return "loop"
    fused = sum("fused" in name for name in names)
    foreach = sum("multi_tensor_apply" in name or "foreach" in name for name in names)
    if fused > len(names) / 3:
        return FUSED
    return FOREACH if foreach > len(names) / 3 else "loop"


def _device_ns(
    graph: Graph, update: OptimizerWork, target: UpdateCost, current: UpdateCost, launches: int, draw: Draw
) -> float:
    """Return the device time per step, at most the present one."""
    dur = graph.device.dur_ns[update.ops]
    now_ns = float(dur.sum()) / update.steps
    launch_ns = launches * draw.between("optimizer_kernel", *KERNEL_NS)
    spec = gpu_spec_of(graph)
    if update.elements and spec is not None:
        traffic_ns = (
            update.elements
            * target.bytes
            / (spec.memory_bytes_per_s * draw.between("optimizer_rate", *RATE_FRAC))
            * 1e9
        )
    else:
        traffic_ns = (
            float(np.maximum(dur - KERNEL_OVERHEAD_NS, 0.0).sum()) / update.steps * target.bytes / current.bytes
        )
        traffic_ns *= draw.ratio("optimizer_share", *RATIO_SPREAD)
    return min(now_ns, launch_ns + traffic_ns)


def _scale_optimizer(graph: Graph, update: OptimizerWork, host_ns: float, device_ns: float, launches: int) -> Graph:
    """Scale the work of each optimizer step to these times; gaps between removed kernels disappear."""
    host, device = graph.host, graph.device
    current_ns = float(device.dur_ns[update.ops].sum()) / update.steps
    device_factor = min(1.0, device_ns / current_ns) if current_ns else 1.0
    gap_factor = min(1.0, launches * update.steps / max(1, int(update.ops.sum())))
    dur_ns = np.where(update.ops, device.dur_ns * device_factor, device.dur_ns)
    gap_ns = np.where(update.ops, device.gap_ns * gap_factor, device.gap_ns)
    inside = _share_in_optimizer(graph)
    host_work = sum((host.before_ns[part] * share for part, share in inside.items()), np.zeros(len(host)))
    calls_ns = np.where(update.nodes, host.call_ns, 0.0)
    cost_ns = float(host_work.sum() + calls_ns.sum()) / update.steps
    host_factor = min(1.0, host_ns / cost_ns) if cost_ns > 0 else 1.0
    factors: dict[str, float | Floats] = {part: 1 - share * (1 - host_factor) for part, share in inside.items()}
    factors["overlap"] = np.where(update.nodes, host_factor, 1.0)
    scaled = graph.scaled_before(factors)
    return scaled.with_host(call_ns=np.where(update.nodes, host.call_ns * host_factor, host.call_ns)).with_device(
        dur_ns=dur_ns, gap_ns=gap_ns
    )


@cached_per_run
def _share_in_optimizer(graph: Graph) -> dict[str, Floats]:
    """Share of the host work before each node that is inside an optimizer step, by part."""
    parts = [part for part in (*DISPATCH_PARTS, "python") if part in graph.part_spans]
    return graph.share_inside(optimizer_spans(graph), *parts)


def optimizer_refusal(graph: Graph, value: Value) -> str | None:
    """Return why another optimizer implementation cannot be predicted."""
    if not len(optimizer_steps(graph.run)):
        return "no optimizer step was recorded"
    if not graph.on_gpu:
        reason = "on a CPU, foreach=True still iterates over the parameters one by one; use optimizer=fused"
        return reason if value == FOREACH else None
    update = optimizer_work(graph)
    if not update.ops.any():
        return "the optimizer step launches no GPU work"
    if update.implementation == value or update.implementation == FUSED:
        return f"the optimizer is {update.implementation} already"
    if value == FUSED and update.kind and update.kind not in FUSED_AVAILABLE:
        return f"{update.kind} has no fused implementation in PyTorch; use optimizer=foreach"
    return None


def _parse(typed: str) -> Value:
    if typed.lower() not in (FUSED, FOREACH):
        raise ValueError("the implementation is fused or foreach")
    return typed.lower()


def _code(graph: Graph, value: Value) -> str:
    kind = _kind(graph) or "AdamW"
    name = next((each.name for each in graph.run.optimizers if each.name), "optimizer")
    model = next((each.name for each in graph.run.models if each.name), "model")
    return f'{name} = torch.optim.{kind}({model}.parameters(), lr={name}.param_groups[0]["lr"], {value}=True)'


OPTIMIZER_REWRITES = (
    Rewrite(
        name="optimizer",
        needs_operators=True,
        edit=fuse_optimizer,
        best_case=optimizer_best_case,
        grade="C",
        about="a fused or foreach optimizer",
        bound_label="an optimizer step at no cost",
        refusal_reason=optimizer_refusal,
        value_help="fused or foreach",
        default=FUSED,
        parse=_parse,
        cost="its other arguments (momentum, weight_decay, betas) must be passed again",
        code=_code,
    ),
)
