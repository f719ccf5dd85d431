"""Arithmetic and traffic of operators by their sizes, and the GPUs' peaks, against figures worked out by hand."""

import json

import numpy as np
import pytest

from gpulab.analysis.events.enclosing_operators import enclosing_operators
from gpulab.analysis.kernels.bytes_moved import min_bytes_moved
from gpulab.analysis.kernels.flops import flops, parse_inputs
from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.occupancy import gpu_fill
from gpulab.analysis.kernels.roofline import flops_utilisation, operator_work
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.tables import EventKind
from tests.support.runs.made_runs import MS, event, launched_kernel, on_gpu, stepped

BF16 = '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]'


def kernels_of(run):
    run_steps = find_steps(run)
    return interior_kernels(run, run_steps, build_ledger(run, run_steps))


@pytest.mark.parametrize(
    ("op", "shapes", "expected"),
    [
        ("aten::mm", "[[128, 256], [256, 512]]", 2 * 128 * 256 * 512),
        ("aten::addmm", "[[512], [128, 256], [256, 512], [], []]", 2 * 128 * 256 * 512),
        ("aten::bmm", "[[8, 128, 64], [8, 64, 128]]", 8 * 2 * 128 * 64 * 128),
        # ResNet's 3x3 convolution: 2 x outputs x weights of one output, for each of two gradients.
        (
            "aten::convolution_backward",
            "[[32, 64, 56, 56], [32, 64, 56, 56], [64, 64, 3, 3]]",
            2 * 2 * 32 * 64 * 56 * 56 * 64 * 9,
        ),
        ("aten::_flash_attention_forward", "[[2, 100, 8, 64], [2, 50, 8, 64], [2, 50, 8, 64]]", 4 * 16 * 5000 * 64),
        (
            "aten::_scaled_dot_product_efficient_attention",
            "[[2, 8, 100, 64], [2, 8, 50, 64], [2, 8, 50, 64]]",
            4 * 2 * 8 * 100 * 50 * 64,
        ),
        ("aten::add", "[[128, 256], [128, 256]]", None),
        ("aten::mm", "[[128, 256], [257, 512]]", None),
        ("aten::mm", "not JSON", None),
        ("aten::mm", '[["128", 256], {}]', None),
    ],
)  # fmt: skip
def test_flops_follow_from_input_sizes(op, shapes, expected):
    assert flops(op, parse_inputs(shapes, BF16)) == expected


def test_minimum_bytes_are_every_input_and_the_result_once():
    assert min_bytes_moved("aten::mm", parse_inputs("[[128, 256], [256, 512]]", BF16)) == 2 * (
        128 * 256 + 256 * 512 + 128 * 512
    )
    assert min_bytes_moved("aten::add", parse_inputs("[[1000], [1000]]", '["float", "float"]')) == 12_000
    assert min_bytes_moved("aten::add", parse_inputs("[[1000], [1000]]", '["quaternion", "float"]')) is None


# Of float32 numbers, 4 bytes each: so many are read, and so many are written.
MOVES = {
    "a sum in place reads both and writes one": ("add_", "[[1000], [1000], []]", 2000, 1000),
    "one number for each row is read once": ("add_", "[[50, 20], [20], []]", 1020, 1000),
    "in place on one tensor": ("relu_", "[[1000]]", 1000, 1000),
    "a copy reads one and writes the other": ("copy_", "[[1000], [1000], []]", 1000, 1000),
    "nothing is read to fill": ("zero_", "[[1000]]", 0, 1000),
    "random numbers come from nowhere": ("normal_", "[[1000], [], [], []]", 0, 1000),
    "a result that was given is not read": ("add", "[[1000], [1000], [], [1000]]", 2000, 1000),
    "nor that of one tensor and a number": ("mul", "[[1000], [], [1000]]", 1000, 1000),
    "nor that of one tensor": ("exp", "[[1000], [1000]]", 1000, 1000),
    "nor that of a product": ("mm", "[[20, 30], [30, 40], [20, 40]]", 600 + 1200, 800),
    "nor that of a product and a sum": ("addmm", "[[40], [20, 30], [30, 40], [], [], [20, 40]]", 40 + 1800, 800),
    "a new result": ("mul", "[[1000], [1000]]", 2000, 1000),
    "where something else tells": ("where", "[[1000], [1000], [1000]]", 3000, 1000),
    "a sum is one number": ("sum", "[[1000], []]", 1000, 0),
    "lists in place, by a number": ("_foreach_mul_", "[[1000], [10, 10]]", 1100, 1100),
    "lists in place, by lists": ("_foreach_add_", "[[1000], [10, 10], [1000], [10, 10]]", 2200, 1100),
    "lists in place, by two lists": ("_foreach_addcdiv_", "[[1000], [10], [1000], [10], [1000], [10]]", 3030, 1010),
    "new lists": ("_foreach_sqrt", "[[1000], [10, 10]]", 1100, 1100),
    "an optimizer writes all but the gradients": ("_fused_adamw_", "[[9], [7], [9], [7], [9], [7], [9], [7]]", 64, 48),
    "and here has one list of them": ("_fused_sgd_", "[[10], [7], [10], [7]]", 34, 17),
    "only where the index tells": ("index_add_", "[[1000], [], [10], [10]]", 1020, 0),
    "this is a new one, whatever its name ends in": ("__and__", "[[1000], [20, 1]]", 1020, 1000),
    "and this is not": ("__iand__", "[[1000], []]", 1000, 1000),
}  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "read", "written"), MOVES.values(), ids=MOVES.keys())
def test_reads_and_writes_are_counted_once(op, shapes, read, written):
    op_inputs = parse_inputs(shapes, json.dumps(["float" if shape else "Scalar" for shape in json.loads(shapes)]))
    assert min_bytes_moved(f"aten::{op}", op_inputs) == 4 * (read + written)


