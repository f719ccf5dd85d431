"""True values of small integer and boolean tensors on the virtual GPU, where they follow from the program.

A tensor that a program creates with `arange`, `full` or `zeros`, or copies from the host, has values that do not depend
on any computation in floating point. Such a tensor has a copy of its values on the host, and each operator on such
tensors runs on these copies as well. The copy belongs to the storage: views share it, a write to one of them is a write
to all, and a write of unknown values ends it. Values that depend on floating point are never computed.
"""

from __future__ import annotations

import functools
from typing import Any

from gpulab.capture.protection.guard import is_from_outside
from gpulab.virtual.device.tensors.order_dependence import certain_results, is_order_dependent

MAX_TRUE_ELEMENTS = 2**16  # of a storage; larger tensors have no true values
_ATTRIBUTE = "_gpulab_true_values"  # of PyTorch's storage object, which lives as long as the storage
UNIFORM_ATTRIBUTE = "_gpulab_known"  # of a tensor with one value in all elements, which may be assumed
# In-place operators that do not read their target.
_OVERWRITES = frozenset({"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_", "aten::copy_"})
# Operators that read only sizes and dtype of their first argument.
_SIZE_ONLY = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
# The operand that decides the result whatever the other one is.
_ABSORBING = {
    "logical_or": True, "bitwise_or": True, "__or__": True, "__ior__": True,
    "logical_and": False, "bitwise_and": False, "__and__": False, "__iand__": False, "mul": False,
}  # fmt: skip


class UnknownValuesError(Exception):
    """A tensor among the arguments has no true values."""


_NO_VALUES = (UnknownValuesError, RuntimeError, IndexError, ValueError)


