"""Fallback for versions of PyTorch that the virtual GPU does not work with: count operators on the meta device.

`CountingDevice` replaces gpulab.virtual.device.fake_device.FakeDevice and writes the same records. LEFT_OUT lists what
it does not cover; every run states it. Tensors that the program itself creates on the meta device count as GPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from importlib import import_module
from typing import Any

from gpulab.errors import CaptureError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.operators import attention_kernels
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.simulated_device import SimulatedDevice
from gpulab.virtual.device.tensors.meta_tensors import is_meta, meta_device, meta_mode
from gpulab.virtual.device.tensors.pinned import PinnedStorages
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.torch_api import tensor_methods, threads
from gpulab.virtual.device.torch_api.patches import patch_attributes
from gpulab.virtual.device.torch_api.streams import VirtualTime
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory
from gpulab.virtual.op_log.ops import RecordSink

COUNTED_FACT = "counted"  # name of the run's fact that gives the reason
LIMITATIONS = (
    "operators are counted on PyTorch's meta device instead; host overhead of PyTorch calls is not included, "
    "autocast covers only the main operators, and device mismatches are not detected"
)
# PyTorch imports these on first use and would then look for a real CUDA. The last one registers shape rules.
_LAZY_IMPORTS = ("torch._dynamo", "torch.utils.flop_counter", "torch._meta_registrations")
# From PyTorch's autocast lists: functions that run in half precision, and functions that run in float32.
_HALF_PRECISION = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
                   "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm")  # fmt: skip
_FLOAT32 = ("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "layer_norm",
            "group_norm", "rms_norm", "binary_cross_entropy_with_logits", "kl_div", "cosine_similarity")  # fmt: skip


class _FreeHost(HostCosts):
    """A host model without any cost."""

    def __str__(self) -> str:
        return "none: host time is not included"


NO_HOST: HostCosts = _FreeHost(dispatch_factor=0.0, autograd_factor=0.0)


def fallback_warning(why: str) -> str:
    """Return the warning that operators are only counted; `why` is the reason from the self-test."""
    import torch

    return f"The virtual GPU does not work with PyTorch {torch.__version__} ({why}): {LIMITATIONS}."


class CountingDevice(SimulatedDevice):
    """A device that counts operators on meta tensors, for one `with` block; used like FakeDevice."""

    def __init__(self, spec: GpuSpec, sink: RecordSink, memory: SimulatedMemory, clock: VirtualTime) -> None:
        super().__init__(spec, memory, clock)
        self.recorder: OpRecorder = _GpuOnlyRecorder(sink)

    def __enter__(self) -> CountingDevice:
        stack = ExitStack()
        try:
            self._install(stack)
        except (AttributeError, TypeError, ImportError, RuntimeError) as error:
            stack.close()
            raise fallback_error(error) from error
        except BaseException:
            stack.close()
            raise
        self._stack = stack
        return self

    def _install(self, stack: ExitStack) -> None:
        import torch

        for module in _LAZY_IMPORTS:
            import_module(module)
        self.assume(f"what PyTorch {torch.__version__} does on a GPU", LIMITATIONS)
        recorder, pinned = self.recorder, PinnedStorages()
        tensor_methods.claim_process()
        storages = self.storages = StorageMemory(self.memory, recorder)
        stack.callback(storages.clear)
        stack.callback(recorder.close)
        stack.callback(pinned.clear)
        self._install_torch(stack, recorder, storages)
        mode = meta_mode()()
        _patch_tensors(stack, pinned, mode)
        _patch_functions(stack, self.spec, self._assumptions)
        mode.recorder, mode.storages, mode.assumptions, mode.pinned = recorder, storages, self._assumptions, pinned
        mode.closed = False
        stack.callback(setattr, mode, "closed", True)
        threads.install(stack, mode, nullcontext())
        _lift_cpu_tensors_only(stack)
        stack.enter_context(mode)


class _GpuOnlyRecorder(OpRecorder):
    """A recorder that ignores the Python time of the program: only GPU work is counted."""

    def take_python_ns(self) -> int:
        return 0


def fallback_error(error: BaseException) -> CaptureError:
    """Return the error for a PyTorch version that the fallback does not work with either."""
    import torch

    return CaptureError(
        f"The virtual GPU does not work with PyTorch {torch.__version__}.",
        why=f"its self-test failed, and counting on the meta device failed as well: {type(error).__name__}: {error}",
        fix="install a tested version of PyTorch: gpulab.virtual.self_test.run.TESTED lists them",
    )


def _on_meta(device: Any) -> Any:
    """Return the meta device for the GPU; anything else unchanged."""
    import torch

    resolved = tensor_methods.device_with_index(device)
    return meta_device() if isinstance(resolved, torch.device) and resolved.type == "cuda" else resolved


def _patch_tensors(stack: ExitStack, pinned: PinnedStorages, mode: Any) -> None:
    """Patch the methods of tensors that name devices or read values."""
    import torch

    tensor_type: Any = torch.Tensor
    original_to, original_device, gpu = tensor_type.to, torch._C.TensorBase.device, torch.device("cuda", 0)
    original_tolist, original_format = tensor_type.tolist, tensor_type.__format__

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        meta_args = [_on_meta(each) if isinstance(each, str | int | torch.device) else each for each in args]
        if "device" in kwargs:
            kwargs["device"] = _on_meta(kwargs["device"])
        return original_to(self, *meta_args, **kwargs)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return self.to(_on_meta("cuda" if device is None else device), non_blocking=non_blocking, **kwargs)

    def device(self: Any) -> Any:
        return gpu if is_meta(self) and not mode.inference_depth else original_device.__get__(self)

    def formatted(self: Any, spec: str) -> str:
        return format(self.item(), spec) if is_meta(self) and self.dim() == 0 else original_format(self, spec)

    patch_attributes(
        stack,
        tensor_type,
        to=to,
        cuda=cuda,
        pin_memory=_pin_memory(pinned),
        is_pinned=lambda self, device=None: not is_meta(self) and pinned.has(self),
        device=property(device),
        is_cuda=property(is_meta),
        is_meta=property(lambda self: is_meta(self) and bool(mode.inference_depth)),
        get_device=lambda self: 0 if is_meta(self) else -1,
        tolist=lambda self: original_tolist(self.detach().cpu() if is_meta(self) else self),
        record_stream=lambda self, stream: None,
        __format__=formatted,
    )
    # A parameter stays the same object when it moves to the GPU: shared weights stay shared, optimizers keep theirs.
    fastpath_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it is one operator without a meta kernel
    stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath_enabled)
    patch_attributes(stack, torch.__future__, _swap_module_params_on_conversion=True)


def _pin_memory(pinned: PinnedStorages) -> Callable[..., Any]:
    def pin_memory(self: Any, device: Any = None) -> Any:
        if is_meta(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if pinned.has(self):
            return self
        copy = self.clone()
        pinned.add(copy)
        return copy

    return pin_memory


def _create_on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch.tensor and torch.as_tensor, which would create a GPU tensor without calling our dispatch mode."""
    import torch

    def create(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        target = _on_meta(_default_device() if device is None else device)
        if target is None or target.type != "meta":
            return original(data, *args, device=device, **kwargs)
        if isinstance(data, torch.Tensor):
            return original(data, *args, **kwargs).to(target)
        grad = kwargs.pop("requires_grad", False)
        tensor = original(data, *args, device="cpu", **kwargs).to(target)
        return tensor.requires_grad_() if grad else tensor

    return create


def _default_device() -> Any:
    """Return the device set by torch.set_default_device or `with torch.device(...)`; None if there is none."""
    import torch

    try:
        return torch.get_default_device()
    except AttributeError:  # some versions raise if it was reset to None
        return None


def _patch_functions(stack: ExitStack, spec: GpuSpec, assumptions: Assumptions) -> None:
    """Patch functions: autocast for the most important ones, attention as on this GPU, torch.tensor."""
    import torch
    from torch.nn import functional

    fused, original = attention_kernels.attention_for(spec.generation), functional.scaled_dot_product_attention

    def scaled_dot_product_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
        if is_meta(query):
            try:
                return fused(query, *args, **kwargs)
            except CaptureError:  # this PyTorch has no shape rule for it
                assumptions.add("which kernel attention runs", "none: matrix products and a softmax")
        return original(query, *args, **kwargs)

    patch_attributes(
        stack, functional, scaled_dot_product_attention=_with_autocast(scaled_dot_product_attention, down=True)
    )
    for owner, names in ((functional, _HALF_PRECISION), (torch, _HALF_PRECISION), (torch.Tensor, _HALF_PRECISION)):
        patch_attributes(
            stack,
            owner,
            **{name: _with_autocast(getattr(owner, name), down=True) for name in names if hasattr(owner, name)},
        )
    for owner in (functional, torch):
        patch_attributes(
            stack, owner, **{name: _with_autocast(getattr(owner, name)) for name in _FLOAT32 if hasattr(owner, name)}
        )
    aten = torch.ops.aten
    namespaces: tuple[Any, ...] = (functional, torch, torch.Tensor)
    for namespace in namespaces:
        patch_attributes(stack, namespace, softmax=_softmax(namespace.softmax, aten._softmax.default),
             log_softmax=_softmax(namespace.log_softmax, aten._log_softmax.default))  # fmt: skip
    patch_attributes(stack, functional, cross_entropy=_cross_entropy(functional.cross_entropy))
    patch_attributes(stack, torch, tensor=_create_on_host(torch.tensor), as_tensor=_create_on_host(torch.as_tensor))


def _with_autocast(original: Callable[..., Any], *, down: bool = False) -> Callable[..., Any]:
    """Wrap a function: under autocast, cast its GPU tensors to the autocast dtype (`down`) or to float32."""
    import torch

    halves = torch.float16, torch.bfloat16

    def function(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cuda"):
            return original(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cuda") if down else torch.float32

        def cast(value: Any) -> Any:
            is_gpu_tensor = isinstance(value, torch.Tensor) and is_meta(value)
            return (
                value.to(dtype) if is_gpu_tensor and (value.dtype is torch.float32 or value.dtype in halves) else value
            )

        with torch.autocast("cuda", enabled=False):
            return original(*[cast(each) for each in args], **{name: cast(each) for name, each in kwargs.items()})

    return function


def _softmax(original: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """Wrap a softmax: under autocast it returns float32 without first copying its input, as GPU kernels do."""
    import torch

    def softmax(input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        has_dtype = any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values()))
        if dim is None or has_dtype or not is_meta(input) or not torch.is_autocast_enabled("cuda"):
            return original(input, dim, *args, **kwargs)
        return op(input, dim, input.dtype in (torch.float16, torch.bfloat16))

    return softmax


def _cross_entropy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap cross_entropy: under autocast it is that softmax and one more operator."""
    import torch
    from torch.nn import functional

    def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        unsupported = len(args) > 5 or kwargs.get("label_smoothing") or target.is_floating_point()
        if unsupported or not is_meta(input) or not torch.is_autocast_enabled("cuda"):
            return original(input, target, *args, **kwargs)
        kwargs.pop("label_smoothing", None)
        log_probs = functional.log_softmax(input, 1 if input.dim() > 1 else 0)
        return functional.nll_loss(log_probs, target, *args, **kwargs)

    return cross_entropy


def _lift_cpu_tensors_only(stack: ExitStack) -> None:
    """Make torch.tensor(..., device="cuda") create the tensor on the host first and copy it to the GPU separately."""
    import torch

    if hasattr(torch._C, "_set_only_lift_cpu_tensors"):
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
