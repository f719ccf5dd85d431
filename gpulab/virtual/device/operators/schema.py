"""What is known of an operator of PyTorch from its name and schema."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def composite(func: Any) -> bool:
    """Whether PyTorch makes it of other operators, which are what a GPU runs."""
    import torch

    if func.namespace != "aten":
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@functools.cache
def launches_nothing(func: Any) -> bool:
    """Whether it only makes a view, or only takes memory."""
    schema = func._schema
    if not schema.is_mutable and any(each.alias_info is not None for each in schema.returns):
        return True
    bare = func.name().partition(".")[0].removeprefix("aten::")
    return bare in _NOTHING or reshapes(func)


_NOTHING = {
    "detach", "alias", "_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "empty_permuted", "lift_fresh", "_conj", "_neg_view", "resize_", "set_", "resize_as_",
    "_sparse_coo_tensor_unsafe",
}  # fmt: skip
_ONLY_SHAPES = {"t_", "transpose_", "squeeze_", "unsqueeze_", "detach_", "as_strided_", "swapaxes_", "swapdims_"}


@functools.cache
def reshapes(func: Any) -> bool:
    """Whether it gives a tensor that exists another shape over the same memory."""
    bare = func.name().partition(".")[0].removeprefix("aten::")
    return bool(func._schema.is_mutable) and bare in _ONLY_SHAPES


@functools.cache
def resizes(func: Any) -> bool:
    """Whether it may give a tensor that exists more memory."""
    name = func.name()
    return "resize" in name or "out" in name.rpartition(".")[2].split("_") or name.startswith("aten::set_")


def counted_flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """As torch.utils.flop_counter counts an operator's work; 0 for what it does not count."""
    counter = _flop_counters().get(func._overloadpacket)
    if counter is None:
        return 0
    try:
        return int(counter(*args, **kwargs, out_val=out))
    except (AssertionError, ValueError):  # a layout that it does not know
        return 0


@functools.cache
def _flop_counters() -> Any:
    from torch.utils.flop_counter import flop_registry

    return flop_registry
