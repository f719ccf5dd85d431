from gpulab.run import Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, on_gpu, run_of, stepped

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def updating_on_cpu(pieces, each_ms, *, name="aten::mul_", kind="AdamW", length_ms=45):
    """Steps of 100 ms: compute, then the optimizer's operators one after the other."""

    def step(at):
        begin = at + 50
        return [
            event(EventKind.OP, "aten::addmm", at, 49),
            event(EventKind.ANNOTATION, f"Optimizer.step#{kind}.step", begin, length_ms),
            *(event(EventKind.OP, name, begin + length_ms * n / pieces, each_ms) for n in range(pieces)),
        ]

    return stepped(step)


def updating_on_gpu(pieces, *, name=ADD, spread_ms=45, kind="AdamW"):
    def step(at):
        begin = at + 50
        events = [
            *launched_kernel("nvjet_tst_128x64", at, 49, number=round(at) * 1000),
            event(EventKind.ANNOTATION, f"Optimizer.step#{kind}.step", begin, spread_ms),
        ]
        for n in range(pieces):
            events += launched_kernel(
                name, begin + 0.01 + spread_ms * n / pieces, 0.003, number=round(at) * 1000 + n + 1
            )
        return events

    return stepped(step)


def adamw(**told):
    return (Optimizer(kind="AdamW", name="optimizer", device="cpu", **told),)


def provoked_by_a_dozen_operators_for_each_parameter():
    return run_of(updating_on_cpu(1200, 0.003), optimizers=adamw(tensors=100))


def provoked_by_a_loop_in_a_trace_from_elsewhere():
    return on_gpu(updating_on_gpu(1200))


def provoked_by_an_optimizer_without_a_fused_form():
    return run_of(updating_on_cpu(1200, 0.003, kind="NAdam"))


def spared_where_one_operator_updates_all():
    return run_of(updating_on_cpu(2, 20, name="aten::_fused_adamw_"), optimizers=adamw(tensors=100, fused=True))


def spared_where_foreach_is_on():
    return on_gpu(updating_on_gpu(60, name="void multi_tensor_apply_kernel<TensorListMetadata<3>>(long)"))


def spared_by_plain_sgd_on_few_large_tensors():
    optimizers = (Optimizer(kind="SGD", tensors=50),)
    return run_of(updating_on_cpu(50, 0.8, name="aten::add_", kind="SGD"), optimizers=optimizers)


def spared_where_the_optimizer_is_a_small_part():
    return run_of(updating_on_cpu(1200, 0.001, length_ms=3), optimizers=adamw(tensors=100))


def spared_where_it_only_waits_for_the_backward_pass():
    def step(at):
        begin = at + 5
        events = [
            *launched_kernel("nvjet_tst_128x64", at, 95, number=round(at) * 1000),
            event(EventKind.ANNOTATION, "Optimizer.step#AdamW.step", begin, 60),
            event(EventKind.SYNC, "cudaDeviceSynchronize", at + 66, 33),
        ]
        for n in range(200):
            number, called = round(at) * 1000 + n + 1, begin + 0.1 + 0.29 * n
            events += launched_kernel(ADD, at + 95 + 0.004 * n, 0.003, number=number, called_ms=called)
        return events

    return on_gpu(stepped(step))
