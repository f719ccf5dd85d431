"""Where the program calls PyTorch: to tell its own time from PyTorch's, and its wishes from PyTorch's insides."""

from __future__ import annotations

import functools
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulab.virtual.device.recorder import Recorder
from gpulab.virtual.device.torch_api.tensor_methods import full_device

_HERE = Path(__file__).parents[2]


class Calls:
    """Mixed with torch's TorchFunctionMode by `function_mode`."""

    recorder: Recorder
    meta = False  # the program itself asks for the meta device in this call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        self.recorder.entered()
        try:
            if not kwargs:
                return func(*args)
            asked = kwargs.get("device")
            if asked is None:
                return func(*args, **kwargs)
            if str(asked) != "meta":
                return func(*args, **{**kwargs, "device": full_device(asked)})
            self.meta = True
            try:
                return func(*args, **kwargs)
            finally:
                self.meta = False
        except Exception as error:
            told = _as_on_cuda(error) if isinstance(error, RuntimeError) else error
            raise told.with_traceback(_outside(error.__traceback__)) from error.__cause__
        finally:
            self.recorder.left()


def _as_on_cuda(error: RuntimeError) -> RuntimeError:
    """PyTorch's own errors, where they name the device that C++ sees."""
    if type(error) is not RuntimeError or "meta" not in str(error):
        return error
    text = str(error).replace("torch.meta.", "torch.cuda.").replace("device meta", "device cuda:0")
    text = text.replace("device type 'meta'", "device type 'cuda'")
    return RuntimeError(text)


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """The way an error came without our own functions on it, which are none of the program's."""
    if trace is None:
        return None
    rest = _outside(trace.tb_next)
    if _HERE in Path(trace.tb_frame.f_code.co_filename).parents:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@functools.cache
def function_mode() -> Any:
    """Our mode's class."""
    from torch.overrides import TorchFunctionMode

    return type("VirtualGpuCalls", (Calls, TorchFunctionMode), {})
