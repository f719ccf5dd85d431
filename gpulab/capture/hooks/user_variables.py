"""Names and settings of the user's loader, model and optimizer, read from the frames of the training loop.

No object that is inspected is kept, and none of the user's code is called: types are compared, attributes are not read.
There are no generators here: while one that is unfinished is destroyed, Python drops what a signal handler raises.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.called_code import CodePart
from gpulab.capture.hooks.models.image_layers import image_layers
from gpulab.capture.hooks.models.module_tree import all_parameters_in, submodules_in
from gpulab.run import Model, Optimizer
from gpulab.sensors.host.frames import user_frames

_FRAME_AND_US = 3  # references to a frame's copy of its variables: the frame's, ours, and that of getrefcount
FRAMEWORKS = {
    "transformers": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
}
NamedValues = list[tuple[str, Any]]


class Variable(NamedTuple):
    """A variable, or an attribute of `self`, that the user's frames can read."""

    name: str  # "loader", "self.loader"
    value: Any
    function: str | None  # the function or method that has it; "" for one of a module or notebook; None: unknown


def find_variable(innermost: FrameType | None, matches: Callable[[Any], bool]) -> Variable | None:
    """The first of the visible variables that holds a matching value."""
    for variable in _variables(innermost):
        if matches(variable.value):
            return variable
    return None


def find_variable_name(innermost: FrameType | None, matches: Callable[[Any], bool]) -> str | None:
    """The name of that variable."""
    variable = find_variable(innermost, matches)
    return variable.name if variable else None


def find_loader(innermost: FrameType | None, dataset: object, sampler: object) -> Variable | None:
    """The variable that holds the DataLoader of this dataset that draws from this sampler or batch sampler."""
    from torch.utils.data import DataLoader

    def draws(value: Any) -> bool:
        if not issubclass(type(value), DataLoader):
            return False
        attributes = value.__dict__
        samplers = attributes.get("sampler"), attributes.get("batch_sampler")
        return attributes.get("dataset") is dataset and any([each is sampler for each in samplers])

    return find_variable(innermost, draws)


def find_ignore_index(innermost: FrameType | None, default: int) -> int:
    """The label that the user's cross-entropy loss ignores; the default if no variable holds such a loss."""
    from torch import nn

    for _, value in visible_values(innermost):
        if type(value) in (nn.CrossEntropyLoss, nn.NLLLoss):
            ignored = value.__dict__.get("ignore_index")
            return ignored if type(ignored) is int else default
    return default


def find_framework(innermost: FrameType | None) -> str | None:
    """The package whose training loop is running: the outermost between this frame and the user's innermost one.

    The Trainer of Transformers iterates over a DataLoader of Accelerate.
    """
    frame, framework = innermost, None
    frames_of_user = user_frames(innermost)
    user_frame = frames_of_user[0] if frames_of_user else None
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        framework = FRAMEWORKS.get(package, framework)
        frame = frame.f_back if frame is not user_frame else None
    return framework


def describe_optimizer(innermost: FrameType | None, optimizer: Any) -> Optimizer:
    """Settings and name of an optimizer."""
    groups = optimizer.param_groups
    parameters = optimizer_parameters(optimizer)
    variable = find_variable(innermost, lambda value: value is optimizer)
    return Optimizer(
        kind=type(optimizer).__name__,
        name=variable.name if variable else None,
        function=variable.function if variable else None,
        tensors=len(parameters),
        elements=sum(parameter.numel() for parameter in parameters),
        foreach=_common_value(group.get("foreach") for group in groups),
        fused=_common_value(group.get("fused") for group in groups),
        device=_devices(parameters),
        accepts_sparse=_accepts_sparse(optimizer),
    )


