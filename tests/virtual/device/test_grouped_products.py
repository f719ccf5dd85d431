"""grouped_mm and FlexAttention: shapes, kernels, FLOPs, gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpulab.hardware.lookup import resolve  # noqa: E402
from gpulab.virtual.cost_model.operators import kernels_of  # noqa: E402
from gpulab.virtual.op_log.ops import Copy  # noqa: E402
from tests.support.virtual.cuda_programs import device  # noqa: E402
from tests.support.virtual.device_programs import gpu_ops, op_names, run_on_virtual_gpu  # noqa: E402

grouped = pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no grouped_mm")
GROUPS, ROWS, INNER, COLUMNS = 4, 64, 32, 16


def experts(dtype, offsets=None):
    tokens = torch.randn(ROWS, INNER, device="cuda", dtype=dtype, requires_grad=True)
    weights = torch.randn(GROUPS, INNER, COLUMNS, device="cuda", dtype=dtype, requires_grad=True)
    ends = torch.randint(0, 9, (GROUPS,), device="cuda", dtype=torch.int32) if offsets is None else offsets
    return tokens, weights, torch._grouped_mm(tokens, weights, ends)


@grouped
def test_bfloat16_on_hopper_is_one_kernel_with_the_flops_of_all_rows():
    def program():
        tokens, weights, out = experts(torch.bfloat16)
        assert out.shape == (ROWS, COLUMNS)
        out.float().sum().backward()
        assert tokens.grad.shape == tokens.shape
        assert weights.grad.shape == weights.shape

    records, _, _ = run_on_virtual_gpu(program)
    ops = [each for each in gpu_ops(records) if each.name == "aten::_grouped_mm"]
    assert [each.flops for each in ops] == [2 * ROWS * INNER * COLUMNS] * 3
    assert all(len(kernels_of(each, resolve("h100"))) == 1 for each in ops)


@grouped
@pytest.mark.parametrize(("gpu", "dtype"), [("h100", torch.float32), ("a100", torch.bfloat16)])
def test_other_dtypes_and_gpus_multiply_group_by_group(gpu, dtype):
    records, _, _ = run_on_virtual_gpu(lambda: experts(dtype), gpu)
    products = [each for each in gpu_ops(records) if each.name == "aten::mm"]
    assert [each.inputs[0].sizes for each in products] == [(ROWS // GROUPS, INNER)] * GROUPS
    assert sum(each.flops for each in products) == 2 * ROWS * INNER * COLUMNS
    assert any(isinstance(each, Copy) for each in records)  # the offsets


@grouped
def test_known_offsets_set_the_rows_of_each_group():
    with device() as gpu:
        _, _, out = experts(torch.float32, torch.tensor([8, 8, 40, 64], device="cuda", dtype=torch.int32))
        assert out.shape == (ROWS, COLUMNS)
    assert gpu.assumptions == ()


@grouped
def test_wrong_arguments_raise():
    with device():
        tokens = torch.randn(ROWS, INNER, device="cuda")
        weights = torch.randn(GROUPS, INNER, COLUMNS, device="cuda")
        ends = torch.zeros(GROUPS, device="cuda", dtype=torch.int32)
        with pytest.raises(RuntimeError, match="same dtype"):
            torch._grouped_mm(tokens.bfloat16(), weights, ends)
        with pytest.raises(RuntimeError, match="offsets"):
            torch._grouped_mm(tokens, weights)
        with pytest.raises(RuntimeError, match="contraction dimension"):
            torch._grouped_mm(tokens[:, 1:], weights, ends)
    with device("t4"), pytest.raises(RuntimeError, match="compute capability"):
        experts(torch.float16)


def attend(mask_mod=None, size=256):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key, value = (torch.randn(1, 2, size, 16, device="cuda", requires_grad=True) for _ in range(3))
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, size, size, device="cuda")
    out = torch.compile(flex_attention)(query, key, value, score_mod=lambda score, *_: score * 2, block_mask=mask)
    out.sum().backward()
    assert out.shape == query.grad.shape == key.grad.shape == value.grad.shape


MASKS = {
    "none": (None, False), "causal": (lambda b, h, i, j: i >= j, True), "window": (lambda b, h, i, j: i - j < 64, False)
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_flex_attention_is_one_fused_kernel_that_skips_the_blocks_of_a_causal_mask(name):
    mask_mod, causal = MASKS[name]
    records, _, _ = run_on_virtual_gpu(lambda: attend(mask_mod))
    names = op_names(records)
    assert names.count("aten::_scaled_dot_product_efficient_attention") == 1
    assert names.count("aten::_scaled_dot_product_efficient_attention_backward") == 1
    forward = next(each for each in gpu_ops(records) if each.name.endswith("efficient_attention"))
    assert dict(forward.details)["causal"] == str(causal)
