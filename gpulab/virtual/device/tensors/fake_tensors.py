"""Tensors of the virtual GPU: PyTorch's fake tensors on cuda:0, next to real tensors on the CPU.

In C++ such a tensor is on the meta device, which needs no CUDA, but has the dispatch keys of CUDA, so autograd and
autocast treat it as a CUDA tensor. Python sees cuda:0. Operators without such a tensor run for real.
"""

from __future__ import annotations

import functools
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gpulab.virtual.device.operators.run_on_zeros import on_zeros
from gpulab.virtual.device.operators.schema import composite, counted_flops, launches_nothing, reshapes, resizes
from gpulab.virtual.device.recorder import Recorder
from gpulab.virtual.device.tensors import assumed_values, op_cache
from gpulab.virtual.device.tensors.error_messages import (
    no_such_device,
    not_a_view,
    on_two_devices,
    outlived,
    reworded,
    unsupported,
    written,
)
from gpulab.virtual.device.tensors.layouts import mended
from gpulab.virtual.device.tensors.storages import Storages
from gpulab.virtual.device.tensors.tensor_info import tensors_in
from gpulab.virtual.device.torch_api.per_thread import of_thread

Special = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_OUTCOMES: dict[Any, op_cache.Outcome] = {}  # shared by all virtual GPUs: outcomes depend on sizes only
_KNOWN_VALUE_DTYPES = frozenset({"bool", "float32", "float64", "int32", "int64"})
_GEMMS = re.compile(r"aten::(mm|addmm|bmm|baddbmm|mv|dot|convolution|convolution_backward)(\.|$)")
TOLD_NS = 5_000  # shorter operators on CPU tensors count as Python time of the program


