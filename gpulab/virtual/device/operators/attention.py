"""Which kernel a GPU takes for scaled_dot_product_attention: flash, memory-efficient, or plain products."""

from __future__ import annotations

from typing import Any

_ALIGNED = {"float32": 4, "float16": 8, "bfloat16": 8}


def chosen(sm: int, query: Any, key: Any, value: Any, mask: Any, gqa: bool) -> str:
    """The kernel's family: "flash", "efficient" or "math", by the conditions of PyTorch's own choice.

    cuDNN's kernel is left out: PyTorch takes it only where told to, or for some versions of cuDNN.
    """
    import torch

    cuda: Any = torch.backends.cuda
    shaped = query.dim() == key.dim() == value.dim() == 4 and all(size > 0 for size in (*query.shape, *key.shape))
    heads_alike = query.shape[-1] == key.shape[-1]
    if shaped and heads_alike and cuda.flash_sdp_enabled() and _flash(sm, query, value, mask):
        return "flash"
    efficient = cuda.mem_efficient_sdp_enabled()
    if shaped and heads_alike and efficient and not gqa and _efficient(sm, query, value, mask):
        return "efficient"
    if not cuda.math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    return "math"


def _flash(sm: int, query: Any, value: Any, mask: Any) -> bool:
    import torch

    half = query.dtype in (torch.float16, torch.bfloat16)
    return sm >= 80 and half and mask is None and query.shape[-1] <= 256 and value.shape[-1] == query.shape[-1]


def _efficient(sm: int, query: Any, value: Any, mask: Any) -> bool:
    import torch

    dtypes = {torch.float32, torch.float16} | ({torch.bfloat16} if sm >= 80 else set())
    if query.dtype not in dtypes or (mask is not None and mask.requires_grad and sm < 50):
        return False
    step = _ALIGNED[str(query.dtype)[6:]] if sm >= 75 else 1
    return bool(query.shape[-1] % step == 0 and value.shape[-1] % step == 0)


def attention(sm: int) -> Any:
    """scaled_dot_product_attention as a GPU of this compute capability (80 for 8.0) runs it."""

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        import torch

        aten = torch.ops.aten
        _checked(query, key, value, attn_mask, is_causal)
        family = chosen(sm, query, key, value, attn_mask, enable_gqa)
        if family == "math":
            given = {"dropout_mask": None, "scale": scale}
            if enable_gqa:  # since torch 2.5
                given["enable_gqa"] = True
            mask = _additive(attn_mask, query)
            return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout_p, is_causal, **given)[0]
        size = query.shape[-1]
        scale = size**-0.5 if scale is None else scale
        if family == "flash":
            padded = [_padded(each) for each in (query, key, value)]
            found = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
            return found[..., :size] if found.shape[-1] != size else found
        grads = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        mask = _additive(attn_mask, query)
        if mask is not None:
            mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, grads, dropout_p, is_causal, scale=scale
        )[0]

    return scaled_dot_product_attention


def _checked(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{_named(query)} key.dtype: {_named(key)} and value.dtype: {_named(value)} instead."
        )
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if mask is not None and causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")


def _named(tensor: Any) -> str:
    return {"float32": "float", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float64": "double"}.get(
        str(tensor.dtype)[6:], str(tensor.dtype)[6:]
    )


def _additive(mask: Any, query: Any) -> Any:
    """A mask of truth values as one to add."""
    import torch

    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=mask.device)
    return torch.where(mask, zero, torch.full((), float("-inf"), dtype=query.dtype, device=mask.device))


def _padded(tensor: Any) -> Any:
    """Heads of a size that flash attention takes: a multiple of eight."""
    import torch

    beyond = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, beyond)) if beyond else tensor
