"""Whether PyTorch's flash kernel takes a call of scaled_dot_product_attention, and its reasons if not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

_NO_REASON = "Flash attention kernel not used because"
_PLACE = " (Triggered internally at"


@dataclass(frozen=True, kw_only=True)
class FlashVerdict:
    """Whether the flash kernel runs for a call."""

    runs: bool
    reasons: tuple[str, ...] = ()


def flash_verdict(call: Callable[[], object]) -> FlashVerdict:
    """Run a call with the flash kernel only, and return whether it runs; PyTorch says why not in warnings."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                call()
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            texts = [str(each.message).partition(_PLACE)[0].strip() for each in caught]
            reasons = tuple(text for text in texts if not text.startswith(_NO_REASON))
            return FlashVerdict(runs=False, reasons=reasons or ("PyTorch gives no reason.",))
    return FlashVerdict(runs=True)
