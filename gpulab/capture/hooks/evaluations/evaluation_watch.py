"""What shows that the recorded thread evaluates a model: the eval mode of the trained models, or a function's name.

The sampler's thread asks a few times a second, so that evaluations without a DataLoader are seen in the whole run. None
of the user's code is called: names of functions and the attribute `training` are read.
"""

from __future__ import annotations

import re
import weakref
from types import CodeType, FrameType
from typing import Any

from gpulab.phase_names import EVAL_MODE, means_evaluation
from gpulab.sensors.host.frames import user_frames

_MOST_MODELS = 16
_LEAST_SAMPLES = 3  # that show a model: a first training step is shorter
_MOST_BETWEEN = 10  # samples between two calls of the model
_MODULE = "torch.nn.modules.module"
_ESTIMATES = re.compile(r"(?:^|_)estimate_(?:\w*_)?(?:loss|metric|accuracy|perplexity)", re.IGNORECASE)
# Callers of a model whose results are trained on or kept, also with the model in eval mode.
_PRODUCES = re.compile(
    r"(?:^|[^a-z])(?:roll_?outs?|collect\w*|generat\w*|sampl\w*|play\w*|explor\w*|act|actions?|experience\w*|"
    r"trajector\w*|pseudo\w*|relabel\w*|mine|mining|acqui\w*|uncertain\w*|targets?|features?|embed\w*|cluster\w*)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_NO_MODEL = ("torch.serialization", "matplotlib", "wandb", "mlflow", "tensorboard", "torch.utils.tensorboard")


class EvaluationWatch:
    """Knows the trained models and the functions that train; `evaluation` is for the sampler's thread."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[Any]] = []
        self._training_code: dict[int, CodeType] = {}  # by id: hashing code takes long
        self._model_samples = 0  # that show a model before the first update
        self._since_model = 0  # samples after the latest of them

    def add_training(self, innermost: FrameType | None, module: Any) -> None:
        """Note the functions in which an optimizer steps for the first time, and the model that it trains."""
        self._training_code.update({id(frame.f_code): frame.f_code for frame in _frames(innermost)})
        if module is not None and len(self._modules) < _MOST_MODELS:
            self._modules.append(weakref.ref(module))

    def evaluation(self, innermost: FrameType | None) -> str | None:
        """The outermost function on this stack that evaluates by its name, or EVAL_MODE; None for any other code."""
        names = [frame.f_code.co_name for frame in user_frames(innermost) if not self._trains(frame)]
        functions = [name for name in names if means_evaluation(name) or _ESTIMATES.search(name)]
        if functions:
            return functions[-1]
        return EVAL_MODE if self._in_eval_mode() and not self._produces(innermost) else None

    def samples_of_inference(self, innermost: FrameType | None) -> int:
        """Return how many samples show a model that neither trains nor evaluates: this one, and earlier ones.

        It is in eval mode, or the program has not trained anything so far.
        """
        if self._training_code:
            return int(self._in_eval_mode())
        runs_model = any([_module_name(frame) == _MODULE for frame in _frames(innermost)])
        self._model_samples += runs_model
        self._since_model = 0 if runs_model else self._since_model + 1
        if self._model_samples < _LEAST_SAMPLES or self._since_model > _MOST_BETWEEN:
            return 0
        return _LEAST_SAMPLES if runs_model and self._model_samples == _LEAST_SAMPLES else 1

    def _trains(self, frame: FrameType) -> bool:
        return id(frame.f_code) in self._training_code

    def _in_eval_mode(self) -> bool:
        """Whether all trained models that are left are in eval mode."""
        modules = [module for reference in self._modules if (module := reference()) is not None]
        modes = [object.__getattribute__(module, "__dict__").get("training") for module in modules]
        return bool(modes) and not any([mode is not False for mode in modes])

    def _produces(self, innermost: FrameType | None) -> bool:
        """Whether the code that calls the model is no evaluation by its name; the code of the model does not count."""
        callers: list[str] = []
        for frame in _frames(innermost):
            module = _module_name(frame)
            if module.startswith(_NO_MODEL):
                return True
            if module == _MODULE:
                callers.clear()
            elif not module.startswith("torch.") and not self._trains(frame):
                callers.append(frame.f_code.co_name)
        return any([_PRODUCES.search(name) for name in callers])


def _module_name(frame: FrameType) -> str:
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """All frames of a stack, from the innermost outward."""
    frames = []
    frame = innermost
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames
