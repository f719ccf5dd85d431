"""Operators whose result size depends on values: half of the elements are assumed, and stated as an assumption."""

from __future__ import annotations

from math import prod
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.tensors import assumed_values
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type, virtual_device
from gpulab.virtual.device.tensors.true_values import true_values
from gpulab.virtual.op_log.ops import CopyDirection

_HALF = "half of the elements"


class DataDependentOps:
    """Implementations of the operators whose result size depends on values."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions

    def overrides(self) -> dict[Any, Any]:
        """Return the implementations by operator."""
        import torch

        aten = torch.ops.aten
        return {
            aten.nonzero.default: self.nonzero,
            aten.masked_select.default: self.masked_select,
            aten._unique2.default: self.unique,
            aten._unique.default: self.unique,
            aten.unique_consecutive.default: self.unique,
            aten.unique_dim.default: self.unique_dim,
            aten.unique_dim_consecutive.default: self.unique_dim,
            aten.repeat_interleave.Tensor: self.repeat_interleave,
            aten.bincount.default: self.bincount,
            aten.histc.default: self.histc,
            aten.index.Tensor: self.index,
            aten._unsafe_index.Tensor: self.index,
            aten.index_put_.default: self.index_put,
            aten.index_put.default: self.index_put,
            aten._index_put_impl_.default: self.index_put,
            aten._pack_padded_sequence.default: self.pack_padded_sequence,
        }

    def _count(self, tensor: Any, subject: str) -> int:
        values = true_values(tensor)
        if values is not None:
            return int(values.count_nonzero())
        value = assumed_values.known_value(tensor)
        if isinstance(value, bool):
            return int(tensor.numel()) if value else 0
        self._assumptions.add(subject, _HALF)
        return -(-int(tensor.numel()) // 2)

    def _record_with_count(self, mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """Record the operator, and the copy with which the host reads the number of results."""
        name = func.name().partition(".")[0]
        mode.recorder.op(name, args, kwargs, out)
        mode.recorder.copy(name, CopyDirection.DEVICE_TO_HOST, 8)
        return out

    def nonzero(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Indices of nonzero elements."""
        import torch

        count = self._count(args[0], "how many elements are nonzero or true, as with nonzero and where")
        sizes = (count, args[0].dim())
        return self._record_with_count(mode, func, args, kwargs, mode.allocate(args[0], sizes, torch.int64))

    def masked_select(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """The elements under a mask."""
        import torch

        elements = prod(torch.broadcast_shapes(args[0].shape, args[1].shape))  # type: ignore[no-untyped-call]
        count = self._count(args[1], "how many elements a mask selects")
        selected = count * elements // max(1, args[1].numel())
        return self._record_with_count(mode, func, args, kwargs, mode.allocate(args[0], (selected,)))

    def unique(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Unique values of a tensor."""
        import torch

        source = args[0]
        values = true_values(source)
        if values is not None:
            count = len((values.unique_consecutive if "consecutive" in func.name() else values.unique)())
        else:
            self._assumptions.add("how many values differ, as with unique", _HALF)
            count = -(-int(source.numel()) // 2)
        counts = source if not func.name().startswith("aten::_unique") or "2" in func.name() else None
        out = [mode.allocate(source, (count,)), mode.allocate(source, tuple(source.shape), torch.int64)]
        if counts is not None:
            out.append(mode.allocate(source, (count,), torch.int64))
        return self._record_with_count(mode, func, args, kwargs, tuple(out))

    def unique_dim(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Unique slices of a tensor."""
        import torch

        source, dim = args[0], args[1] % args[0].dim()
        self._assumptions.add("how many values differ, as with unique", _HALF)
        sizes = list(source.shape)
        size, sizes[dim] = sizes[dim], -(-sizes[dim] // 2)
        values = mode.allocate(source, tuple(sizes))
        inverse = mode.allocate(source, (size,), torch.int64)
        counts = mode.allocate(source, (sizes[dim],), torch.int64)
        return self._record_with_count(mode, func, args, kwargs, (values, inverse, counts))

    def repeat_interleave(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`repeat_interleave` with the repeats in a tensor."""
        size = kwargs.get("output_size")
        repeats = true_values(args[0])
        if size is None and repeats is not None:
            size = int(repeats.sum())
        if size is None:
            self._assumptions.add("how often repeat_interleave repeats", "once each")
            return self._record_with_count(mode, func, args, kwargs, mode.allocate(args[0], tuple(args[0].shape)))
        out = mode.allocate(args[0], (int(size),))
        mode.recorder.op("aten::repeat_interleave", args, kwargs, out)
        return out

    def bincount(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`bincount`: the size of the result depends on the largest value."""
        import torch

        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        values = true_values(args[0])
        if values is not None:
            least = max(least, int(values.max()) + 1 if values.numel() else 0)
        else:
            self._assumptions.add("the largest value that bincount reads", f"{max(least, 1) - 1}")
            least = max(least, 1)
        out = mode.allocate(args[0], (least,), torch.int64 if weights is None else weights.dtype)
        return self._record_with_count(mode, func, args, kwargs, out)

    def histc(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`histc`: a histogram with a fixed number of bins."""
        bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
        out = mode.allocate(args[0], (bins,))
        mode.recorder.op("aten::histc", args, kwargs, out)
        return out

    def index(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`tensor[...]` with tensors as indices."""
        indices = self._integer_indices(mode, args[1])
        source = args[0]
        if not isinstance(source, fake_tensor_type()):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        new_args = (source, indices, *args[2:])
        out = mode.infer_result(func, (), new_args, kwargs)
        mode.record(func, new_args, kwargs, out)
        return out

    def index_put(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`tensor[...] = values` with tensors as indices."""
        import torch

        target, indices, values = args[0], args[1], args[2]
        if not isinstance(values, fake_tensor_type()) and values.dim() == 0 and len(indices) == 1:
            mask = indices[0]
            if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and func.name().endswith("_"):
                with mode:
                    mode._inner.depth = 0
                    return target.masked_fill_(mask, values)  # PyTorch does the same
        if not isinstance(values, fake_tensor_type()):
            values = mode.fake_like(values, torch.device("cpu"))
        new_args = (target, self._integer_indices(mode, indices), values, *args[3:])
        out = mode.infer_result(func, (), new_args, kwargs)
        mode.record(func, new_args, kwargs, out)
        return out

    def _integer_indices(self, mode: Any, indices: Any) -> list[Any]:
        """Return indices on the GPU without masks: PyTorch calls nonzero for each mask."""
        import torch

        converted: list[Any] = []
        for index in indices:
            if index is None:
                converted.append(None)
                continue
            if not isinstance(index, fake_tensor_type()):
                if index.dtype in (torch.bool, torch.uint8):
                    converted += list(index.nonzero().unbind(1))
                    continue
                mode.recorder.copy("aten::copy_", CopyDirection.HOST_TO_DEVICE, index.numel() * index.element_size())
                converted.append(mode.fake_like(index, virtual_device()))
            elif index.dtype in (torch.bool, torch.uint8):
                rows = self.nonzero(mode, torch.ops.aten.nonzero.default, (index,), {})
                sizes = (int(rows.shape[0]),)
                strides = (1,)
                converted += [
                    mode.fake_like(rows, virtual_device(), sizes=sizes, strides=strides) for _ in range(index.dim())
                ]
            else:
                converted.append(index)
        return [
            mode.fake_like(each, virtual_device())
            if isinstance(each, torch.Tensor) and each.device.type == "cpu"
            else each
            for each in converted
        ]

    def pack_padded_sequence(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`pack_padded_sequence`: the lengths are on the host and known."""
        import torch

        source, lengths = args[0], args[1]
        longest = int(lengths[0]) if lengths.numel() else 0
        sizes = [int((lengths > step).sum()) for step in range(longest)]
        packed = mode.allocate(source, (sum(sizes), *source.shape[2:]))
        mode.recorder.op("aten::_pack_padded_sequence", (source,), {}, packed)
        return packed, torch.tensor(sizes, dtype=torch.int64)
