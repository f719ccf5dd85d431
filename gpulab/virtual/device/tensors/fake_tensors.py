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

from gpulab.virtual.device.operators.run_on_zeros import run_on_zeros
from gpulab.virtual.device.operators.schema import (
    count_flops,
    is_composite,
    launches_nothing,
    may_resize,
    reshapes_in_place,
)
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.tensors import assumed_values, op_cache, true_values
from gpulab.virtual.device.tensors.error_messages import (
    closed_virtual_gpu,
    device_mismatch,
    error_of_real_tensors,
    in_place_result,
    incompatible_view,
    invalid_device_index,
    unsupported_operator,
)
from gpulab.virtual.device.tensors.memory_formats import with_gpu_memory_format
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.tensors.tensor_info import tensors_in
from gpulab.virtual.device.torch_api.per_thread import per_thread_property

Override = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_OUTCOMES: dict[Any, op_cache.OpOutcome] = {}  # shared by all virtual GPUs: outcomes depend on sizes only
_KNOWN_VALUE_DTYPES = frozenset({"bool", "float32", "float64", "int32", "int64"})
_GEMMS = re.compile(r"aten::(mm|addmm|bmm|baddbmm|mv|dot|convolution|convolution_backward)(\.|$)")
MIN_HOST_OP_NS = 5_000  # shorter operators on CPU tensors count as Python time of the program


