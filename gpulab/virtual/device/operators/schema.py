"""Properties of PyTorch operators, read from their name and schema."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def is_composite(func: Any) -> bool:
    """Return whether PyTorch decomposes the operator into others, which are what a GPU runs."""
    import torch

    if func.namespace != "aten":
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@functools.cache
def launches_nothing(func: Any) -> bool:
    """Return whether the operator only makes a view or allocates memory."""
    schema = func._schema
    if not schema.is_mutable and any(each.alias_info is not None for each in schema.returns):
        return True
    op_name = func.name().partition(".")[0].removeprefix("aten::")
    return op_name in _WITHOUT_KERNEL or reshapes_in_place(func)


_WITHOUT_KERNEL = {
    "detach", "alias", "_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "empty_permuted", "lift_fresh", "_conj", "_neg_view", "resize_", "set_", "resize_as_",
    "_sparse_coo_tensor_unsafe",
}  # fmt: skip
_IN_PLACE_VIEWS = {"t_", "transpose_", "squeeze_", "unsqueeze_", "detach_", "as_strided_", "swapaxes_", "swapdims_"}


@functools.cache
def reshapes_in_place(func: Any) -> bool:
    """Return whether the operator changes the shape of its argument in place, over the same memory."""
    op_name = func.name().partition(".")[0].removeprefix("aten::")
    return bool(func._schema.is_mutable) and op_name in _IN_PLACE_VIEWS


@functools.cache
def may_resize(func: Any) -> bool:
    """Return whether the operator may give an existing tensor more memory."""
    name = func.name()
    return "resize" in name or "out" in name.rpartition(".")[2].split("_") or name.startswith("aten::set_")


def count_flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the FLOPs of an operator by torch.utils.flop_counter; 0 if it does not know the operator."""
    counter = _flop_counters().get(func._overloadpacket)
    if counter is None:
        return 0
    try:
        return int(counter(*args, **kwargs, out_val=out))
    except (AssertionError, ValueError):  # a layout that the counter does not support
        return 0


@functools.cache
def _flop_counters() -> Any:
    from torch.utils.flop_counter import flop_registry

    return flop_registry
