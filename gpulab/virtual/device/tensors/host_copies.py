"""Copies between host and virtual GPU: sizes are copied, values are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.tensors import assumed_values
from gpulab.virtual.device.tensors.error_messages import device_mismatch
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type, virtual_device
from gpulab.virtual.device.tensors.pinned import PinnedStorages
from gpulab.virtual.device.tensors.tensor_info import is_dense
from gpulab.virtual.device.tensors.true_values import true_values
from gpulab.virtual.op_log.ops import CopyDirection

_COPY = "aten::copy_"


class CopyOps:
    """Implementations of operators that copy between host and GPU or read values."""

    def __init__(self, assumptions: Assumptions, pinned: PinnedStorages) -> None:
        self._assumptions = assumptions
        self._pinned = pinned

    def overrides(self) -> dict[Any, Any]:
        """Return the implementations by operator."""
        import torch

        aten = torch.ops.aten
        return {
            aten._to_copy.default: self.to_copy,
            aten.copy_.default: self.copy_,
            aten._foreach_copy_.default: self.foreach_copy_,
            aten._local_scalar_dense.default: self.item,
            aten.equal.default: self.equal,
            aten.allclose.default: self.equal,
            aten._amp_foreach_non_finite_check_and_unscale_.default: self.unscale,
            aten._amp_update_scale_.default: self.update_scale,
        }

    def to_copy(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`.to`, `.cuda`, `.cpu`, `.half`, `.float`."""
        import torch

        source, device = args[0], kwargs.get("device")
        dtype = kwargs.get("dtype") or source.dtype
        non_blocking = bool(kwargs.get("non_blocking"))
        if not isinstance(source, fake_tensor_type()):
            strides = _strides(source, kwargs.get("memory_format"))
            copy = mode.fake_like(source, virtual_device(), dtype=dtype, strides=strides)
            mode.storages.allocate(copy, mode.recorder.phase)
            self._record_upload(mode, copy, source, non_blocking)
            if source.numel() == 1 and not source.is_conj():
                assumed_values.set_known_value(
                    copy, source.to(dtype).item()
                )  # the value is known: it comes from the host
            return copy
        if device is None or device.type == "cuda":
            return NotImplemented
        if device.type == "meta":
            return torch.empty_like(source, dtype=dtype, device="meta")
        self._record_download(
            mode, source, source.dtype if not non_blocking else dtype, non_blocking, pinned=non_blocking
        )
        self._note_read(mode, source)
        copy = assumed_values.host_copy(source, self._assumptions, dtype)
        if non_blocking:
            self._pinned.add(copy)
        return copy

    def copy_(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`target.copy_(source)`."""
        target, source = args[0], args[1]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        fake = fake_tensor_type()
        if isinstance(target, fake) and isinstance(source, fake):
            return NotImplemented
        if isinstance(target, fake):
            source.expand(target.shape)  # raises PyTorch's own error if the sizes do not match
            self._record_upload(mode, target, source, non_blocking)
            return target
        pinned = self._pinned.has(target)
        self._record_download(
            mode, source, target.dtype if non_blocking else source.dtype, non_blocking and pinned, pinned
        )
        return target.copy_(assumed_values.host_copy(source, self._assumptions, target.dtype))

    def foreach_copy_(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`torch._foreach_copy_`; one copy per tensor if both host and GPU tensors are involved."""
        fake = fake_tensor_type()
        if all(isinstance(each, fake) for each in (*args[0], *args[1])):
            return NotImplemented
        for target, source in zip(args[0], args[1], strict=True):
            with mode:
                target.copy_(source, *args[2:3])
        return None

    def _record_upload(self, mode: Any, target: Any, source: Any, non_blocking: bool) -> None:
        # PyTorch converts dtypes on the host for blocking copies, on the GPU for non-blocking ones.
        converts_on_gpu = non_blocking and source.dtype != target.dtype
        element_size = (source if converts_on_gpu else target).element_size()
        size, pinned = target.numel() * element_size, self._pinned.has(source)
        mode.recorder.copy(_COPY, CopyDirection.HOST_TO_DEVICE, size, pinned=pinned, non_blocking=non_blocking)
        if converts_on_gpu:
            mode.recorder.op(_COPY, (target,), {}, target)

    def _record_download(self, mode: Any, source: Any, dtype: Any, non_blocking: bool, pinned: bool) -> None:
        size = source.numel() * dtype.itemsize
        mode.recorder.copy(_COPY, CopyDirection.DEVICE_TO_HOST, size, pinned=pinned, non_blocking=non_blocking)

    def item(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """`.item()`, float(), bool(), if."""
        mode.recorder.copy("aten::_local_scalar_dense", CopyDirection.DEVICE_TO_HOST, args[0].element_size())
        self._note_read(mode, args[0])
        return assumed_values.item_value(args[0], self._assumptions)

    @staticmethod
    def _note_read(mode: Any, tensor: Any) -> None:
        """Note for the loop guard whether the program reads true or assumed values."""
        if true_values(tensor) is None:
            mode.recorder.loops.read_assumed_value()
        else:
            mode.recorder.loops.read_true_value()

    def equal(self, mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
        """`torch.equal`."""
        if args[0].device != args[1].device:
            raise device_mismatch(func, args[:2])
        if tuple(args[0].shape) != tuple(args[1].shape):
            return False
        mode.recorder.op("aten::eq", args[:2], {}, ())
        mode.recorder.copy("aten::equal", CopyDirection.DEVICE_TO_HOST, 1)
        values, other_values = true_values(args[0]), true_values(args[1])
        if values is not None and other_values is not None:
            return bool(func(values, other_values, *args[2:], **kwargs))
        self._assumptions.add("whether two tensors are equal, as with torch.equal", "True")
        return True

    def unscale(self, mode: Any, func: Any, args: Any, kwargs: Any) -> None:
        """GradScaler unscales gradients and checks for infinities."""
        mode.record(func, args, kwargs, ())
        self._assumptions.add("whether gradients are infinite, as GradScaler checks", "none")
        assumed_values.set_known_value(args[1], 0.0, by_current_op=True)

    def update_scale(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """GradScaler updates its scale."""
        scale = assumed_values.known_value(args[0])
        mode.record(func, args, kwargs, args[0])
        assumed_values.set_known_value(args[0], scale or 65536.0, by_current_op=True)
        return args[0]


def _strides(tensor: Any, layout: Any) -> Sequence[int]:
    import torch

    if layout in (torch.channels_last, torch.channels_last_3d):
        return torch._prims_common.make_channels_last_strides_for(tuple(tensor.shape))
    preserves = layout in (None, torch.preserve_format)
    if preserves and is_dense(tensor):
        return tuple(tensor.stride())
    return torch._prims_common.make_contiguous_strides_for(tuple(tensor.shape))
