"""Cache of operator results by argument sizes: PyTorch's shape rules are slow."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from gpulab.virtual.device.operators.profiler_names import cost_model_details, profiler_name
from gpulab.virtual.device.tensors.tensor_info import describe_tensor, longest_list_length
from gpulab.virtual.op_log.ops import TensorInfo

MAX_OUTCOMES = 50_000  # cached outcomes
_SCALARS = (int, float, bool, str, type(None))


@dataclass(slots=True)
class OpOutcome:
    """An operator with arguments of given sizes: how to make its results again, and its op log record."""

    result_recipes: tuple[Any, ...]  # (sizes, strides, dtype, storage offset, or -1 for a new storage), or None
    result_form: str  # "one", "tuple", "list", "given" (an argument, changed in place) or "nothing"
    source_index: int  # index of the argument that is returned (`how` is "given") or viewed
    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    flops: int
    is_view: bool
    list_length: int
    details: tuple[tuple[str, str], ...]


def op_outcome(
    func: Any, args: Any, kwargs: Any, inputs: list[Any], results: list[Any], *, flops: int, is_view: bool,
    recipe: tuple[tuple[Any, ...], str, int] = ((), "", -1),
) -> OpOutcome:  # fmt: skip
    """Return the outcome of an operator with these GPU tensors as inputs and results; `again` comes from `learned`."""
    name = profiler_name(func.name().partition(".")[0], args)
    takes_lists = "_foreach_" in name or "_fused_" in name or "_amp_" in name
    return OpOutcome(
        *recipe,
        name=name,
        inputs=tuple([describe_tensor(each) for each in inputs]),
        outputs=tuple([describe_tensor(each) for each in results]),
        flops=flops,
        is_view=is_view or (bool(results) and not any(each.numel() for each in results)),
        list_length=longest_list_length([*args, *kwargs.values()]) if takes_lists else 0,
        details=cost_model_details(name, args, kwargs),
    )


def cache_key(func: Any, args: Any, kwargs: Any, tensor_type: Any) -> Any:
    """Return the cache key of a call; None if it cannot be cached. `kind` is the type of GPU tensors."""
    parts: list[Any] = [func]
    if not _extend_key(parts, args, tensor_type):
        return None
    if kwargs:
        for name, value in kwargs.items():
            parts.append(name)
            if not _extend_key(parts, (value,), tensor_type):
                return None
    return tuple(parts)


def _extend_key(parts: list[Any], values: Any, kind: Any) -> bool:
    hashable_types = _hashable_types()
    for value in values:
        value_type = type(value)
        if value_type is kind:
            if value.dtype.is_complex or value.layout is not hashable_types[-1]:
                return False
            parts.append((value.shape, value.stride(), value.dtype, value.storage_offset(), value.fake_device.type))
        elif value_type in _SCALARS:
            parts.append((value_type, value))
        elif value_type is list or value_type is tuple:
            parts.append(len(value))
            if not _extend_key(parts, value, kind):
                return False
        elif value_type in hashable_types:
            parts.append(value)
        else:
            return False
    return True


@functools.cache
def _hashable_types() -> tuple[Any, ...]:
    import torch

    kinds = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size)
    return (*kinds, torch.strided)


def result_recipe(args: Any, out: Any, fakes: list[Any]) -> tuple[tuple[Any, ...], str, int] | None:
    """Return how to make a result again from sizes alone: (made, how, given); None if that is impossible."""
    if out is None:
        return (), "nothing", -1
    for index, value in enumerate(args):
        if out is value:
            return (), "given", index
    results = out if isinstance(out, list | tuple) else (out,)
    form = "list" if isinstance(out, list) else "tuple" if isinstance(out, tuple) else "one"
    input_storages = {each.untyped_storage()._cdata for each in fakes}
    first_storage = (
        args[0].untyped_storage()._cdata if args and type(args[0]) in {type(each) for each in fakes} else None
    )
    recipe: list[Any] = []
    new_storages: set[int] = set()
    for value in results:
        if value is None:
            recipe.append(None)
            continue
        if any(value is fake for fake in fakes) or not hasattr(value, "fake_mode") or value.dtype.is_complex:
            return None
        storage = value.untyped_storage()._cdata
        shared = storage == first_storage
        if (storage in input_storages and not shared) or storage in new_storages or value.is_neg():
            return None
        if not shared:
            new_storages.add(storage)
            if value.storage_offset():
                return None
        offset = value.storage_offset() if shared else -1
        recipe.append((tuple(value.shape), tuple(value.stride()), value.dtype, offset))
    return tuple(recipe), form, 0


def rebuild_result(mode: Any, tensor_type: Any, outcome: OpOutcome, args: Any, device: Any) -> Any:
    """Make the results of a cached outcome."""
    import torch
    from torch._subclasses.fake_tensor import in_kernel_invocation_manager

    if outcome.result_form == "nothing":
        return None
    if outcome.result_form == "given":
        return args[outcome.source_index]
    results: list[Any] = []
    with in_kernel_invocation_manager(mode):
        for recipe in outcome.result_recipes:
            if recipe is None:
                results.append(None)
                continue
            sizes, strides, dtype, offset = recipe
            if offset < 0:
                results.append(torch.empty_strided(sizes, strides, dtype=dtype, device="meta"))
            else:
                results.append(_view(args[0], sizes, strides, dtype, offset))
    results = [None if each is None else tensor_type(mode, each, device) for each in results]
    if outcome.result_form == "one":
        return results[0]
    return results if outcome.result_form == "list" else tuple(results)


def _view(source: Any, sizes: Any, strides: Any, dtype: Any, offset: int) -> Any:
    """Make a view; autograd requires that a view of an inference tensor is an inference tensor, too."""
    import torch

    inference = source.is_inference()
    with nullcontext() if inference == torch.is_inference_mode_enabled() else torch.inference_mode(inference):
        return torch.empty(0, dtype=dtype, device="meta").set_(source.untyped_storage(), offset, sizes, strides)
