"""Kernel selection of scaled_dot_product_attention: flash, memory-efficient, or math (separate matrix products)."""

from __future__ import annotations

from typing import Any

_HEAD_SIZE_ALIGNMENT = {"float32": 4, "float16": 8, "bfloat16": 8}


def select_kernel(sm: int, query: Any, key: Any, value: Any, mask: Any, gqa: bool) -> str:
    """Return the kernel that PyTorch selects: "flash", "efficient" or "math".

    The cuDNN kernel is not modelled: PyTorch uses it only if enabled explicitly, or with some versions of cuDNN.
    """
    import torch

    cuda: Any = torch.backends.cuda
    are_4d = query.dim() == key.dim() == value.dim() == 4 and all(size > 0 for size in (*query.shape, *key.shape))
    same_head_size = query.shape[-1] == key.shape[-1]
    if are_4d and same_head_size and cuda.flash_sdp_enabled() and _supports_flash(sm, query, value, mask):
        return "flash"
    efficient = cuda.mem_efficient_sdp_enabled()
    if are_4d and same_head_size and efficient and not gqa and _supports_efficient(sm, query, value, mask):
        return "efficient"
    if not cuda.math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    return "math"


def _supports_flash(sm: int, query: Any, value: Any, mask: Any) -> bool:
    import torch

    half = query.dtype in (torch.float16, torch.bfloat16)
    return sm >= 80 and half and mask is None and query.shape[-1] <= 256 and value.shape[-1] == query.shape[-1]


def _supports_efficient(sm: int, query: Any, value: Any, mask: Any) -> bool:
    import torch

    dtypes = {torch.float32, torch.float16} | ({torch.bfloat16} if sm >= 80 else set())
    if query.dtype not in dtypes or (mask is not None and mask.requires_grad and sm < 50):
        return False
    step = _HEAD_SIZE_ALIGNMENT[str(query.dtype)[6:]] if sm >= 75 else 1
    return bool(query.shape[-1] % step == 0 and value.shape[-1] % step == 0)


def attention_for(sm: int) -> Any:
    """Return scaled_dot_product_attention as a GPU of this compute capability (80 for 8.0) runs it."""

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        import torch

        aten = torch.ops.aten
        _check_inputs(query, key, value, attn_mask, is_causal)
        family = select_kernel(sm, query, key, value, attn_mask, enable_gqa)
        if family == "math":
            options = {"dropout_mask": None, "scale": scale}
            if enable_gqa:  # since torch 2.5
                options["enable_gqa"] = True
            mask = _additive_mask(attn_mask, query)
            return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout_p, is_causal, **options)[0]
        size = query.shape[-1]
        scale = size**-0.5 if scale is None else scale
        if family == "flash":
            padded = [_pad_heads(each) for each in (query, key, value)]
            out = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
            return out[..., :size] if out.shape[-1] != size else out
        needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        mask = _additive_mask(attn_mask, query)
        if mask is not None:
            mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]

    return scaled_dot_product_attention


def _check_inputs(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{_dtype_name(query)} key.dtype: {_dtype_name(key)} and value.dtype: {_dtype_name(value)} instead."
        )
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if mask is not None and causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")


def _dtype_name(tensor: Any) -> str:
    return {"float32": "float", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float64": "double"}.get(
        str(tensor.dtype)[6:], str(tensor.dtype)[6:]
    )


def _additive_mask(mask: Any, query: Any) -> Any:
    """Convert a boolean mask to an additive one."""
    import torch

    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=mask.device)
    return torch.where(mask, zero, torch.full((), float("-inf"), dtype=query.dtype, device=mask.device))


def _pad_heads(tensor: Any) -> Any:
    """Pad the head size to a multiple of eight, as flash attention requires."""
    import torch

    padding = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, padding)) if padding else tensor
