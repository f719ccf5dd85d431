"""The optimizer's step for all parameters at once: fused, or foreach."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.analysis.kernels.optimizers import ranges
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.graph_work import CALLED, calls, gpu_spec_of, optimizer_spans, pieces_of
from gpulab.replay.rewrites.kernels.compile_on_cpu import no_optimizer_cpu, optimizer_cpu

FUSED, FOREACH = "fused", "foreach"
HAS_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class Method(NamedTuple):
    """How an optimizer goes over its parameters: bytes moved for each, operations, tensors in one launch."""

    bytes: float  # for each parameter in float32
    operations: float
    tensors: float  # that one kernel takes at most
    host_ns: float = 0.0  # for each tensor, beside the launches


# By way and kind: Adam reads parameter, gradient and two moments, and writes three of them; SGD without momentum
# reads two and writes one. One pass for each operation where the tensors, or groups of them, are gone through.
# The launches of foreach and fused: tensors that fit a kernel's arguments. A ResNet-50 with SGD, momentum and weight
# decay had 9 a step for 161 tensors, on V100.
# Of the host, for each tensor: its Python, measured on the CPU that virtual hosts take for usual with the operators
# themselves left out (PyTorch 2.13, 200 to 1000 tensors: Adam 3.3 to 4.9 us, fused 1.4 to 2.0; SGD 0.5, with momentum
# 1.1; Adagrad 2.3 to 3.5, fused 1.3 to 1.6; RMSprop 1.7 to 2.6; NAdam 5.4 to 8.0), and 0.25 us for each operator that
# the tensor is listed for. A foreach Adam asks each tensor's count of steps in Python; that is most of it.
_ADAM = {"loop": Method(100, 12, 1), FOREACH: Method(84, 12, 60, 7_500), FUSED: Method(28, 1, 30, 2_000)}
_SGD = {"loop": Method(28, 2, 1), FOREACH: Method(24, 2, 60, 1_800), FUSED: Method(20, 1, 40, 1_200)}
_ADAGRAD = {"loop": Method(28, 2, 1), FOREACH: Method(24, 2, 60, 3_500), FUSED: Method(20, 1, 40, 1_700)}
_OTHER = {"loop": Method(60, 7, 1), FOREACH: Method(52, 7, 60, 5_000), FUSED: Method(24, 1, 30, 1_700)}
_METHODS = {"Adam": _ADAM, "AdamW": _ADAM, "SGD": _SGD, "Adagrad": _ADAGRAD}

CHUNK = 21_000_000  # parameters that one launch takes at most: 320 blocks of 65536
RATE_FRAC = (0.85, 0.6)  # of the memory's peak rate, that such kernels reach
SHARE = (0.7, 1.4)  # of what bytes for each parameter say, where the time must be told from the kernels that ran
TINY_NS = 1_500.0  # of a kernel, however few elements: the time of these goes with their number
KERNEL_NS = (2_000.0, 4_000.0)
HOST_NS = (50_000.0, 150_000.0)  # a step of any optimizer: hooks, groups, checks
HOST_TENSOR = (0.8, 3.0)  # times that: it was the fastest of many steps in a row; in a loop caches are colder
HOST_LAUNCH_NS = (6_000.0, 20_000.0)


def optimizer(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`fused=True` or `foreach=True`: one kernel for many parameters, in place of several for each.

    Models: inside `Optimizer.step` the kernels become as many as hold all tensors; their time is the bytes that each
    parameter needs (28 for a fused Adam, 84 for foreach) over 60 to 85 % of the memory's peak rate. Where the number
    of parameters was not recorded, it is the time of the kernels that ran, by the ratio of those bytes. The host
    costs 50 to 150 us, 6 to 20 us for each launch, and for each tensor 0.8 to 3 times what was measured on one CPU:
    7.5 us for Adam's foreach, 2 fused, 1 to 2 for SGD; never more than now. On a CPU the operators become one for each
    group of parameters.

    Priced from: the algorithms' own reads and writes; launches counted in a recorded ResNet-50; Python timed.

    Cannot know: parameters of mixed types or devices, for which there are more launches; optimizers of one's own.
    """
    if not graph.on_gpu:
        return optimizer_cpu(graph, draw)
    told = updating(graph)
    to, now = told.method(str(value)), told.method(told.way)
    launches = told.launches(to)
    device_ns = _device_ns(graph, told, to, now, launches, draw)
    host_ns = (
        draw.between("optimizer_host", *HOST_NS)
        + told.tensors * to.host_ns * draw.ratio("optimizer_tensor", *HOST_TENSOR)
        + launches * draw.between("optimizer_launch", *HOST_LAUNCH_NS)
    )
    return _with_optimizer(graph, told, host_ns, device_ns, launches)


def optimizer_ceiling(graph: Graph, value: Value) -> Graph:
    """An optimizer's step that takes no time, neither of the host nor of the device."""
    if not graph.on_gpu:
        return no_optimizer_cpu(graph)
    return _with_optimizer(graph, updating(graph), 0.0, 0.0, 0)


class Updating(NamedTuple):
    """The optimizer's work, and of a step of it what must be done."""

    mine: Mask  # device work
    stops: Mask
    steps: int  # optimizer steps in the recording
    kind: str
    way: str  # "loop", "foreach" or "fused"
    tensors: float  # of one step
    elements: float | None

    def method(self, way: str) -> Method:
        """How this kind of optimizer does it that way."""
        return _METHODS.get(self.kind, _OTHER)[way]

    def launches(self, to: Method) -> int:
        """Launches of one step."""
        by_tensors = np.ceil(self.tensors / to.tensors)
        by_elements = np.ceil((self.elements or 0) / CHUNK)
        return int(to.operations * max(1.0, by_tensors, by_elements))


@once
def updating(graph: Graph) -> Updating:
    """What the optimizers of a run do, as far as it tells."""
    found, told = pieces_of(graph), calls(graph)
    mine = found.updates & ~found.is_family(Family.COLLECTIVE, Family.COPY)
    steps = max(1, len(told.opens))
    kind, way = _kind(graph), _way(graph, mine)
    known = [each for each in graph.run.optimizers if each.tensors]
    pieces = float(mine.sum()) / steps
    tensors = sum(each.tensors or 0 for each in known) / len(known) if known else _tensors(kind, way, pieces)
    elements = sum(each.elements or 0 for each in known) / len(known) if known else None
    return Updating(mine, told.updates, steps, kind, way, tensors, elements or None)


def _tensors(kind: str, way: str, pieces: float) -> float:
    method = _METHODS.get(kind, _OTHER)[way]
    return max(1.0, pieces / method.operations) * method.tensors


def _kind(graph: Graph) -> str:
    rows = ranges(graph.run)
    if graph.run.optimizers:
        return graph.run.optimizers[0].kind
    name = (rows.words("name")[0] or "") if len(rows) else ""
    return name.removeprefix("Optimizer.step#").partition(".")[0]


def _way(graph: Graph, mine: Mask) -> str:
    """How the optimizer goes over its parameters now, by the names of its kernels."""
    words = graph.run.event_rows.words("name")
    codes = words.codes[graph.device.event[mine]]
    names = [words.vocabulary[code].lower() for code in codes[codes >= 0].tolist()]
    if not names:
        return "loop"
    fused = sum("fused" in name for name in names)
    many = sum("multi_tensor_apply" in name or "foreach" in name for name in names)
    if fused > len(names) / 3:
        return FUSED
    return FOREACH if many > len(names) / 3 else "loop"


