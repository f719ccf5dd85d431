"""nn.Module moved to the virtual GPU: its parameters stay the objects they are, as on a real one.

PyTorch makes new parameters of modules that become fake; then an optimizer made before, or a second module that
shares them, would hold the old ones.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type
from gpulab.virtual.device.torch_api.patches import swap


def install(stack: ExitStack) -> None:
    """Until the stack is closed."""
    import torch

    swap(stack, torch.nn.Module, _apply=_apply)


def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
    import torch

    if recurse:
        for child in self.children():
            child._apply(fn)
    for parameter in self._parameters.values():
        if parameter is None:
            continue
        grad = parameter.grad
        with torch.no_grad():
            changed = fn(parameter)
            changed_grad = None if grad is None else fn(grad)
        if changed is parameter:
            continue
        parameter.grad = None
        del grad
        become(parameter, changed)
        if changed_grad is not None:
            parameter.grad = changed_grad.detach().requires_grad_(changed_grad.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def become(parameter: Any, changed: Any) -> None:
    """Give a parameter another tensor to be, on another device perhaps, without changing which object it is."""
    import torch

    fake = fake_tensor_type()
    if not isinstance(parameter, fake) and not isinstance(changed, fake):
        parameter.data = changed
        return
    new = torch.nn.Parameter(changed.detach(), requires_grad=parameter.requires_grad)
    # As torch.utils.swap_tensors does, which refuses where there are weak references, as fake tensors have.
    parameter.__class__, new.__class__ = new.__class__, parameter.__class__
    parameter.__dict__, new.__dict__ = {**new.__dict__, **_own(parameter)}, _torchs(parameter)
    torch._C._swap_tensor_impl(parameter, new)


_FAKE_STATE = {"fake_mode", "fake_device", "_fake_device", "constant", "real_tensor", "pytype", "dispatch_keys",
               "_gpulab_known", "_is_param"}  # fmt: skip


def _of_fakes(name: str) -> bool:
    return name in _FAKE_STATE or name.endswith(("_memo", "_memo_vc", "_memo_epoch"))


def _own(parameter: Any) -> dict[str, Any]:
    """What the program has set on a parameter."""
    return {name: value for name, value in parameter.__dict__.items() if not _of_fakes(name)}


def _torchs(parameter: Any) -> dict[str, Any]:
    return {name: value for name, value in parameter.__dict__.items() if _of_fakes(name)}
