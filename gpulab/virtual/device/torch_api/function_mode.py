"""Intercept each call of the program to PyTorch: separate their times, and complete the devices that it requests."""

from __future__ import annotations

import functools
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.torch_api.tensor_methods import device_with_index

_PACKAGE = Path(__file__).parents[2]


class CallInterceptor:
    """Handler of all PyTorch calls; a mixin of torch's TorchFunctionMode, see `function_mode`."""

    recorder: OpRecorder
    closed = False
    meta_requested = False  # the program itself requests the meta device in this call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        if self.closed:  # in a thread that outlives the virtual GPU
            return func(*args, **(kwargs or {}))
        self.recorder.entered()
        try:
            if not kwargs:
                return func(*args)
            device = kwargs.get("device")
            if device is None:
                return func(*args, **kwargs)
            if str(device) != "meta":
                return func(*args, **{**kwargs, "device": device_with_index(device)})
            self.meta_requested = True
            try:
                return func(*args, **kwargs)
            finally:
                self.meta_requested = False
        except Exception as error:
            program_error = _as_on_cuda(error) if isinstance(error, RuntimeError) else error
            raise program_error.with_traceback(_without_gpulab_frames(error.__traceback__)) from error.__cause__
        finally:
            self.recorder.left()


def _as_on_cuda(error: RuntimeError) -> RuntimeError:
    """Return the error with cuda:0 in place of the meta device, which C++ sees."""
    if type(error) is not RuntimeError or "meta" not in str(error):
        return error
    text = str(error).replace("torch.meta.", "torch.cuda.").replace("device meta", "device cuda:0")
    text = text.replace("device type 'meta'", "device type 'cuda'")
    return RuntimeError(text)


def _without_gpulab_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without gpulab's own frames."""
    if trace is None:
        return None
    rest = _without_gpulab_frames(trace.tb_next)
    if _PACKAGE in Path(trace.tb_frame.f_code.co_filename).parents:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@functools.cache
def function_mode() -> Any:
    """Return the class of the function mode."""
    from torch.overrides import TorchFunctionMode

    return type("VirtualGpuCalls", (CallInterceptor, TorchFunctionMode), {})
