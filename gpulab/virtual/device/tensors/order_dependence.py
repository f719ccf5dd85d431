"""Operators whose result a GPU may order in its own way: their true values do not follow from those of the arguments.

Where several elements are equal, sort and topk return the index of any of them. Where several indices are equal,
scatter and index_put write the values in any order, and the last one remains.
"""

from __future__ import annotations

from typing import Any

# Only the first result, the values, is the same everywhere; where elements are equal, the indices are not.
_ANY_INDEX = frozenset({"topk", "sort", "kthvalue", "median", "nanmedian", "mode", "argsort", "msort"})
_SCATTERS = frozenset({"scatter", "scatter_"})
_INDEX_WRITES = frozenset({"index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"})
_COPIES = frozenset({"index_copy", "index_copy_", "put", "put_"})


def certain_results(func: Any, args: Any, kwargs: Any) -> int | None:
    """Return how many of an operator's results, counted from the first, are the same everywhere; None for all."""
    name = func.overloadpacket.__name__
    if name in _ANY_INDEX and not (kwargs.get("stable") or (name == "sort" and len(args) > 1 and args[1] is True)):
        return 0 if name == "argsort" else 1
    if name in ("_unique", "_unique2") and len(args) > 1 and not args[1]:
        return 0  # not sorted
    return None


def is_order_dependent(func: Any, args: Any) -> bool:
    """Return whether the order of writes decides the result; `args` are CPU tensors with true values."""
    import torch

    name = func.overloadpacket.__name__
    if name in _SCATTERS and len(args) > 3 and isinstance(args[3], torch.Tensor):
        rows = args[2].sort(dim=args[1]).values if args[2].dim() else args[2].reshape(1)
        return bool((rows.diff(dim=args[1] if args[2].dim() else 0) == 0).any())
    if name in _COPIES:
        index = args[2] if "copy" in name else args[1]
        return bool(len(index.unique()) < index.numel())
    if name in _INDEX_WRITES and args[2].numel() > 1 and not (len(args) > 3 and args[3]):
        indices = [each for each in args[1] if each is not None]
        if all(each.dtype in (torch.bool, torch.uint8) for each in indices):
            return False
        return any(each.dtype in (torch.bool, torch.uint8) for each in indices) or _has_duplicates(indices)
    return False


def _has_duplicates(indices: list[Any]) -> bool:
    import torch

    places = torch.stack([each.reshape(-1) for each in torch.broadcast_tensors(*indices)])  # type: ignore[no-untyped-call]
    if bool((places < 0).any()):  # counted from the end
        return True
    return bool(torch.unique(places, dim=1).shape[1] < places.shape[1])
