"""What an operator gives for arguments of the same sizes, remembered: working it out takes PyTorch a long time."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from gpulab.virtual.device.operators.naming import details, told_name
from gpulab.virtual.device.tensors.tensor_info import longest, seen
from gpulab.virtual.op_log.ops import Tensor

MOST = 50_000  # outcomes remembered
_PLAIN = (int, float, bool, str, type(None))


@dataclass(slots=True)
class Outcome:
    """One operator with arguments of given sizes: its results, and what is written down of it."""

    made: tuple[Any, ...]  # (sizes, strides, type, offset or -1 for a tensor of its own), or None
    how: str  # "one", "tuple", "list", "given" (its own argument, changed in place) or "nothing"
    given: int  # of "given": which argument; of views: whose memory
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: int
    view: bool
    lists: int
    details: tuple[tuple[str, str], ...]


def outcome_of(
    func: Any, args: Any, kwargs: Any, given: list[Any], made: list[Any], *, flops: int, view: bool,
    again: tuple[tuple[Any, ...], str, int] = ((), "", -1),
) -> Outcome:  # fmt: skip
    """What is written down of an operator with these tensors of ours given and made; `again`: as `learned` has it."""
    name = told_name(func.name().partition(".")[0], args)
    listed = "_foreach_" in name or "_fused_" in name or "_amp_" in name
    return Outcome(
        *again,
        name=name,
        inputs=tuple([seen(each) for each in given]),
        outputs=tuple([seen(each) for each in made]),
        flops=flops,
        view=view or (bool(made) and not any(each.numel() for each in made)),
        lists=longest([*args, *kwargs.values()]) if listed else 0,
        details=details(name, args, kwargs),
    )


def key_of(func: Any, args: Any, kwargs: Any, kind: Any) -> Any:
    """What an outcome depends on; None where that cannot be told in short. `kind` is the type of our tensors."""
    found: list[Any] = [func]
    if not _add(found, args, kind):
        return None
    if kwargs:
        for name, value in kwargs.items():
            found.append(name)
            if not _add(found, (value,), kind):
                return None
    return tuple(found)


def _add(found: list[Any], values: Any, kind: Any) -> bool:
    others = _others()
    for value in values:
        what = type(value)
        if what is kind:
            if value.dtype.is_complex or value.layout is not others[-1]:
                return False
            found.append((value.shape, value.stride(), value.dtype, value.storage_offset(), value.fake_device.type))
        elif what in _PLAIN:
            found.append((what, value))
        elif what is list or what is tuple:
            found.append(len(value))
            if not _add(found, value, kind):
                return False
        elif what in others:
            found.append(value)
        else:
            return False
    return True


@functools.cache
def _others() -> tuple[Any, ...]:
    import torch

    kinds = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size)
    return (*kinds, torch.strided)


def learned(args: Any, out: Any, fakes: list[Any]) -> tuple[tuple[Any, ...], str, int] | None:
    """How a result can be made again from its sizes alone: (made, how, given); None where it cannot."""
    if out is None:
        return (), "nothing", -1
    for place, each in enumerate(args):
        if out is each:
            return (), "given", place
    results = out if isinstance(out, list | tuple) else (out,)
    how = "list" if isinstance(out, list) else "tuple" if isinstance(out, tuple) else "one"
    owners = {each.untyped_storage()._cdata for each in fakes}
    first = args[0].untyped_storage()._cdata if args and type(args[0]) in {type(each) for each in fakes} else None
    made: list[Any] = []
    own: set[int] = set()
    for each in results:
        if each is None:
            made.append(None)
            continue
        if any(each is fake for fake in fakes) or not hasattr(each, "fake_mode") or each.dtype.is_complex:
            return None
        storage = each.untyped_storage()._cdata
        shared = storage == first
        if (storage in owners and not shared) or storage in own or each.is_neg():
            return None
        if not shared:
            own.add(storage)
            if each.storage_offset():
                return None
        offset = each.storage_offset() if shared else -1
        made.append((tuple(each.shape), tuple(each.stride()), each.dtype, offset))
    return tuple(made), how, 0


def again(mode: Any, kind: Any, outcome: Outcome, args: Any, device: Any) -> Any:
    """The result, made from its sizes."""
    import torch
    from torch._subclasses.fake_tensor import in_kernel_invocation_manager

    if outcome.how == "nothing":
        return None
    if outcome.how == "given":
        return args[outcome.given]
    results: list[Any] = []
    with in_kernel_invocation_manager(mode):
        for each in outcome.made:
            if each is None:
                results.append(None)
                continue
            sizes, strides, dtype, offset = each
            if offset < 0:
                results.append(torch.empty_strided(sizes, strides, dtype=dtype, device="meta"))
            else:
                results.append(_view(args[0], sizes, strides, dtype, offset))
    results = [None if each is None else kind(mode, each, device) for each in results]
    if outcome.how == "one":
        return results[0]
    return results if outcome.how == "list" else tuple(results)


def _view(of: Any, sizes: Any, strides: Any, dtype: Any, offset: int) -> Any:
    """A view is an inference tensor where what it is of is one, wherever it is made; autograd insists on that."""
    import torch

    inference = of.is_inference()
    with nullcontext() if inference == torch.is_inference_mode_enabled() else torch.inference_mode(inference):
        return torch.empty(0, dtype=dtype, device="meta").set_(of.untyped_storage(), offset, sizes, strides)