def trained_module(innermost: FrameType | None, optimizer: Any) -> Variable | None:
    """The variable for the module that holds most of an optimizer's parameters; None if none holds any."""
    from torch import nn

    trained = {id(parameter) for parameter in optimizer_parameters(optimizer)}
    best: tuple[int, Variable | None] = (0, None)
    for variable in _variables(innermost):
        if issubclass(type(variable.value), nn.Module):
            parameters = all_parameters_in(submodules_in(variable.value))
            trained_count = sum([id(parameter) in trained for parameter in parameters])
            best = max(best, (trained_count, variable), key=lambda candidate: candidate[0])
    return best[1]


def describe_model(innermost: FrameType | None, optimizer: Any, variable: Variable | None) -> Model | None:
    """The model that an optimizer trains, which `trained_module` found in this variable."""
    name, module, function = variable or (None, None, None)
    parameters = optimizer_parameters(optimizer)
    if not parameters:
        return None
    trained = {id(parameter) for parameter in parameters}
    inner = getattr(module, "_orig_mod", module)  # torch.compile wraps the module
    tables = _dense_tables(module, trained)
    images = None if module is None else image_layers(module, _loop_code(innermost))
    return Model(
        kind=type(inner).__name__ if module is not None else "model",
        name=name,
        function=function,
        tensors=len(parameters),
        bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        dtypes=tuple(dtype for dtype, _ in Counter(_dtype(parameter) for parameter in parameters).most_common()),
        device=_devices(parameters),
        compiled=None if module is None else inner is not module or inner._compiled_call_impl is not None,
        untrained=None if module is None else _untrained(module, trained),
        has_forward=None if module is None else _has_forward(inner),
        depthwise_frac=None if module is None else _depthwise_frac(module),
        image_convolutions=images and images.convolutions,
        channels_last=images and images.channels_last,
        channel_group_norms=images and images.channel_group_norms,
        calls_view=images and images.calls_view,
        embedding_elements=sum([table.numel() for table in tables]),
        embedding_rows=max([table.shape[0] for table in tables], default=0),
    )


def _untrained(module: Any, trained: set[int]) -> int:
    """The number of parameters that require gradients and are not trained."""
    parameters = all_parameters_in(submodules_in(module))
    return sum([parameter.requires_grad and id(parameter) not in trained for parameter in parameters])


def _loop_code(innermost: FrameType | None) -> list[CodePart]:
    frames = user_frames(innermost)
    return [CodePart(frame.f_code, {**frame.f_globals, **frame_variables(frame)}) for frame in frames]


def _depthwise_frac(module: Any) -> float:
    """The share of depthwise convolutions among the layers with a weight matrix."""
    from torch import nn

    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    layers = [each for each in submodules_in(module) if issubclass(type(each), kinds)]
    groups = [(each.__dict__.get("groups", 1), each.__dict__.get("in_channels")) for each in layers]
    depthwise = [count for count, channels in groups if type(count) is int and 1 < count == channels]
    return len(depthwise) / max(1, len(layers))


def _has_forward(module: Any) -> bool:
    """Whether the class of a module defines forward(); the one of nn.Module only raises an error."""
    from torch import nn

    defining = next(iter([kind for kind in type(module).__mro__ if "forward" in vars(kind)]), None)
    return defining is not nn.Module


def _dense_tables(module: Any, trained: set[int]) -> list[Any]:
    """The trained weights of embedding layers with dense gradients that no other layer uses."""
    from torch import nn

    if module is None:
        return []
    layers = submodules_in(module)
    is_table = [issubclass(type(layer), (nn.Embedding, nn.EmbeddingBag)) for layer in layers]
    others = {
        id(weight)
        for layer, is_embedding in zip(layers, is_table, strict=True)
        if not is_embedding
        for weight in layer.__dict__["_parameters"].values()
    }
    tables = {
        id(weight): weight
        for layer, is_embedding in zip(layers, is_table, strict=True)
        if is_embedding and layer.__dict__.get("sparse") is False
        for weight in [layer.__dict__["_parameters"].get("weight")]
    }
    return [weight for key, weight in tables.items() if key in trained and key not in others]


