"""Move an nn.Module to the virtual GPU without replacing its parameter objects, as on a real GPU.

PyTorch creates new parameter objects when tensors become fake. An optimizer created earlier, or a second module that
shares the parameters, would then still refer to the old ones.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type
from gpulab.virtual.device.torch_api.patches import patch_attributes


def install(stack: ExitStack) -> None:
    """Patch nn.Module until the stack is closed."""
    import torch

    patch_attributes(stack, torch.nn.Module, _apply=_apply)


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
        replace_parameter_tensor(parameter, changed)
        if changed_grad is not None:
            parameter.grad = changed_grad.detach().requires_grad_(changed_grad.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def replace_parameter_tensor(parameter: Any, tensor: Any) -> None:
    """Replace the tensor of a parameter, possibly on another device, but keep the parameter object."""
    import torch

    fake = fake_tensor_type()
    if not isinstance(parameter, fake) and not isinstance(tensor, fake):
        parameter.data = tensor
        return
    new = torch.nn.Parameter(tensor.detach(), requires_grad=parameter.requires_grad)
    # Like torch.utils.swap_tensors, which refuses tensors with weak references, and fake tensors have them.
    parameter.__class__, new.__class__ = new.__class__, parameter.__class__
    parameter.__dict__, new.__dict__ = {**new.__dict__, **_user_attributes(parameter)}, _fake_attributes(parameter)
    torch._C._swap_tensor_impl(parameter, new)


_FAKE_STATE = {"fake_mode", "fake_device", "_fake_device", "constant", "real_tensor", "pytype", "dispatch_keys",
               "_gpulab_known", "_is_param"}  # fmt: skip


def _is_fake_attribute(name: str) -> bool:
    return name in _FAKE_STATE or name.endswith(("_memo", "_memo_vc", "_memo_epoch"))


def _user_attributes(parameter: Any) -> dict[str, Any]:
    """Return the attributes that the program has set on a parameter."""
    return {name: value for name, value in parameter.__dict__.items() if not _is_fake_attribute(name)}


def _fake_attributes(parameter: Any) -> dict[str, Any]:
    return {name: value for name, value in parameter.__dict__.items() if _is_fake_attribute(name)}