class Fakes:
    """Dispatch of every operator on the virtual GPU; a mixin of torch's FakeTensorMode, see `fake_mode`."""

    avoid_device_init = True
    enter_stack = of_thread("enter_stack", list)
    in_kernel_invocation = of_thread("in_kernel_invocation", bool)
    old_dispatch_mode_flags = of_thread("old_dispatch_mode_flags", deque)
    old_non_infra_dispatch_mode_flags = of_thread("old_non_infra_dispatch_mode_flags", deque)
    old_without_ignore_compile_internals_dispatch_mode_flags = of_thread("old_without_ignore", deque)
    recorder: Recorder
    storages: Storages
    overrides: Mapping[Any, Special]

    def attach(self, recorder: Recorder, storages: Storages, overrides: Mapping[Any, Special]) -> None:
        """Attach the recorder, the memory and the operators with their own implementation (`overrides`)."""
        self.recorder, self.storages, self.overrides = recorder, storages, overrides
        self.closed = False
        self._inner = threading.local()
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        if self.closed:
            raise outlived()
        return super().__enter__()  # type: ignore[misc]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[misc]

    def can_run_unsafe_fallback(self, func: Any) -> bool:
        """Disable PyTorch's fallback for operators without a shape rule: it would use CUDA; see on_zeros."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs) if kwargs else {}
        if func.namespace == "prim":  # prim::device, called on inference tensors
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
        tensors = tensors_in([*args, *kwargs.values()] if kwargs else args)
        fake_type = fake_tensor_type()
        fakes = [each for each in tensors if isinstance(each, fake_type)]
        requested = self._requested_gpu(kwargs)
        if not fakes and requested is None:
            return self._run_on_cpu(func, args, kwargs)
        if any(each.fake_mode is not self for each in fakes):
            raise outlived()
        inner = getattr(self._inner, "depth", 0)
        if len(fakes) < len(tensors) and (inner or func not in self.overrides):
            args, kwargs = self._with_fake_cpu_tensors(args, kwargs)
        if inner:
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
        self.recorder.entered()
        if not self.recorder.began and any(each.requires_grad for each in fakes) and grad_enabled():
            self.recorder.began = True  # training: creating and moving parameters needs no gradients
        with self._lock:  # FakeTensorMode is not thread-safe
            self._inner.depth = 1
            try:
                return self._run(func, types, args, kwargs)
            finally:
                self._inner.depth = 0
                self.recorder.left()

    def _requested_gpu(self, kwargs: dict[str, Any]) -> Any:
        """Return the GPU if the call requests it, and set the full device in kwargs; else None."""
        device = kwargs.get("device")
        if device is None or device.type == "cpu" or (device.type == "meta" and self.is_meta_requested()):
            return None
        if device.type == "cuda" and device.index not in (None, 0):
            raise no_such_device()
        if device.type not in ("cuda", "meta"):
            return None
        kwargs["device"] = gpu()
        return kwargs["device"]

    @staticmethod
    def is_meta_requested() -> bool:
        """Return whether the program itself requests the meta device; replaced by the function mode."""
        return False

    def _run_on_cpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator for real on the CPU and record its time, unless it is part of a GPU operator."""
        pinned = kwargs.pop("pin_memory", False)
        if getattr(self._inner, "depth", 0):
            return func(*args, **kwargs)
        start_ns = self.recorder.begin()
        out = func(*args, **kwargs)
        spent_ns = self.recorder.since(start_ns)
        if spent_ns < TOLD_NS or func.namespace != "aten":
            self.recorder.worked(spent_ns)
        else:
            values = [*args, *kwargs.values()] if kwargs else args
            self.recorder.host_op(func.name().partition(".")[0], tensors_in(values) or tensors_in((out,)), spent_ns)
        if pinned:
            self.pin(out)
        return out

    def pin(self, tensor: Any) -> None:
        """Called for each CPU tensor created in pinned memory; replaced by Pinned.add."""

    def _with_fake_cpu_tensors(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments with CPU tensors as fake CPU tensors: PyTorch then checks which devices may mix."""
        import torch

        fake_type = fake_tensor_type()

        def convert(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(convert(each) for each in value)
            if isinstance(value, torch.Tensor) and not isinstance(value, fake_type):
                return self.fake_like(value, torch.device("cpu"))
            return value

        return convert(args), {name: convert(value) for name, value in kwargs.items()}

    def fake_like(self, tensor: Any, device: Any, **changed: Any) -> Any:
        """Return a fake tensor like this one on the given device; `changed` sets dtype, sizes or strides."""
        import torch

        properties: dict[str, Any] = {"dtype": tensor.dtype, "sizes": tuple(tensor.shape), "strides": tensor.stride()}
        properties.update(changed)
        with torch._subclasses.fake_tensor.in_kernel_invocation_manager(self):  # type: ignore[arg-type]
            empty = torch.empty_strided(
                properties["sizes"], properties["strides"], dtype=properties["dtype"], device="meta"
            )
        return fake_tensor_type()(self, empty, device)

    def allocate(self, like: Any, sizes: tuple[int, ...], dtype: Any = None) -> Any:
        """Return a new contiguous GPU tensor with its own memory; the default dtype is that of `like`."""
        import torch

        strides = torch._prims_common.make_contiguous_strides_for(sizes)
        tensor = self.fake_like(like, gpu(), sizes=sizes, strides=strides, dtype=dtype or like.dtype)
        self.storages.allocate(tensor, self.recorder.phase)
        return tensor

    def _run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        override = self.overrides.get(func)
        if override is not None:
            out = override(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        elif composite(func):
            self._inner.depth = 0
            with self:  # record the operators that a GPU would run
                return func.decompose(*args, **kwargs)
        key = op_cache.key_of(func, args, kwargs, fake_tensor_type())
        cached_outcome = _OUTCOMES.get(key) if key is not None else None
        if cached_outcome is not None:
            out = op_cache.again(self, fake_tensor_type(), cached_outcome, args, gpu())
            self._record_outcome(func, cached_outcome, args, out)
            return out
        out = self.infer_result(func, types, args, kwargs)
        if out is not NotImplemented:
            outcome = self.record(func, args, kwargs, out)
            if key is not None and outcome is not None:
                if len(_OUTCOMES) >= op_cache.MOST:
                    _OUTCOMES.clear()
                _OUTCOMES[key] = outcome
        return out

    def infer_result(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return an operator's result as fake tensors, without recording it."""
        from torch._subclasses import fake_tensor as fake

        tensors = tensors_in([*args, *kwargs.values()])
        if _GEMMS.match(func.name()):  # the shape rules accept mixed devices and dtypes, the real kernels do not
            if len({each.device for each in tensors}) > 1:
                raise on_two_devices(func, tensors)
            if len({each.dtype for each in tensors}) > 1:
                raise reworded(func, args, kwargs, RuntimeError("mat1 and mat2 must have the same dtype"))
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
            if any(each.device.type == "cpu" for each in tensors_in(out if isinstance(out, list | tuple) else (out,))):
                raise on_two_devices(func, tensors)
            return mended(func, args, out)
        except (
            fake.UnsupportedOperatorException,
            fake.DynamicOutputShapeException,
            fake.DataDependentOutputException,
            fake.UnsupportedFakeTensorException,
            NotImplementedError,
        ) as error:
            changed = written(func, args)
            if changed is not None:
                return changed[0]
            out = on_zeros(self, func, args, kwargs)
            if out is NotImplemented:
                raise unsupported(func.name()) from error
            return out
        except ValueError:
            if not func.name().startswith("aten::view"):
                raise
            raise not_a_view() from None
        except (RuntimeError, IndexError) as error:
            if "two different devices" in str(error) or "at least two devices" in str(error):
                raise on_two_devices(func, tensors) from None
            raise reworded(func, args, kwargs, error) from None

    def record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> op_cache.Outcome | None:
        """Record an operator and allocate its results; return the outcome if it can be cached."""
        fakes = [each for each in tensors_in([*args, *kwargs.values()]) if each.device.type == "cuda"]
        results = tensors_in(out if isinstance(out, list | tuple) else (out,))
        again = None if resizes(func) or reshapes(func) else op_cache.learned(args, out, fakes)
        flops, view = counted_flops(func, args, kwargs, out), launches_nothing(func)
        outcome = op_cache.outcome_of(
            func, args, kwargs, fakes, results, flops=flops, view=view, again=again or ((), "", -1)
        )
        self._record_outcome(func, outcome, args, out)
        return outcome if again is not None else None

    def _record_outcome(self, func: Any, outcome: op_cache.Outcome, args: Any, out: Any) -> None:
        phase = self.recorder.phase
        self.storages.memory.phase(phase)
        allocate = self.storages.reallocate if resizes(func) else self.storages.allocate
        if outcome.how != "given":
            for result in out if isinstance(out, list | tuple) else (out,):
                if result is not None and getattr(result, "fake_device", None) == gpu():
                    allocate(result, phase)
        self.recorder.ran(outcome, phase)
        if (
            len(outcome.outputs) == 1
            and outcome.outputs[0].dtype in _KNOWN_VALUE_DTYPES
            and isinstance(out, fake_tensor_type())
        ):
            assumed_values.learned(func.name(), args, out)


@functools.cache
def fake_tensor_type() -> Any:
    """Return torch's FakeTensor class."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@functools.cache
def fake_mode() -> Any:
    """Return the class of the dispatch mode."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return type("VirtualGpuMode", (Fakes, FakeTensorMode), {})


@functools.cache
def gpu() -> Any:
    """Return the device cuda:0."""
    import torch

    return torch.device("cuda", 0)


def grad_enabled() -> bool:
    """Return whether autograd is enabled."""
    import torch

    return torch.is_grad_enabled()
