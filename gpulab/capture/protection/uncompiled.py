"""Keep torch.compile from compiling what gpulab's hooks do, if compiled code of the program's calls them.

Otherwise a compiled training step that calls an optimizer compiles a hundred functions of gpulab's, too. The functions
used here are written in C: importing `torch._dynamo` takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def call_uncompiled(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function; nothing that it calls is compiled."""
    import torch

    set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame  # before PyTorch 2.5, no module to import from
    callback = set_eval_frame(None)
    try:
        return function(*arguments, **options)
    finally:
        set_eval_frame(callback)


def leave_uncompiled(code: CodeType) -> None:
    """Keep the frames of this code from being compiled; those that it calls are compiled as without it."""
    import torch

    eval_frame: Any = torch._C._dynamo.eval_frame
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
    elif hasattr(eval_frame, "skip_code"):  # before PyTorch 2.7
        eval_frame.skip_code(code)


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything; its module is not imported for that."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters.get("frames"))
