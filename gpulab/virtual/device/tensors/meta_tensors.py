"""Meta tensors in place of GPU tensors: record every operator on them.

The meta device is a public part of every PyTorch; its tensors have sizes but no values. It needs no change of PyTorch
internals, so it works with versions that the virtual GPU's own tensors do not support.
gpulab.virtual.device.counting_device lists what is not covered.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.operators.schema import count_flops, is_composite
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.tensors import assumed_values, true_values
from gpulab.virtual.device.tensors.error_messages import in_place_result, invalid_device_index, unsupported_operator
from gpulab.virtual.device.tensors.memory_formats import with_gpu_memory_format
from gpulab.virtual.device.tensors.op_cache import op_outcome
from gpulab.virtual.device.tensors.pinned import PinnedStorages
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.tensors.tensor_info import tensors_in
from gpulab.virtual.device.torch_api import distributed
from gpulab.virtual.op_log.ops import CopyDirection

_COPY = "aten::copy_"


class MetaDispatch:
    """Dispatch of every operator on meta tensors; a mixin of torch's TorchDispatchMode, see `meta_mode`."""

    recorder: OpRecorder
    storages: StorageMemory
    assumptions: Assumptions
    pinned: PinnedStorages
    closed = False
    inference_depth = 0  # > 0 while PyTorch computes a result: it must then see the meta device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs) if kwargs else {}
        if self.closed:  # in a thread that outlives the virtual GPU
            return func(*args, **kwargs)
        out = self._run(func, args, kwargs)
        if not is_composite(func) and not self.inference_depth:
            true_values.follow_operator(func, args, kwargs, out, meta_tensor_type())
        return out

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            if device.index not in (None, 0):
                raise invalid_device_index()
            kwargs = {**kwargs, "device": meta_device()}
            device = meta_device()
        tensors = tensors_in([*args, *kwargs.values()])
        metas = [each for each in tensors if is_meta(each)]
        if not metas and (device is None or device.type != "meta"):
            return self._run_on_cpu(func, args, kwargs)
        if is_composite(func):
            with self:  # type: ignore[attr-defined]
                return func.decompose(*args, **kwargs)
        special = _specials().get(func)
        if special is not None:
            out = special(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        out = self._infer_result(func, args, kwargs)
        self._record(func, args, kwargs, metas, out)
        return out

    def _run_on_cpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        pin_memory = kwargs.pop("pin_memory", False)
        out = func(*args, **kwargs)
        if pin_memory:
            self.pinned.add(out)
        return out

    def _infer_result(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.inference_depth += 1
        try:
            return with_gpu_memory_format(func, args, func(*args, **kwargs), _strided)
        except NotImplementedError as error:
            changed = in_place_result(func, args)
            if changed is None:
                raise unsupported_operator(func.name()) from error
            return changed[0]
        finally:
            self.inference_depth -= 1

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any], metas: list[Any], out: Any) -> None:
        phase = self.recorder.phase
        self.storages.memory.enter_phase(phase)
        results = [result for result in tensors_in(out if isinstance(out, list | tuple) else (out,)) if is_meta(result)]
        for result in results:
            self.storages.reallocate(result, phase)
        flops = count_flops(func, args, kwargs, out)
        self.recorder.record_outcome(
            op_outcome(func, args, kwargs, metas, results, flops=flops, is_view=_is_view(func)), phase
        )
        if len(results) == 1 and results[0] is out:
            assumed_values.infer_known_value(func.name(), args, out)

    # Operators that need values.

    def to_copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`.to`, `.cuda`, `.cpu`."""
        source, device = args[0], kwargs.get("device")
        if is_meta(source):
            if device is None or device.type == "meta":
                return NotImplemented
            self._record_download(source)
            return assumed_values.host_copy(source, self.assumptions, kwargs.get("dtype"))
        copy = func(*args, **kwargs)
        self.storages.allocate(copy, self.recorder.phase)
        self._record_upload(copy, source, bool(kwargs.get("non_blocking")))
        if source.numel() == 1:
            assumed_values.set_known_value(copy, source.to(copy.dtype).item())
        return copy

    def copy_(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`target.copy_(source)`."""
        target, source = args[0], args[1]
        if is_meta(target) and is_meta(source):
            return NotImplemented
        if is_meta(target):
            self._record_upload(target, source, bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False)))
            return target
        self._record_download(source)
        return target.copy_(assumed_values.host_copy(source, self.assumptions, target.dtype))

    def item(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`.item()`, float(), bool(), if."""
        self.recorder.copy("aten::_local_scalar_dense", CopyDirection.DEVICE_TO_HOST, args[0].element_size())
        loops = self.recorder.loops
        (loops.read_assumed_value if true_values.true_values(args[0]) is None else loops.read_true_value)()
        return assumed_values.item_value(args[0], self.assumptions)

    def nonzero(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Indices of nonzero elements."""
        import torch

        out = torch.empty((self._true_count(args[0]), args[0].dim()), dtype=torch.int64, device="meta")
        self._record(func, args, kwargs, [args[0]], out)
        self.recorder.copy("aten::nonzero", CopyDirection.DEVICE_TO_HOST, 8)
        return out

    def masked_select(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The elements under a mask."""
        import torch

        elements = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape))  # type: ignore[no-untyped-call]
        out = torch.empty(
            (self._true_count(args[1]) * elements // max(1, args[1].numel()),), dtype=args[0].dtype, device="meta"
        )
        self._record(func, args, kwargs, [each for each in args if is_meta(each)], out)
        self.recorder.copy("aten::masked_select", CopyDirection.DEVICE_TO_HOST, 8)
        return out

    def masked_index(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`tensor[mask]`, read or written: PyTorch first calls nonzero on the mask."""
        import torch

        kinds = torch.bool, torch.uint8
        masks = [index for index in args[1] if index is not None and index.dtype in kinds and is_meta(index)]
        if not masks:
            return NotImplemented
        indices: list[Any] = []
        for index in args[1]:
            if any(index is mask for mask in masks):
                indices += self.nonzero(torch.ops.aten.nonzero.default, (index,), {}).unbind(1)
            else:
                indices.append(index)
        new_args = (args[0], indices, *args[2:])
        out = self._infer_result(func, new_args, kwargs)
        self._record(func, new_args, kwargs, [index for index in tensors_in(new_args) if is_meta(index)], out)
        return out

    def _true_count(self, tensor: Any) -> int:
        values = true_values.true_values(tensor)
        if values is not None:
            return int(values.count_nonzero())
        value = assumed_values.known_value(tensor)
        if isinstance(value, bool):
            return int(tensor.numel()) if value else 0
        self.assumptions.add("how many elements are nonzero or true, as with masks", "half of the elements")
        return -(-int(tensor.numel()) // 2)

    def softmax(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Softmax from half precision to float32 in one kernel; the shape rule supports it only for some dtypes."""
        import torch

        if not args[2]:
            return NotImplemented
        out = torch.empty_like(args[0], dtype=torch.float32, device="meta")
        self._record(func, args, kwargs, [args[0]], out)
        return out

    def unscale(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """GradScaler unscales gradients and checks for infinities."""
        self._record(func, args, kwargs, [each for each in tensors_in(args) if is_meta(each)], None)
        self.assumptions.add("whether gradients are infinite, as GradScaler checks", "none")
        assumed_values.set_known_value(args[1], 0.0, by_current_op=True)

    def update_scale(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """GradScaler updates its scale."""
        scale = assumed_values.known_value(args[0])
        self._record(func, args, kwargs, [each for each in tensors_in(args) if is_meta(each)], args[0])
        assumed_values.set_known_value(args[0], scale or 65536.0, by_current_op=True)
        return args[0]

    def _record_upload(self, target: Any, source: Any, non_blocking: bool) -> None:
        size, pinned = target.numel() * target.element_size(), self.pinned.has(source)
        self.recorder.copy(_COPY, CopyDirection.HOST_TO_DEVICE, size, pinned=pinned, non_blocking=non_blocking)

    def _record_download(self, source: Any) -> None:
        self.recorder.copy(_COPY, CopyDirection.DEVICE_TO_HOST, source.numel() * source.element_size())


@functools.cache
def meta_mode() -> Any:
    """Return the class of the dispatch mode."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return type("CountingMode", (MetaDispatch, TorchDispatchMode), {})


@functools.cache
def meta_device() -> Any:
    """Return PyTorch's meta device."""
    import torch

    return torch.device("meta")


def _strided(tensor: Any, strides: tuple[int, ...]) -> Any:
    import torch

    return torch.empty_strided(tuple(tensor.shape), strides, dtype=tensor.dtype, device="meta")


@functools.cache
def meta_tensor_type() -> Any:
    """Return a class to which isinstance assigns all meta tensors."""
    import torch

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and is_meta(value)

    return Kind("MetaTensor", (), {})


def is_meta(tensor: Any) -> bool:
    """Return whether a tensor is a meta tensor; programs see its device as cuda:0."""
    return bool(_is_meta()(tensor))


@functools.cache
def _is_meta() -> Any:
    import torch

    return torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]


@functools.cache
def _specials() -> Any:
    import torch

    aten = torch.ops.aten
    functions = {
        "_to_copy": MetaDispatch.to_copy,
        "copy_": MetaDispatch.copy_,
        "_local_scalar_dense": MetaDispatch.item,
        "_softmax": MetaDispatch.softmax,
        "_log_softmax": MetaDispatch.softmax,
        "_amp_foreach_non_finite_check_and_unscale_": MetaDispatch.unscale,
        "_amp_update_scale_": MetaDispatch.update_scale,
        "nonzero": MetaDispatch.nonzero,
        "masked_select": MetaDispatch.masked_select,
        "index_put": MetaDispatch.masked_index,
        "index_put_": MetaDispatch.masked_index,
        "_index_put_impl_": MetaDispatch.masked_index,
    }
    implementations = {
        getattr(aten, name).default: special for name, special in functions.items() if hasattr(aten, name)
    }
    return {**distributed.overrides(), **implementations, aten.index.Tensor: MetaDispatch.masked_index}


@functools.cache
def _is_view(func: Any) -> bool:
    schema = func._schema
    return not schema.is_mutable and any(each.alias_info is not None for each in schema.returns)
