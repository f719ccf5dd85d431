"""Operators for tests of their prices, written down by hand: sizes in, records of the tape out."""

from __future__ import annotations

from math import prod

from gpulab.virtual.op_log.ops import Op, TensorInfo

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "bool": 1, "float64": 8}


def tensor(*sizes, dtype="float32", contiguous=True, channels_last=False):
    return TensorInfo(sizes, dtype, prod(sizes) * WIDTHS[dtype], contiguous and not channels_last, channels_last)


def product(rows, inner, columns, dtype="float32", times=0, tf32=False, turned=True):
    """mm, or bmm with `times`; `turned`: the second factor is a transposed view, as of nn.Linear's weight."""
    front = (times,) if times else ()
    left, right = tensor(*front, rows, inner, dtype=dtype), tensor(*front, inner, columns, dtype=dtype)
    if turned:
        right = tensor(*front, inner, columns, dtype=dtype, contiguous=False)
    return Op(
        name="aten::bmm" if times else "aten::mm",
        inputs=(left, right),
        outputs=(tensor(*front, rows, columns, dtype=dtype),),
        flops=2 * max(1, times) * rows * inner * columns,
        tf32=tf32,
    )


def elementwise(name, *sizes, dtype="float32", input_count=1):
    x = tensor(*sizes, dtype=dtype)
    return Op(name=f"aten::{name}", inputs=(x,) * input_count, outputs=(x,))


def convolution(batch, inward, side, outward, filter_side, stride=1, *, dtype="float32", last=False, tf32=False):
    """Forward, with an image that is padded so that only the stride makes it smaller."""
    small = side // stride
    return Op(
        name="aten::cudnn_convolution",
        inputs=(
            tensor(batch, inward, side, side, dtype=dtype, channels_last=last),
            tensor(outward, inward, filter_side, filter_side, dtype=dtype, channels_last=last),
        ),
        outputs=(tensor(batch, outward, small, small, dtype=dtype, channels_last=last),),
        flops=2 * batch * small * small * outward * inward * filter_side**2,
        tf32=tf32,
    )


def convolution_backward(forward, image_too=True):
    image, weight = forward.inputs
    grads = (image, weight) if image_too else (weight,)
    return Op(
        name="aten::convolution_backward",
        inputs=(forward.outputs[0], image, weight),
        outputs=grads,
        flops=forward.flops * len(grads),
        tf32=forward.tf32,
    )


def attention(batch, heads, length, width, dtype="bfloat16", kind="flash", causal=False, backward=False):
    x = tensor(batch, heads, length, width, dtype=dtype)
    name = f"aten::_scaled_dot_product_{kind}_attention{'_backward' if backward else ''}"
    flops = (10 if backward else 4) * batch * heads * length * length * width
    inputs, outputs = ((x,) * 5, (x,) * 3) if backward else ((x,) * 3, (x,))
    return Op(name=name, inputs=inputs, outputs=outputs, flops=flops, details=(("causal", str(causal)),))


def foreach_op(name, sizes, lists):
    """A _foreach or fused operator on so many lists of tensors of these sizes."""
    tensors = tuple(tensor(size) for size in sizes)
    return Op(name=f"aten::{name}", inputs=tensors * lists, outputs=(), list_length=len(sizes))


def resnet_layers(batch, *, dtype="float32", last=False, tf32=False):
    """ResNet-50's convolutions, each with how many channels come out: (convolution, first of all)."""
    layers = [convolution(batch, 3, 224, 64, 7, 2, dtype=dtype, last=last, tf32=tf32)]
    inward, side = 64, 56
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            small = side // step
            shapes = [(inward, side, width, 1, 1), (width, side, width, 3, step), (width, small, 4 * width, 1, 1)]
            if block == 0:
                shapes.append((inward, side, 4 * width, 1, step))
            layers += [convolution(batch, *shape, dtype=dtype, last=last, tf32=tf32) for shape in shapes]
            inward, side = 4 * width, small
    return layers


def resnet_step(batch, *, dtype="float32", last=False, tf32=False, training=True):
    """The operators of ResNet-50 that take time: a training step, or forward alone."""
    ops = []
    layers = resnet_layers(batch, dtype=dtype, last=last, tf32=tf32)
    for place, layer in enumerate(layers):
        x = layer.outputs[0]
        channel = tensor(x.sizes[1])
        statistics = (channel, channel) if training else (tensor(0), tensor(0))
        ops.append(layer)
        ops.append(Op(name="aten::cudnn_batch_norm", inputs=(x, *(channel,) * 4), outputs=(x, *statistics)))
        ops.append(Op(name="aten::relu_", inputs=(x,), outputs=(x,)))
        if layer.inputs[1].sizes[2:] == (1, 1) and x.sizes[1] >= 4 * 64 and layer.inputs[1].sizes[1] * 4 == x.sizes[1]:
            ops.append(Op(name="aten::add_", inputs=(x, x), outputs=(x,)))
        if training:
            ops.append(Op(name="aten::threshold_backward", inputs=(x, x), outputs=(x,)))
            ops.append(
                Op(
                    name="aten::cudnn_batch_norm_backward",
                    inputs=(x, x, *(channel,) * 5),
                    outputs=(x, channel, channel),
                )
            )
            ops.append(convolution_backward(layer, image_too=place > 0))
    return ops
