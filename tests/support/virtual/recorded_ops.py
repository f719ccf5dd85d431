"""Operators of recorded traces as the fake device would record them, with the measured times of their kernels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from gpulab import trace
from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.enclosing_operators import enclosing_operators
from gpulab.analysis.host.launch_delays import launch_calls
from gpulab.analysis.kernels.flops import parse_inputs
from gpulab.tables import EventKind
from gpulab.virtual.cost_model.operators import kernels_of
from gpulab.virtual.op_log.ops import Op, TensorInfo

TYPES = {"float": ("float32", 4), "c10::BFloat16": ("bfloat16", 2), "long int": ("int64", 8), "bool": ("bool", 1)}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
# Operators whose result has the shape of their largest input.
_SHAPED_LIKE_INPUT = (
    "aten::add", "aten::mul", "aten::gelu", "aten::_softmax", "aten::native_layer_norm", "aten::threshold_backward",
    "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward", "aten::_flash_attention_forward", "aten::eq",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    real_ns: int
    predicted_ns: float
    real_kernels: int
    predicted_kernels: int


def calls_by_operator(path, gpu):
    """Calls by operator name; only operators whose result shape follows from the trace."""
    run = trace.read(path)
    events, shapes = run.event_rows, run.shape_rows
    work = device_work(run).of_kind(EventKind.KERNEL)
    kernels_by_op = defaultdict(list)
    for index, row in enumerate(enclosing_operators(events, launch_calls(work)).tolist()):
        kernels_by_op[row].append(index)
    shape_rows = {column: shapes.per_event(column, len(events)) for column in ("shapes", "dtypes")}
    names, calls = events.text("name"), defaultdict(list)
    for row, indices in kernels_by_op.items():
        name = names[row] if row >= 0 else None
        if name not in (*PRODUCTS, *_SHAPED_LIKE_INPUT) or shape_rows["shapes"][row] < 0:
            continue
        op_inputs = parse_inputs(
            *(shapes.text(column).vocabulary[shape_rows[column][row]] for column in ("shapes", "dtypes"))
        )
        if not any(shape and dtype in TYPES for shape, dtype in zip(*op_inputs, strict=True)):
            continue
        kernel = names[int(work.event_rows[indices[0]])] or ""
        op = _op(name, op_inputs, transposed="_tn_" in kernel or kernel.endswith("_tn"))
        predicted = kernels_of(op, gpu)
        real_ns = int(work["dur_ns"][indices].sum())
        calls[name].append(Call(real_ns, sum(each.ns for each in predicted), len(indices), len(predicted)))
    return calls


def _op(name, op_inputs, transposed):
    tensors = [
        TensorInfo(shape, TYPES[dtype][0], prod(shape) * TYPES[dtype][1])
        for shape, dtype in zip(op_inputs.shapes, op_inputs.dtypes, strict=True)
        if shape and dtype in TYPES
    ]
    if name in PRODUCTS:
        left, right = tensors[-2:]
        tensors[-1] = TensorInfo(right.sizes, right.dtype, right.bytes, contiguous=not transposed)
        sizes = (*left.sizes[:-1], right.sizes[-1])
        out = TensorInfo(sizes, left.dtype, prod(sizes) * left.bytes // prod(left.sizes))
    else:
        out = max(tensors, key=lambda tensor: tensor.bytes)
    return Op(name=name, inputs=tuple(tensors), outputs=(out,))
