"""A training loop on a CPU whose layers take most of a step, and loops in which bfloat16 would not help."""

from gpulab.run import LayerTimes, Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

NODE = "autograd::engine::evaluate_function: "


def training(
    layer_ms=15.0, *, instructions="avx512_bf16", dtype="float32", casts=False, trains=True, depthwise_frac=None, **more
):
    """Steps of 100 ms with four layers; the rest is elementwise work."""

    def step(at):
        events = [event(EventKind.OP, "aten::addmm", at + 20 * layer, layer_ms) for layer in range(4)]
        events += [event(EventKind.OP, "aten::gelu", at + 20 * layer + layer_ms, 20 - layer_ms) for layer in range(4)]
        if casts:
            events.append(event(EventKind.OP, f"{NODE}ToCopyBackward0", at + 80, 1))
        if trains:
            events.append(event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 82, 10))
        return events

    return run_of(
        stepped(step),
        models=(Model(kind="Net", name="net", tensors=8, dtypes=(dtype,), depthwise_frac=depthwise_frac),),
        optimizers=(Optimizer(kind="SGD", name="optimizer", tensors=8, device="cpu"),) if trains else (),
        facts={} if instructions is None else {"cpu_bfloat16": instructions},
        **more,
    )


def provoked_by_float32_layers():
    return training()


def provoked_by_a_cpu_whose_speed_was_not_measured():
    return training(instructions="bf16")


def provoked_where_few_convolutions_are_depthwise():
    return training(depthwise_frac=0.1)


def spared_where_many_convolutions_are_depthwise():
    return training(depthwise_frac=0.33)


def spared_where_autocast_is_on():
    return training(casts=True)


def spared_where_the_weights_are_bfloat16():
    return training(dtype="bfloat16")


def spared_on_a_cpu_without_the_instructions():
    return training(instructions="none")


def spared_where_the_cpu_is_unknown():
    return training(instructions=None)


def spared_where_layers_are_a_small_part():
    return training(layer_ms=4.0)


def spared_where_the_layers_are_too_small():
    def step(at):
        events = [event(EventKind.OP, "aten::addmm", at + 0.1 * layer, 0.05) for layer in range(800)]
        return [*events, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 82, 10)]

    models = (Model(kind="Net", name="net", tensors=8, dtypes=("float32",)),)
    return run_of(stepped(step), models=models, facts={"cpu_bfloat16": "avx512_bf16"})


def attention(products_ms):
    """Steps in which attention takes 80 ms: two products, and a softmax and dropout between them."""
    name = "scaled_dot_product_attention"

    def step(at):
        inner = [("aten::bmm", 0, products_ms / 2), ("aten::bmm", 80 - products_ms / 2, products_ms / 2)]
        inner += [("aten::softmax", products_ms / 2, 5), ("aten::dropout", products_ms / 2 + 5, 75 - products_ms)]
        parts = [event(EventKind.OP, part, at + start, dur_ms) for part, start, dur_ms in inner]
        whole = [event(EventKind.OP, op, at, 80) for op in (f"aten::{name}", f"aten::_{name}_math")]
        return [*whole, *parts, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 82, 10)]

    return run_of(
        stepped(step),
        models=(Model(kind="Net", name="net", tensors=8, dtypes=("float32",)),),
        optimizers=(Optimizer(kind="SGD", name="optimizer", tensors=8, device="cpu"),),
        facts={"cpu_bfloat16": "avx512_bf16"},
    )


def provoked_where_the_products_of_attention_take_the_time():
    return attention(70)


def spared_where_the_dropout_of_attention_takes_the_time():
    return attention(20)


def provoked_where_the_layers_are_faster_in_bfloat16():
    return training(layer_times=LayerTimes(layers=4, **times_ms(60, 34, 30)))


def spared_where_the_layers_are_slower_in_bfloat16():
    return training(layer_times=LayerTimes(layers=4, **times_ms(60, 66, 61)))


def spared_where_layers_are_too_short_to_count():
    return training(layer_ms=0.05, layer_times=LayerTimes(layers=4, **times_ms(60, 34, 30)))


def spared_where_only_layers_without_a_conversion_are_faster():
    return training(layer_times=LayerTimes(layers=4, **times_ms(60, 62, 40)))


def times_ms(float32, bfloat16, chained):
    return {
        "float32_ns": float32 * 1_000_000,
        "bfloat16_ns": bfloat16 * 1_000_000,
        "bfloat16_chained_ns": chained * 1_000_000,
    }
