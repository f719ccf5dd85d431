"""What a model does with images: the memory format of its convolutions, and layers that are slow in another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.called_code import CodePart, may_call, parts_of_class
from gpulab.capture.hooks.models.module_tree import submodules_in

_NEED_STRIDES = ("view", "view_as")  # methods of tensors that refuse some memory formats


class ImageLayers(NamedTuple):
    """2D convolutions of a model and what decides whether channels_last suits them."""

    convolutions: int
    channels_last: bool | None  # of their weights; None if all of them are the same in both formats, as those of 1x1
    channel_group_norms: int  # normalisations over groups of channels: GroupNorm, InstanceNorm
    calls_view: bool  # the model or the loop may call Tensor.view(), which channels_last tensors may refuse


def image_layers(module: Any, loop: Sequence[CodePart] = ()) -> ImageLayers | None:
    """Describe the image layers of a model; None if it has no 2D convolution, or convolutions of other dimensions too.

    loop: code of the frames that train it. Only types, `__dict__`, code and weights are read: properties and
    `__getattr__` of the user's classes are not called.
    """
    from torch import nn

    modules = submodules_in(module)
    kinds = [type(each) for each in modules]
    others = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d)
    weights = [
        weight
        for each, kind in zip(modules, kinds, strict=True)
        if issubclass(kind, (nn.Conv2d, nn.ConvTranspose2d))
        and (weight := each.__dict__.get("_parameters", {}).get("weight")) is not None
    ]
    if not weights or any([issubclass(kind, others) for kind in kinds]):
        return None
    group_norms = (nn.GroupNorm, nn.InstanceNorm2d, nn.LocalResponseNorm)
    return ImageLayers(
        convolutions=len(weights),
        channels_last=_channels_last(weights),
        channel_group_norms=sum([issubclass(kind, group_norms) for kind in kinds]),
        calls_view=may_call(_NEED_STRIDES, [*loop, *(part for kind in set(kinds) for part in parts_of_class(kind))]),
    )


def _channels_last(weights: list[Any]) -> bool | None:
    import torch

    formats = set()
    for weight in weights:
        nchw, last = weight.is_contiguous(), weight.is_contiguous(memory_format=torch.channels_last)
        if nchw != last:
            formats.add(last)
    return None if not formats else True in formats