def _accepts_sparse(optimizer: Any) -> bool:
    """Whether sparse gradients give the same results: only rows that have a gradient change."""
    from torch.optim import SGD, Adagrad

    unused = ("momentum", "weight_decay", "lr_decay", "fused", "maximize")
    return type(optimizer) in (SGD, Adagrad) and not any(
        [group.get(setting) for group in optimizer.param_groups for setting in unused]
    )


def visible_values(innermost: FrameType | None) -> NamedValues:
    """Variables visible from the user's frames, and the attributes of their `self`: the best one for a fix first.

    A variable of the notebook that the running cell passes on comes before the parameters that receive its value: a fix
    can replace it in the cell. Then come the variables of functions, from the innermost outward; an inner function only
    shares those of a function around it.
    """
    return [(variable.name, variable.value) for variable in _variables(innermost)]


def _variables(innermost: FrameType | None) -> list[Variable]:
    visited: set[int] = set()
    used: set[str] = set()
    variables: list[Variable] = []
    for frame in user_frames(innermost):
        used.update(frame.f_code.co_names)
        local_variables, code = frame_variables(frame), frame.f_code
        function = code.co_name if code.co_flags & inspect.CO_NEWLOCALS else ""
        is_part = function.startswith("<")  # <lambda>, <listcomp>
        shared = set(local_variables if is_part else code.co_freevars)  # with a function around this one
        variables += [
            Variable(name, value, None if name in shared else function) for name, value in _public(local_variables)
        ]
        if id(frame.f_globals) not in visited:
            visited.add(id(frame.f_globals))
            variables += [Variable(name, value, "") for name, value in _public(frame.f_globals)]
        attributes = _attributes(local_variables.get("self"))
        variables += [Variable(name, value, None if "self" in shared else function) for name, value in attributes]

    def rank(variable: Variable) -> int:
        is_passed_on = variable.function == "" and variable.name in used
        return 0 if is_passed_on else 1 if variable.function else 2

    return sorted(variables, key=rank)


def _public(values: dict[str, Any], prefix: str = "") -> NamedValues:
    return [(f"{prefix}{name}", value) for name, value in list(values.items()) if not name.startswith("_")]


def frame_variables(frame: FrameType) -> dict[str, Any]:
    """Variables of a frame.

    Before Python 3.13, reading a function's frame leaves a copy with it, which would keep the tensors of this step
    alive for as long as the function runs. That copy is emptied, unless the user holds it, e.g. by calling locals().
    """
    frame_copy = frame.f_locals
    values = dict(frame_copy)
    is_copy = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(frame_copy) == _FRAME_AND_US:
        frame_copy.clear()
    return values


def _attributes(instance: Any) -> NamedValues:
    attributes = getattr(type(instance), "__dict__", {}).get("__dict__") and object.__getattribute__(
        instance, "__dict__"
    )
    if not isinstance(attributes, dict):
        return []
    modules = attributes.get("_modules")  # the submodules of a module
    return _public(attributes, "self.") + (_public(modules, "self.") if isinstance(modules, dict) else [])


def group_count(optimizer: Any) -> int:
    """The number of parameter groups; 0 if only code of the user's knows it."""
    try:
        groups = object.__getattribute__(optimizer, "__dict__").get("param_groups")
    except AttributeError:
        return 0
    return len(groups) if type(groups) is list else 0


def parameter_count(optimizer: Any) -> int:
    """The number of parameter tensors that an optimizer updates."""
    return len(optimizer_parameters(optimizer))


def optimizer_parameters(optimizer: Any) -> list[Any]:
    """The parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _common_value(values: Iterable[bool | None]) -> bool | None:
    """The value that all groups share; None if they have none, or differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _devices(parameters: Iterable[Any]) -> str | None:
    return " and ".join(sorted({parameter.device.type for parameter in parameters})) or None


def _dtype(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")