def true_values(tensor: Any) -> Any:
    """Return the values of a GPU tensor as a CPU tensor over its host copy; None if they are unknown."""
    if tensor.dtype not in _exact_dtypes() or tensor.numel() > MAX_TRUE_ELEMENTS:
        return None
    storage = tensor.untyped_storage()
    values = getattr(storage, _ATTRIBUTE, None)
    if values is None or values.nbytes != storage.nbytes():
        return None
    if values.dtype is not tensor.dtype:
        values = values.view(tensor.dtype)
    return values.as_strided(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def forget_values(tensor: Any) -> None:
    """End the true values of the tensor's storage: something unknown was written to it."""
    tensor.untyped_storage().__dict__.pop(_ATTRIBUTE, None)


def set_true_values(tensor: Any, values: Any) -> None:
    """Set the values of a tensor if it covers its storage; `values` is a CPU tensor, which is copied, or a number."""
    import torch

    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    if not _may_have_values(tensor) or elements > MAX_TRUE_ELEMENTS or not _covers_storage(tensor):
        return  # of a part of a storage, the other elements would be unknown
    host_copy = torch.zeros(elements, dtype=tensor.dtype, device="cpu")
    target = host_copy.as_strided(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    if isinstance(values, torch.Tensor):
        target.copy_(values)
    else:
        target.fill_(values)
    setattr(tensor.untyped_storage(), _ATTRIBUTE, host_copy)
    tensor.__dict__.pop(UNIFORM_ATTRIBUTE, None)


def follow_operator(func: Any, args: Any, kwargs: Any, out: Any, gpu_type: Any) -> None:
    """Compute the true values of an operator's results from those of its arguments, or end them where it writes.

    `gpu_type` is the class of tensors on the virtual GPU. Call this after the operator ran.
    """
    written_arguments = _written_arguments(func)
    if written_arguments:
        _follow_write(func, args, kwargs, written_arguments, gpu_type)
    elif not _makes_no_values(func):
        results = [out] if isinstance(out, gpu_type) else out if isinstance(out, list | tuple) else ()
        if any(isinstance(each, gpu_type) and _may_have_values(each) for each in results):
            _follow_results(func, args, kwargs, out, gpu_type)


def _follow_results(func: Any, args: Any, kwargs: Any, out: Any, gpu_type: Any) -> None:
    absorbing = _absorbing_value(func, args, gpu_type)
    if absorbing is not None:
        set_true_values(out, absorbing)
        return
    try:
        values = _run_on_host(func, args, kwargs, gpu_type)
    except _NO_VALUES as error:  # unknown; or the values are wrong, which a GPU reports elsewhere
        if is_from_outside(error):
            raise
        return
    pairs = [(out, values)] if isinstance(out, gpu_type) else list(zip(out, values, strict=True))
    for result, result_values in pairs[: certain_results(func, args, kwargs)]:
        if isinstance(result, gpu_type) and result.shape == result_values.shape and result.dtype is result_values.dtype:
            set_true_values(result, result_values)


def _follow_write(func: Any, args: Any, kwargs: Any, written_arguments: tuple[Any, ...], gpu_type: Any) -> None:
    targets = [
        tensor
        for index, name in written_arguments
        for tensor in _tensors(args[index] if index < len(args) else kwargs.get(name), gpu_type)
    ]
    overwrites = func.name() in _OVERWRITES
    absorbing = _absorbing_value(func, args, gpu_type)
    for target in targets:
        if (overwrites or absorbing is not None) and _may_have_values(target) and _covers_storage(target):
            set_true_values(target, 0 if absorbing is None else absorbing)
    if not any(hasattr(target.untyped_storage(), _ATTRIBUTE) for target in targets):
        return
    try:
        if _does_not_follow(func):
            raise UnknownValuesError
        if absorbing is not None:
            _known_values(targets[0]).fill_(absorbing)
        else:
            _run_on_host(func, args, kwargs, gpu_type)
    except _NO_VALUES as error:
        for target in targets:
            forget_values(target)
        if is_from_outside(error):
            raise


def _absorbing_value(func: Any, args: Any, gpu_type: Any) -> bool | None:
    """Return the result of a logical operator if one operand decides it for all elements; else None."""
    name = func.name().partition(".")[0].removeprefix("aten::")
    value = _ABSORBING.get(name if name.startswith("__") else name.removesuffix("_"))
    if value is None or len(args) < 2 or not all(isinstance(each, gpu_type) for each in args[:2]):
        return None
    exact = _exact_dtypes()
    if any(each.dtype not in exact for each in args[:2]):
        return None
    operands = [true_values(each) for each in args[:2]]
    if all(each is not None for each in operands):
        return None  # computed as usual
    for operand in operands:
        if operand is not None and operand.numel():
            decides = bool(operand.all()) if value else not bool(operand.any())
            if decides and (not value or _is_logical(name, args)):
                return value
    return None


def _is_logical(name: str, args: Any) -> bool:
    """Return whether a true operand makes the result true: not where the bits of other integers remain."""
    import torch

    return name.startswith("logical") or all(each.dtype is torch.bool for each in args[:2])


def _run_on_host(func: Any, args: Any, kwargs: Any, gpu_type: Any) -> Any:
    """Run an operator on true values; raises UnknownValuesError if it has none, or if a GPU may write in any order."""
    host_args = _on_host(func, args, gpu_type)
    if is_order_dependent(func, host_args):
        raise UnknownValuesError
    return func(*host_args, **_options_on_host(kwargs, gpu_type))


def _on_host(func: Any, args: Any, gpu_type: Any) -> list[Any]:
    """Return the arguments with true values in place of GPU tensors; raises UnknownValuesError without them."""
    values = list(args)
    if values and isinstance(values[0], gpu_type) and func.overloadpacket.__name__ in _SIZE_ONLY:
        values[0] = _of_same_size(values[0])
    return [_host_value(each, gpu_type) for each in values]


def _options_on_host(kwargs: Any, gpu_type: Any) -> dict[str, Any]:
    options = {name: _host_value(each, gpu_type) for name, each in kwargs.items() if name != "non_blocking"}
    options.pop("pin_memory", None)
    return options


def _host_value(value: Any, gpu_type: Any) -> Any:
    import torch

    if isinstance(value, gpu_type):
        return _known_values(value)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [_host_value(each, gpu_type) for each in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _known_values(tensor: Any) -> Any:
    values = true_values(tensor)
    if values is None:
        raise UnknownValuesError
    return values


def _of_same_size(tensor: Any) -> Any:
    import torch

    if tensor.numel() > MAX_TRUE_ELEMENTS:
        raise UnknownValuesError
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")


def _tensors(value: Any, gpu_type: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else (value,)
    return [each for each in values if isinstance(each, gpu_type)]


def _may_have_values(tensor: Any) -> bool:
    return tensor.dtype in _exact_dtypes() and tensor.numel() <= MAX_TRUE_ELEMENTS


def _covers_storage(tensor: Any) -> bool:
    """Return whether the tensor has every element of its storage."""
    from gpulab.virtual.device.tensors.tensor_info import is_dense

    size = tensor.numel() * tensor.element_size()
    return bool(size == tensor.untyped_storage().nbytes()) and is_dense(tensor)


@functools.cache
def _exact_dtypes() -> frozenset[Any]:
    import torch

    return frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an operator writes to."""
    arguments = enumerate(func._schema.arguments)
    return tuple((index, each.name) for index, each in arguments if each.alias_info and each.alias_info.is_write)


@functools.cache
def _makes_no_values(func: Any) -> bool:
    """Return whether results have no new values (views), or values that do not follow: random or uninitialised."""
    from gpulab.virtual.device.operators.schema import launches_nothing

    return _does_not_follow(func) or launches_nothing(func)


@functools.cache
def _does_not_follow(func: Any) -> bool:
    """Return whether the values written are random, or those of an operator that is not PyTorch's."""
    import torch

    return func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags
