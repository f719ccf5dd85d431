"""Operators of recorded traces, as the fake device would write them, beside what their kernels really took."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from gpulab import trace
from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.enclosing_operator import holders
from gpulab.analysis.host.launch_delays import calls_of
from gpulab.analysis.kernels.flops import inputs
from gpulab.tables import Kind
from gpulab.virtual.cost_model.operators import kernels
from gpulab.virtual.op_log.ops import Op, Tensor

TYPES = {"float": ("float32", 4), "c10::BFloat16": ("bfloat16", 2), "long int": ("int64", 8), "bool": ("bool", 1)}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
# Operators whose result has the sizes of the largest tensor they are given.
ALIKE = (
    "aten::add", "aten::mul", "aten::gelu", "aten::_softmax", "aten::native_layer_norm", "aten::threshold_backward",
    "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward", "aten::_flash_attention_forward", "aten::eq",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    real_ns: int
    said_ns: float
    real_kernels: int
    said_kernels: int


def priced(path, gpu):
    """Calls by operator; only of operators whose results follow from what a trace tells."""
    run = trace.read(path)
    events, shapes = run.event_rows, run.shape_rows
    work = device_work(run).of_kind(Kind.KERNEL)
    launched = defaultdict(list)
    for place, row in enumerate(holders(events, calls_of(work)).tolist()):
        launched[row].append(place)
    codes = {column: shapes.spread(column, len(events)) for column in ("shapes", "dtypes")}
    names, durations = events.words("name"), defaultdict(list)
    for row, places in launched.items():
        name = names[row] if row >= 0 else None
        if name not in (*PRODUCTS, *ALIKE) or codes["shapes"][row] < 0:
            continue
        op_inputs = inputs(*(shapes.words(column).vocabulary[codes[column][row]] for column in ("shapes", "dtypes")))
        if not any(shape and dtype in TYPES for shape, dtype in zip(*op_inputs, strict=True)):
            continue
        kernel = names[int(work.event[places[0]])] or ""
        op = _op(name, op_inputs, turned="_tn_" in kernel or kernel.endswith("_tn"))
        simulated = kernels(op, gpu)
        real_ns = int(work["dur_ns"][places].sum())
        durations[name].append(Call(real_ns, sum(each.ns for each in simulated), len(places), len(simulated)))
    return durations


def _op(name, given, turned):
    tensors = [
        Tensor(shape, TYPES[dtype][0], prod(shape) * TYPES[dtype][1])
        for shape, dtype in zip(given.shapes, given.dtypes, strict=True)
        if shape and dtype in TYPES
    ]
    if name in PRODUCTS:
        left, right = tensors[-2:]
        tensors[-1] = Tensor(right.sizes, right.dtype, right.bytes, contiguous=not turned)
        sizes = (*left.sizes[:-1], right.sizes[-1])
        out = Tensor(sizes, left.dtype, prod(sizes) * left.bytes // prod(left.sizes))
    else:
        out = max(tensors, key=lambda tensor: tensor.bytes)
    return Op(name=name, inputs=tuple(tensors), outputs=(out,))
