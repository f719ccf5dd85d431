"""Where the virtual GPU does not work with a version of PyTorch: operators are counted, on PyTorch's meta device.

`CountingDevice` stands where gpulab.virtual.device.device.FakeDevice does, and writes the same records. What it leaves
out, and what every run of it says of itself, is LEFT_OUT. Tensors that a program puts on the meta device by itself are
taken for the GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from importlib import import_module
from typing import Any

from gpulab.errors import CaptureError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.operators import attention
from gpulab.virtual.device.recorder import Recorder
from gpulab.virtual.device.stand_in import Standing
from gpulab.virtual.device.tensors.meta_tensors import is_meta, meta, meta_mode
from gpulab.virtual.device.tensors.pinned import Pinned
from gpulab.virtual.device.tensors.storages import Storages
from gpulab.virtual.device.torch_api import tensor_methods, threads
from gpulab.virtual.device.torch_api.patches import swap
from gpulab.virtual.device.torch_api.streams import Clock
from gpulab.virtual.host.costs import Host
from gpulab.virtual.memory_fit.memory import Memory
from gpulab.virtual.op_log.ops import Sink

FACT = "counted"  # the name of the fact of a run that says so
LEFT_OUT = (
    "operators are counted on tensors of PyTorch's meta device instead: calling PyTorch costs the host nothing "
    "here; autocast knows the main operators only; mistakes with devices go unseen"
)
# What PyTorch imports on first use, and would then find a CUDA that is none; the last has rules for shapes.
_LATE = ("torch._dynamo", "torch.utils.flop_counter", "torch._meta_registrations")
# Under autocast, of PyTorch's lists: what goes down to half precision, and what up to float32.
_LOWERED = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
            "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm")  # fmt: skip
_RAISED = ("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "layer_norm",
           "group_norm", "rms_norm", "binary_cross_entropy_with_logits", "kl_div", "cosine_similarity")  # fmt: skip


class _NoHost(Host):
    """A host that costs nothing."""

    def __str__(self) -> str:
        return "none: what it costs is not counted"


NO_HOST: Host = _NoHost(calling=0.0, autograd=0.0)


def announcement(why: str) -> str:
    """What a user is told who asked for a virtual GPU and gets a count; `why` is what the self-test said."""
    import torch

    return f"The virtual GPU does not work with PyTorch {torch.__version__} ({why}): {LEFT_OUT}."


class CountingDevice(Standing):
    """The count of one program, for one `with`; as FakeDevice is used."""

    def __init__(self, spec: GpuSpec, sink: Sink, memory: Memory, clock: Clock) -> None:
        super().__init__(spec, memory, clock)
        self.recorder: Recorder = _Counter(sink)

    def __enter__(self) -> CountingDevice:
        stack = ExitStack()
        try:
            self._install(stack)
        except (AttributeError, TypeError, ImportError, RuntimeError) as error:
            stack.close()
            raise not_even_counted(error) from error
        except BaseException:
            stack.close()
            raise
        self._stack = stack
        return self

    def _install(self, stack: ExitStack) -> None:
        import torch

        for late in _LATE:
            import_module(late)
        self.assume(f"what PyTorch {torch.__version__} does on a GPU", LEFT_OUT)
        recorder, pinned = self.recorder, Pinned()
        tensor_methods.at_home()
        storages = self.storages = Storages(self.memory, recorder)
        stack.callback(storages.forget)
        stack.callback(recorder.close)
        stack.callback(pinned.forget)
        self._install_torch(stack, recorder, storages)
        mode = meta_mode()()
        _tensors(stack, pinned, mode)
        _functions(stack, self.spec, self._assumptions)
        mode.recorder, mode.storages, mode.assumptions, mode.pinned = recorder, storages, self._assumptions, pinned
        mode.closed = False
        stack.callback(setattr, mode, "closed", True)
        threads.install(stack, mode, nullcontext())
        _lift_real_tensors_only(stack)
        stack.enter_context(mode)


class _Counter(Recorder):
    """A recorder for which the program's own time is nothing: only the GPU's is counted."""

    def own_ns(self) -> int:
        return 0


def not_even_counted(error: BaseException) -> CaptureError:
    """Where the fallback fails as well."""
    import torch

    return CaptureError(
        f"The virtual GPU does not work with PyTorch {torch.__version__}.",
        why=f"its self-test failed, and counting on the meta device failed as well: {type(error).__name__}: {error}",
        fix="use a version of PyTorch that was tested: gpulab.virtual.selftest.run.TESTED lists them",
    )


def _on_meta(device: Any) -> Any:
    """The meta device in place of the GPU; other devices, and what is none, as they are."""
    import torch

    found = tensor_methods.full_device(device)
    return meta() if isinstance(found, torch.device) and found.type == "cuda" else found


def _tensors(stack: ExitStack, pinned: Pinned, mode: Any) -> None:
    """Methods of tensors that name devices or read numbers."""
    import torch

    known: Any = torch.Tensor
    plain_to, plain_device, gpu = known.to, torch._C.TensorBase.device, torch.device("cuda", 0)
    plain_list, plain_format = known.tolist, known.__format__

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [_on_meta(each) if isinstance(each, str | int | torch.device) else each for each in args]
        if "device" in kwargs:
            kwargs["device"] = _on_meta(kwargs["device"])
        return plain_to(self, *given, **kwargs)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return self.to(_on_meta("cuda" if device is None else device), non_blocking=non_blocking, **kwargs)

    def device(self: Any) -> Any:
        return gpu if is_meta(self) and not mode.inside else plain_device.__get__(self)

    def formatted(self: Any, how: str) -> str:
        return format(self.item(), how) if is_meta(self) and self.dim() == 0 else plain_format(self, how)

    swap(
        stack,
        known,
        to=to,
        cuda=cuda,
        pin_memory=_pin_memory(pinned),
        is_pinned=lambda self, device=None: not is_meta(self) and pinned.has(self),
        device=property(device),
        is_cuda=property(is_meta),
        is_meta=property(lambda self: is_meta(self) and bool(mode.inside)),
        get_device=lambda self: 0 if is_meta(self) else -1,
        tolist=lambda self: plain_list(self.detach().cpu() if is_meta(self) else self),
        record_stream=lambda self, stream: None,
        __format__=formatted,
    )
    # A parameter stays the same object as it goes to the GPU: shared weights stay shared, optimizers keep theirs.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator, of which the meta device knows nothing
    stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
    swap(stack, torch.__future__, _swap_module_params_on_conversion=True)


def _pin_memory(pinned: Pinned) -> Callable[..., Any]:
    def pin_memory(self: Any, device: Any = None) -> Any:
        if is_meta(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if pinned.has(self):
            return self
        made = self.clone()
        pinned.add(made)
        return made

    return pin_memory


def _made_on_host(plain: Callable[..., Any]) -> Callable[..., Any]:
    """torch.tensor and torch.as_tensor, which would make a tensor for the GPU without asking our mode."""
    import torch

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        wanted = _on_meta(_default_device() if device is None else device)
        if wanted is None or wanted.type != "meta":
            return plain(data, *args, device=device, **kwargs)
        if isinstance(data, torch.Tensor):
            return plain(data, *args, **kwargs).to(wanted)
        grad = kwargs.pop("requires_grad", False)
        there = plain(data, *args, device="cpu", **kwargs).to(wanted)
        return there.requires_grad_() if grad else there

    return made


def _default_device() -> Any:
    """What torch.set_default_device or `with torch.device(...)` asked for; None where that is nothing."""
    import torch

    try:
        return torch.get_default_device()
    except AttributeError:  # some versions raise where it was set back to None
        return None


def _functions(stack: ExitStack, spec: GpuSpec, assumptions: Assumptions) -> None:
    """Autocast for the functions that matter most, attention as this GPU runs it, and tensors made of numbers."""
    import torch
    from torch.nn import functional

    fused, plain = attention.attention(spec.generation), functional.scaled_dot_product_attention

    def scaled_dot_product_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
        if is_meta(query):
            try:
                return fused(query, *args, **kwargs)
            except CaptureError:  # this PyTorch knows no shape rule for it
                assumptions.take("which kernel attention takes", "none: plain products and a softmax")
        return plain(query, *args, **kwargs)

    swap(stack, functional, scaled_dot_product_attention=_cast(scaled_dot_product_attention, down=True))
    for owner, names in ((functional, _LOWERED), (torch, _LOWERED), (torch.Tensor, _LOWERED)):
        swap(stack, owner, **{name: _cast(getattr(owner, name), down=True) for name in names if hasattr(owner, name)})
    for owner in (functional, torch):
        swap(stack, owner, **{name: _cast(getattr(owner, name)) for name in _RAISED if hasattr(owner, name)})
    aten = torch.ops.aten
    kinds: tuple[Any, ...] = (functional, torch, torch.Tensor)
    for kind in kinds:
        swap(stack, kind, softmax=_softmax(kind.softmax, aten._softmax.default),
             log_softmax=_softmax(kind.log_softmax, aten._log_softmax.default))  # fmt: skip
    swap(stack, functional, cross_entropy=_cross_entropy(functional.cross_entropy))
    swap(stack, torch, tensor=_made_on_host(torch.tensor), as_tensor=_made_on_host(torch.as_tensor))


def _cast(plain: Callable[..., Any], *, down: bool = False) -> Callable[..., Any]:
    """A function whose tensors on the GPU are cast under autocast: down to its type, or up to float32."""
    import torch

    halves = torch.float16, torch.bfloat16

    def function(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cuda"):
            return plain(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cuda") if down else torch.float32

        def cast(value: Any) -> Any:
            known = isinstance(value, torch.Tensor) and is_meta(value)
            return value.to(dtype) if known and (value.dtype is torch.float32 or value.dtype in halves) else value

        with torch.autocast("cuda", enabled=False):
            return plain(*[cast(each) for each in args], **{name: cast(each) for name, each in kwargs.items()})

    return function


def _softmax(plain: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """A softmax that gives float32 under autocast, as a GPU's kernels do without a copy of its argument."""
    import torch

    def softmax(input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values()))
        if dim is None or given or not is_meta(input) or not torch.is_autocast_enabled("cuda"):
            return plain(input, dim, *args, **kwargs)
        return op(input, dim, input.dtype in (torch.float16, torch.bfloat16))

    return softmax


def _cross_entropy(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of most classifiers, which is that softmax and one more operator."""
    import torch
    from torch.nn import functional

    def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        smoothed = len(args) > 5 or kwargs.get("label_smoothing") or target.is_floating_point()
        if smoothed or not is_meta(input) or not torch.is_autocast_enabled("cuda"):
            return plain(input, target, *args, **kwargs)
        kwargs.pop("label_smoothing", None)
        told = functional.log_softmax(input, 1 if input.dim() > 1 else 0)
        return functional.nll_loss(told, target, *args, **kwargs)

    return cross_entropy


def _lift_real_tensors_only(stack: ExitStack) -> None:
    """Let torch.tensor(..., device="cuda") make its tensor on the host first, and send it as a step of its own."""
    import torch

    if hasattr(torch._C, "_set_only_lift_cpu_tensors"):
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