def _device_ns(graph: Graph, told: Updating, to: Method, now: Method, launches: int, draw: Draw) -> float:
    """Device time of one step, never more than it is."""
    dur = graph.device.dur_ns[told.mine]
    now_ns = float(dur.sum()) / told.steps
    started_ns = launches * draw.between("optimizer_kernel", *KERNEL_NS)
    spec = gpu_spec_of(graph)
    if told.elements and spec is not None:
        moved = told.elements * to.bytes / (spec.memory_bytes_per_s * draw.between("optimizer_rate", *RATE_FRAC)) * 1e9
    else:
        moved = float(np.maximum(dur - TINY_NS, 0.0).sum()) / told.steps * to.bytes / now.bytes
        moved *= draw.ratio("optimizer_share", *SHARE)
    return min(now_ns, started_ns + moved)


def _with_optimizer(graph: Graph, told: Updating, host_ns: float, device_ns: float, launches: int) -> Graph:
    """The work of each optimizer's step scaled to these times; turns between kernels that are gone take none."""
    host, device = graph.host, graph.device
    now_ns = float(device.dur_ns[told.mine].sum()) / told.steps
    shrink = min(1.0, device_ns / now_ns) if now_ns else 1.0
    fewer = min(1.0, launches * told.steps / max(1, int(told.mine.sum())))
    dur = np.where(told.mine, device.dur_ns * shrink, device.dur_ns)
    turn = np.where(told.mine, device.turn_ns * fewer, device.turn_ns)
    inside = _inside(graph)
    held = sum((host.before_ns[part] * share for part, share in inside.items()), np.zeros(len(host)))
    own = np.where(told.stops, host.own_ns, 0.0)
    cost_ns = float(held.sum() + own.sum()) / told.steps
    left = min(1.0, host_ns / cost_ns) if cost_ns > 0 else 1.0
    factors: dict[str, float | Floats] = {part: 1 - share * (1 - left) for part, share in inside.items()}
    factors["overlap"] = np.where(told.stops, left, 1.0)
    scaled = graph.scaled_before(factors)
    return scaled.with_host(own_ns=np.where(told.stops, host.own_ns * left, host.own_ns)).with_device(
        dur_ns=dur, turn_ns=turn
    )


@once
def _inside(graph: Graph) -> dict[str, Floats]:
    """Of the host work before each stop, the share inside an optimizer's step, by part."""
    parts = [part for part in (*CALLED, "python") if part in graph.part_spans]
    return graph.within(optimizer_spans(graph), *parts)


def optimizer_lacking(graph: Graph, value: Value) -> str | None:
    """Why another optimizer cannot be told."""
    if not len(ranges(graph.run)):
        return "no optimizer's step was recorded"
    if not graph.on_gpu:
        what = "on a CPU foreach=True still goes through the parameters one by one; ask for optimizer=fused"
        return what if value == FOREACH else None
    told = updating(graph)
    if not told.mine.any():
        return "the optimizer's step starts no work on the GPU"
    if told.way == value or told.way == FUSED:
        return f"the optimizer is {told.way} already"
    if value == FUSED and told.kind and told.kind not in HAS_FUSED:
        return f"{told.kind} has no fused form in PyTorch; ask for optimizer=foreach"
    return None


def _parse(typed: str) -> Value:
    if typed.lower() not in (FUSED, FOREACH):
        raise ValueError("PyTorch's optimizers are fused or foreach")
    return typed.lower()


def _code(graph: Graph, value: Value) -> str:
    kind = _kind(graph) or "AdamW"
    name = next((each.name for each in graph.run.optimizers if each.name), "optimizer")
    model = next((each.name for each in graph.run.models if each.name), "model")
    return f'{name} = torch.optim.{kind}({model}.parameters(), lr={name}.param_groups[0]["lr"], {value}=True)'


OPTIMIZER = (
    Rewrite(
        name="optimizer",
        edit=optimizer,
        ceiling=optimizer_ceiling,
        grade="C",
        about="all parameters updated at once",
        ceiling_means="even an optimizer that takes no time",
        lacking=optimizer_lacking,
        takes="fused or foreach",
        usual=FUSED,
        parse=_parse,
        price="its other arguments (momentum, weight_decay, betas) must be given again",
        code=_code,
    ),
)
