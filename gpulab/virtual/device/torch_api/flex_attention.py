"""FlexAttention on the virtual GPU: one fused attention kernel, as torch.compile generates it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type
from gpulab.virtual.device.tensors.true_values import true_values
from gpulab.virtual.device.torch_api.patches import patch_attributes

_MODULE = "torch.nn.attention.flex_attention"
_SUBJECT = "what FlexAttention computes"


def install(stack: ExitStack, assumptions: Assumptions) -> None:
    """Patch FlexAttention until the stack is closed."""
    try:
        module = importlib.import_module(_MODULE)  # since torch 2.5
    except ModuleNotFoundError:
        return
    original = getattr(module, "flex_attention_hop", None)
    if original is not None:
        outputs = 3 if hasattr(module, "AuxOutput") else 2  # since torch 2.9 also the largest scores
        patch_attributes(stack, module, flex_attention_hop=_fused(original, outputs, assumptions))
        # PyTorch warns that FlexAttention is not compiled: here torch.compile returns the function itself.
        warnings_shown: set[str] = getattr(module, "_WARNINGS_SHOWN", set())
        patch_attributes(stack, module, _WARNINGS_SHOWN={*warnings_shown, "flex_attention_performance"})


def _fused(original: Callable[..., Any], outputs: int, assumptions: Assumptions) -> Callable[..., Any]:
    import torch

    def flex_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, *rest: Any,
                       **options: Any) -> Any:  # fmt: skip
        if not isinstance(query, fake_tensor_type()):
            return original(query, key, value, score_mod, block_mask, scale, *rest, **options)
        causal = _is_causal(block_mask)
        blocks = "blocks of a causal mask" if causal else "all blocks, whatever the mask skips"
        assumptions.add(_SUBJECT, f"{blocks}, in one fused kernel")
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scale
        )
        lse = lse[..., : query.shape[2]]
        return (out, lse, lse)[:outputs]

    return flex_attention


def _is_causal(block_mask: Any) -> bool:
    """Return whether the mask is true for one block in the first row, two in the second, and so on."""
    import torch

    counts = [each for each in block_mask if isinstance(each, torch.Tensor) and each.dim() == 3]
    values = [true_values(each) if isinstance(each, fake_tensor_type()) else each for each in counts[:2]]
    if not values or any(each is None for each in values):
        return False
    total: Any = sum(values)
    rows = total.shape[-1]
    return rows > 1 and bool((total == torch.arange(1, rows + 1, device="cpu")).all())