class FakeDispatch:
    """Dispatch of every operator on the virtual GPU; a mixin of torch's FakeTensorMode, see `fake_mode`."""

    avoid_device_init = True
    enter_stack = per_thread_property("enter_stack", list)
    in_kernel_invocation = per_thread_property("in_kernel_invocation", bool)
    old_dispatch_mode_flags = per_thread_property("old_dispatch_mode_flags", deque)
    old_non_infra_dispatch_mode_flags = per_thread_property("old_non_infra_dispatch_mode_flags", deque)
    old_without_ignore_compile_internals_dispatch_mode_flags = per_thread_property("old_without_ignore", deque)
    recorder: OpRecorder
    storages: StorageMemory
    overrides: Mapping[Any, Override]

    def attach(self, recorder: OpRecorder, storages: StorageMemory, overrides: Mapping[Any, Override]) -> None:
        """Attach the recorder, the memory and the operators with their own implementation (`overrides`)."""
        self.recorder, self.storages, self.overrides = recorder, storages, overrides
        self.closed = False
        self._inner = threading.local()
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        if self.closed:
            raise closed_virtual_gpu()
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
        if self.closed and not fakes:  # in a thread that outlives the virtual GPU
            return func(*args, **kwargs)
        requested = self._requested_gpu(kwargs)
        if not fakes and requested is None:
            return self._run_on_cpu(func, args, kwargs)
        if any(each.fake_mode is not self for each in fakes):
            raise closed_virtual_gpu()
        inner = getattr(self._inner, "depth", 0)
        program_args, program_kwargs = args, kwargs
        if len(fakes) < len(tensors) and (inner or func not in self.overrides):
            args, kwargs = self._with_fake_cpu_tensors(args, kwargs)
        if inner:
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
        self.recorder.entered()
        if not self.recorder.training_started and any(each.requires_grad for each in fakes) and grad_enabled():
            self.recorder.training_started = True  # training: creating and moving parameters needs no gradients
        with self._lock:  # FakeTensorMode is not thread-safe
            self._inner.depth = 1
            try:
                out = self._run(func, types, args, kwargs)
                if not is_composite(func):
                    true_values.follow_operator(func, program_args, program_kwargs, out, fake_type)
                return out
            finally:
                self._inner.depth = 0
                self.recorder.left()

    def _requested_gpu(self, kwargs: dict[str, Any]) -> Any:
        """Return the GPU if the call requests it, and set the full device in kwargs; else None."""
        device = kwargs.get("device")
        if device is None or device.type == "cpu" or (device.type == "meta" and self.is_meta_requested()):
            return None
        if device.type == "cuda" and device.index not in (None, 0):
            raise invalid_device_index()
        if device.type not in ("cuda", "meta"):
            return None
        kwargs["device"] = virtual_device()
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
        start = self.recorder.start_cpu_timer()
        out = func(*args, **kwargs)
        spent_ns = self.recorder.elapsed_cpu_ns(start)
        if spent_ns < MIN_HOST_OP_NS or func.namespace != "aten":
            self.recorder.add_cpu_time(spent_ns)
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
        tensor = self.fake_like(like, virtual_device(), sizes=sizes, strides=strides, dtype=dtype or like.dtype)
        self.storages.allocate(tensor, self.recorder.phase)
        return tensor

    def _run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        override = self.overrides.get(func)
        if override is not None:
            out = override(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        elif is_composite(func):
            self._inner.depth = 0
            with self:  # record the operators that a GPU would run
                return func.decompose(*args, **kwargs)
        key = op_cache.cache_key(func, args, kwargs, fake_tensor_type())
        cached_outcome = _OUTCOMES.get(key) if key is not None else None
        if cached_outcome is not None:
            out = op_cache.rebuild_result(self, fake_tensor_type(), cached_outcome, args, virtual_device())
            self._record_outcome(func, cached_outcome, args, out)
            return out
        out = self.infer_result(func, types, args, kwargs)
        if out is not NotImplemented:
            outcome = self.record(func, args, kwargs, out)
            if key is not None and outcome is not None:
                if len(_OUTCOMES) >= op_cache.MAX_OUTCOMES:
                    _OUTCOMES.clear()
                _OUTCOMES[key] = outcome
        return out

    def infer_result(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return an operator's result as fake tensors, without recording it."""
        from torch._subclasses import fake_tensor as fake

        tensors = tensors_in([*args, *kwargs.values()])
        if _GEMMS.match(func.name()):  # the shape rules accept mixed devices and dtypes, the real kernels do not
            if len({each.device for each in tensors}) > 1:
                raise device_mismatch(func, tensors)
            if len({each.dtype for each in tensors}) > 1:
                raise error_of_real_tensors(func, args, kwargs, RuntimeError("mat1 and mat2 must have the same dtype"))
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
            if any(each.device.type == "cpu" for each in tensors_in(out if isinstance(out, list | tuple) else (out,))):
                raise device_mismatch(func, tensors)
            return with_gpu_memory_format(func, args, out)
        except (
            fake.UnsupportedOperatorException,
            fake.DynamicOutputShapeException,
            fake.DataDependentOutputException,
            fake.UnsupportedFakeTensorException,
            NotImplementedError,
        ) as error:
            changed = in_place_result(func, args)
            if changed is not None:
                return changed[0]
            out = run_on_zeros(self, func, args, kwargs)
            if out is NotImplemented:
                raise unsupported_operator(func.name()) from error
            return out
        except ValueError:
            if not func.name().startswith("aten::view"):
                raise
            raise incompatible_view() from None
        except (RuntimeError, IndexError) as error:
            if "two different devices" in str(error) or "at least two devices" in str(error):
                raise device_mismatch(func, tensors) from None
            raise error_of_real_tensors(func, args, kwargs, error) from None

    def record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> op_cache.OpOutcome | None:
        """Record an operator and allocate its results; return the outcome if it can be cached."""
        fakes = [each for each in tensors_in([*args, *kwargs.values()]) if each.device.type == "cuda"]
        results = tensors_in(out if isinstance(out, list | tuple) else (out,))
        again = None if may_resize(func) or reshapes_in_place(func) else op_cache.result_recipe(args, out, fakes)
        flops, view = count_flops(func, args, kwargs, out), launches_nothing(func)
        outcome = op_cache.op_outcome(
            func, args, kwargs, fakes, results, flops=flops, is_view=view, recipe=again or ((), "", -1)
        )
        self._record_outcome(func, outcome, args, out)
        return outcome if again is not None else None

    def _record_outcome(self, func: Any, outcome: op_cache.OpOutcome, args: Any, out: Any) -> None:
        phase = self.recorder.phase
        self.storages.memory.enter_phase(phase)
        allocate = self.storages.reallocate if may_resize(func) else self.storages.allocate
        if outcome.result_form != "given":
            for result in out if isinstance(out, list | tuple) else (out,):
                if result is not None and getattr(result, "fake_device", None) == virtual_device():
                    allocate(result, phase)
        self.recorder.record_outcome(outcome, phase)
        if (
            len(outcome.outputs) == 1
            and outcome.outputs[0].dtype in _KNOWN_VALUE_DTYPES
            and isinstance(out, fake_tensor_type())
        ):
            assumed_values.infer_known_value(func.name(), args, out)


@functools.cache
def fake_tensor_type() -> Any:
    """Return torch's FakeTensor class."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@functools.cache
def fake_mode() -> Any:
    """Return the class of the dispatch mode."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return type("VirtualGpuMode", (FakeDispatch, FakeTensorMode), {})


@functools.cache
def virtual_device() -> Any:
    """Return the device cuda:0."""
    import torch

    return torch.device("cuda", 0)


def grad_enabled() -> bool:
    """Return whether autograd is enabled."""
    import torch

    return torch.is_grad_enabled()