def test_a_dtype_conversion_reads_one_type_and_writes_the_other():
    assert (
        min_bytes_moved("aten::copy_", parse_inputs("[[1000], [1000], []]", '["c10::Half", "float", "Scalar"]'))
        == 6_000
    )


def test_a_boolean_takes_one_byte():
    assert min_bytes_moved("aten::gt", parse_inputs("[[1000], []]", '["float", "Scalar"]')) == 5_000


def test_in_place_operators_are_recognised_by_their_recorded_names():
    """The names and places of arguments that the counts rely on, from PyTorch itself."""
    torch = pytest.importorskip("torch")
    a, b, out = torch.ones(10), torch.ones(10), torch.empty(10)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recorded:
        a.add_(b)
        torch.add(a, b, out=out)
        torch.exp(a, out=out)
        a.copy_(b)
    bytes_by_op = {}
    for op in recorded.events():
        op_inputs = parse_inputs(
            json.dumps(op.input_shapes), json.dumps(["float" if shape else "" for shape in op.input_shapes])
        )
        bytes_by_op[op.name] = min_bytes_moved(op.name, op_inputs)
    assert bytes_by_op == {"aten::add_": 120, "aten::add": 120, "aten::exp": 80, "aten::copy_": 80}


def product_step(at):
    sizes = {"shapes": [[8192, 8192], [8192, 8192]], "dtypes": ["c10::BFloat16"] * 2}
    return launched_kernel("nvjet_tst_128x64", at, 2, number=round(at) + 1, op="aten::mm", **sizes)


def test_mfu_is_the_flops_of_a_step_over_the_peak():
    kernels = kernels_of(on_gpu(stepped(product_step, step_ms=4)))
    mfu = flops_utilisation(kernels, 4 * MS, operator_work(kernels))
    assert mfu.flops == 2 * 8192**3
    assert mfu.kernel_frac == pytest.approx(2 * 8192**3 / 2e-3 / 989e12)
    assert mfu.step_frac == pytest.approx(mfu.kernel_frac / 2)
    assert mfu.known_frac == 1


def test_without_recorded_sizes_there_is_no_mfu():
    kernels = kernels_of(
        on_gpu(stepped(lambda at: launched_kernel("nvjet_tst", at, 2, number=round(at) + 1, op="aten::mm")))
    )
    assert operator_work(kernels) == ()
    assert flops_utilisation(kernels, MS, ()) is None


def test_a_call_belongs_to_the_innermost_operator_that_has_not_ended():
    events = on_gpu(
        [
            event(EventKind.OP, "aten::linear", 0, 10),
            event(EventKind.OP, "aten::t", 1, 1),
            event(EventKind.OP, "aten::addmm", 3, 5),
            event(EventKind.OP, "aten::empty", 3.5, 0.5),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 5, 1),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 9, 0.5),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 11, 0.5),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 5, 1, thread=1),
        ]
    ).event_rows
    calls = np.flatnonzero(events["kind"] == EventKind.LAUNCH)
    names = [
        events.text("name")[row] if row >= 0 else None
        for row in enclosing_operators(events, np.append(calls, -1)).tolist()
    ]
    assert sorted(map(str, names)) == ["None", "None", "None", "aten::addmm", "aten::linear"]


def test_a_kernel_with_half_as_many_blocks_as_multiprocessors_uses_half_the_gpu():
    fill = gpu_fill(kernels_of(on_gpu(stepped(lambda at: launched_kernel("k", at, 50, number=round(at) + 1, grid=66)))))
    assert fill.small_frac == 1
    assert fill.filled_frac == 0.5
    assert fill.blocks == 66
