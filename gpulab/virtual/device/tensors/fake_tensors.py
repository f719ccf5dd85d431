"""Tensors of the virtual GPU: PyTorch's own fake tensors, told to be on cuda:0, beside real ones on the CPU.

For PyTorch's C++ a tensor of ours lies on the meta device, which needs no CUDA, while its dispatch keys are those of
CUDA, so that autograd and autocast treat it as there. Python sees cuda:0. What has no tensor of ours in it runs for
real.
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
_OUTCOMES: dict[Any, op_cache.Outcome] = {}  # also from one virtual GPU to the next: they depend on sizes only
_TOLD_TYPES = frozenset({"bool", "float32", "float64", "int32", "int64"})
_PRODUCTS = re.compile(r"aten::(mm|addmm|bmm|baddbmm|mv|dot|convolution|convolution_backward)(\.|$)")
TOLD_NS = 5_000  # shorter operators on the host's tensors count as the program's own time


class Fakes:
    """What our mode does with every operator; mixed with torch's FakeTensorMode by `fake_mode`."""

    avoid_device_init = True
    enter_stack = of_thread("enter_stack", list)
    in_kernel_invocation = of_thread("in_kernel_invocation", bool)
    old_dispatch_mode_flags = of_thread("old_dispatch_mode_flags", deque)
    old_non_infra_dispatch_mode_flags = of_thread("old_non_infra_dispatch_mode_flags", deque)
    old_without_ignore_compile_internals_dispatch_mode_flags = of_thread("old_without_ignore", deque)
    recorder: Recorder
    storages: Storages
    special: Mapping[Any, Special]

    def start(self, recorder: Recorder, storages: Storages, special: Mapping[Any, Special]) -> None:
        """Take up work."""
        self.recorder, self.storages, self.special = recorder, storages, special
        self.closed = False
        self._inner = threading.local()
        self._one_at_a_time = threading.RLock()

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        if self.closed:
            raise outlived()
        return super().__enter__()  # type: ignore[misc]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[misc]

    def can_run_unsafe_fallback(self, func: Any) -> bool:
        """PyTorch's own way to run what it has no shape rule for would use CUDA; see on_zeros."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs) if kwargs else {}
        if func.namespace == "prim":  # prim::device, asked of inference tensors
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
        tensors = tensors_in([*args, *kwargs.values()] if kwargs else args)
        fake_type = fake_tensor_type()
        fakes = [each for each in tensors if isinstance(each, fake_type)]
        asked = self._asked(kwargs)
        if not fakes and asked is None:
            return self._real(func, args, kwargs)
        if any(each.fake_mode is not self for each in fakes):
            raise outlived()
        inner = getattr(self._inner, "depth", 0)
        if len(fakes) < len(tensors) and (inner or func not in self.special):
            args, kwargs = self._joined(args, kwargs)
        if inner:
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
        self.recorder.entered()
        if not self.recorder.began and any(each.requires_grad for each in fakes) and grad_enabled():
            self.recorder.began = True  # making and moving parameters is done without gradients
        with self._one_at_a_time:  # FakeTensorMode is not made for threads
            self._inner.depth = 1
            try:
                return self._ran(func, types, args, kwargs)
            finally:
                self._inner.depth = 0
                self.recorder.left()

    def _asked(self, kwargs: dict[str, Any]) -> Any:
        """The GPU, where a device is asked for and it is that; kwargs then say so in full."""
        asked = kwargs.get("device")
        if asked is None or asked.type == "cpu" or (asked.type == "meta" and self.meta_wanted()):
            return None
        if asked.type == "cuda" and asked.index not in (None, 0):
            raise no_such_device()
        if asked.type not in ("cuda", "meta"):
            return None
        kwargs["device"] = gpu()
        return kwargs["device"]

    @staticmethod
    def meta_wanted() -> bool:
        """Whether the program itself asks for the meta device now; replaced by the function mode."""
        return False

    def _real(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Real work on the CPU, which takes what it takes; inside an operator of ours it is none of the program's."""
        pinned = kwargs.pop("pin_memory", False)
        if getattr(self._inner, "depth", 0):
            return func(*args, **kwargs)
        begun_ns = self.recorder.begin()
        made = func(*args, **kwargs)
        spent_ns = self.recorder.since(begun_ns)
        if spent_ns < TOLD_NS or func.namespace != "aten":
            self.recorder.worked(spent_ns)
        else:
            values = [*args, *kwargs.values()] if kwargs else args
            self.recorder.host_op(func.name().partition(".")[0], tensors_in(values) or tensors_in((made,)), spent_ns)
        if pinned:
            self.pin(made)
        return made

    def pin(self, tensor: Any) -> None:
        """A CPU tensor is made in pinned memory; replaced by the one who keeps count."""

    def _joined(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The same arguments, CPU tensors among them made fakes on the CPU: PyTorch then judges what may be mixed."""
        import torch

        fake_type = fake_tensor_type()

        def joined(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(joined(each) for each in value)
            if isinstance(value, torch.Tensor) and not isinstance(value, fake_type):
                return self.imagined(value, torch.device("cpu"))
            return value

        return joined(args), {name: joined(value) for name, value in kwargs.items()}

    def imagined(self, tensor: Any, device: Any, **changed: Any) -> Any:
        """A fake like this tensor on that device."""
        import torch

        given: dict[str, Any] = {"dtype": tensor.dtype, "sizes": tuple(tensor.shape), "strides": tensor.stride()}
        given.update(changed)
        with torch._subclasses.fake_tensor.in_kernel_invocation_manager(self):  # type: ignore[arg-type]
            empty = torch.empty_strided(given["sizes"], given["strides"], dtype=given["dtype"], device="meta")
        return fake_tensor_type()(self, empty, device)

    def allocate(self, like: Any, sizes: tuple[int, ...], dtype: Any = None) -> Any:
        """A new contiguous tensor on the GPU with memory of its own; its type is that of `like` unless given."""
        import torch

        strides = torch._prims_common.make_contiguous_strides_for(sizes)
        made = self.imagined(like, gpu(), sizes=sizes, strides=strides, dtype=dtype or like.dtype)
        self.storages.hold(made, self.recorder.phase)
        return made

    def _ran(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        special = self.special.get(func)
        if special is not None:
            out = special(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        elif composite(func):
            self._inner.depth = 0
            with self:  # its parts are recorded, as a GPU would run them
                return func.decompose(*args, **kwargs)
        key = op_cache.key_of(func, args, kwargs, fake_tensor_type())
        known = _OUTCOMES.get(key) if key is not None else None
        if known is not None:
            out = op_cache.again(self, fake_tensor_type(), known, args, gpu())
            self._write(func, known, args, out)
            return out
        out = self.imagine(func, types, args, kwargs)
        if out is not NotImplemented:
            outcome = self.record(func, args, kwargs, out)
            if key is not None and outcome is not None:
                if len(_OUTCOMES) >= op_cache.MOST:
                    _OUTCOMES.clear()
                _OUTCOMES[key] = outcome
        return out

    def imagine(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What an operator would give, in shape and type."""
        from torch._subclasses import fake_tensor as fake

        given = tensors_in([*args, *kwargs.values()])
        if _PRODUCTS.match(func.name()):  # PyTorch's shape rules let pass what its kernels do not
            if len({each.device for each in given}) > 1:
                raise on_two_devices(func, given)
            if len({each.dtype for each in given}) > 1:
                raise reworded(func, args, kwargs, RuntimeError("mat1 and mat2 must have the same dtype"))
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
            if any(each.device.type == "cpu" for each in tensors_in(out if isinstance(out, list | tuple) else (out,))):
                raise on_two_devices(func, given)
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
                raise on_two_devices(func, given) from None
            raise reworded(func, args, kwargs, error) from None

    def record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> op_cache.Outcome | None:
        """Write down an operator that ran, and give its results memory; how to make them again, where that is known."""
        fakes = [each for each in tensors_in([*args, *kwargs.values()]) if each.device.type == "cuda"]
        made = tensors_in(out if isinstance(out, list | tuple) else (out,))
        again = None if resizes(func) or reshapes(func) else op_cache.learned(args, out, fakes)
        flops, view = counted_flops(func, args, kwargs, out), launches_nothing(func)
        outcome = op_cache.outcome_of(
            func, args, kwargs, fakes, made, flops=flops, view=view, again=again or ((), "", -1)
        )
        self._write(func, outcome, args, out)
        return outcome if again is not None else None

    def _write(self, func: Any, outcome: op_cache.Outcome, args: Any, out: Any) -> None:
        phase = self.recorder.phase
        self.storages.memory.phase(phase)
        hold = self.storages.resized if resizes(func) else self.storages.hold
        if outcome.how != "given":
            for each in out if isinstance(out, list | tuple) else (out,):
                if each is not None and getattr(each, "fake_device", None) == gpu():
                    hold(each, phase)
        self.recorder.ran(outcome, phase)
        if (
            len(outcome.outputs) == 1
            and outcome.outputs[0].dtype in _TOLD_TYPES
            and isinstance(out, fake_tensor_type())
        ):
            assumed_values.learned(func.name(), args, out)


@functools.cache
def fake_tensor_type() -> Any:
    """Torch's FakeTensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@functools.cache
def fake_mode() -> Any:
    """Our mode's class."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return type("VirtualGpuMode", (Fakes, FakeTensorMode), {})


@functools.cache
def gpu() -> Any:
    """cuda:0."""
    import torch

    return torch.device("cuda", 0)


def grad_enabled() -> bool:
    """Whether gradients are recorded now."""
    import torch

    return torch.is_grad_enabled()
