from dataclasses import replace

from gpulab.run import Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import GPUS, event, gpu_samples, launched_kernel, on_gpu, run_of, stepped

KERNELS = {
    "mul": "void at::native::vectorized_elementwise_kernel<4, BinaryFunctor<float, MulFunctor<float>>>(int)",
    "shift": "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)",
    "tanh": "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda>(int)",
    "softmax": "void at::native::cunn_SoftMaxForward<8, float, float, float, SoftMaxForwardEpilogue>(float*)",
    "loss": "void at::native::cunn_SoftMaxForward<8, float, float, float, LogSoftMaxForwardEpilogue>(float*)",
    "gemm": "nvjet_tst_128x64_64x8_2x1_v_bz_TNT",
    "triton": "triton_poi_fused_add_mul_tanh_0",
    "update": "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdam>(long)",
}


def kernels(*names, grids=None, each_ms=10, compute_ms=30):
    """A matrix product, then these kernels, then another; the host launches all at once."""
    names = ("gemm", *names, "gemm")
    grids = (1000, *(grids or [1000] * (len(names) - 2)), 1000)

    def step(at):
        long_ms = compute_ms + each_ms * (len(names) - 2)
        events, begin = [event(EventKind.SYNC, "cudaStreamSynchronize", at + 5, long_ms - 4.99)], at
        for place, (name, grid) in enumerate(zip(names, grids, strict=True)):
            dur = compute_ms / 2 if name == "gemm" else each_ms
            events += launched_kernel(
                KERNELS[name], begin, dur, number=round(at) * 100 + place, grid=grid, called_ms=at + place * 0.01
            )
            begin += dur
        return events

    return on_gpu(stepped(step))


def operators(*names, each_ms=6.0, compute_ms=40):
    def step(at):
        events = [event(EventKind.OP, "aten::addmm", at, compute_ms)]
        at += compute_ms
        for name in names:
            events.append(event(EventKind.OP, f"aten::{name}", at, each_ms))
            at += each_ms
        return events

    return run_of(stepped(step))


def provoked_by_a_formula_written_out_on_a_gpu():
    return kernels("mul", "mul", "tanh", "mul")


def provoked_by_a_softmax_between_two_products():
    return kernels("mul", "softmax", each_ms=20)


def provoked_by_a_formula_written_out_on_a_cpu():
    return operators("pow", "mul", "add", "tanh", "add", "mul", "mul")


def provoked_by_a_chain_of_no_known_formula_on_a_cpu():
    return operators("mul", "add", "clamp", "sub", "abs")


def spared_by_pairs_which_every_model_has():
    return kernels("mul", "mul", each_ms=20)


def spared_where_a_compiler_has_made_one_of_them():
    return kernels("triton", "triton", "triton", "triton")


def spared_by_kernels_on_tensors_of_different_sizes():
    return kernels("mul", "mul", "mul", "mul", grids=(1000, 400, 1300, 50))


def spared_by_an_optimizer_that_updates_all_at_once():
    return kernels("update", "update", "update", "update")


def spared_by_the_softmax_of_a_loss():
    return kernels("loss", each_ms=50)


def spared_where_chains_are_a_small_part():
    return kernels("mul", "mul", "tanh", "mul", each_ms=1, compute_ms=80)


def spared_by_pytorch_s_own_operators_on_a_cpu():
    return operators("gelu", "native_layer_norm", "_softmax", "gelu", "native_layer_norm", "gelu", "gelu")


def spared_by_many_tiny_operators_whose_cost_is_their_call():
    return run_of(stepped(lambda at: [event(EventKind.OP, "aten::mul", at + 0.02 * n, 0.004) for n in range(4000)]))


def spared_by_the_loop_of_an_optimizer():
    def step(at):
        update = event(EventKind.ANNOTATION, "Optimizer.step#AdamW.step", at + 40, 50)
        names = ("mul", "add", "mul", "sqrt", "div") * 6
        return [
            event(EventKind.OP, "aten::addmm", at, 40),
            update,
            *(event(EventKind.OP, f"aten::{name}_", at + 41 + 1.5 * place, 1.5) for place, name in enumerate(names)),
        ]

    return run_of(stepped(step))


def rounds(*names, times=16, grid=1, full=False):
    """The same kernels over and over, as for one row of a batch after the other."""
    each_ms = 98 / (times * len(names))

    def step(at):
        events, begin = [event(EventKind.SYNC, "cudaStreamSynchronize", at + 1, 97)], at
        for place in range(times * len(names)):
            name = KERNELS[names[place % len(names)]]
            number = round(at) * 10_000 + place
            events += launched_kernel(name, begin, each_ms, number=number, grid=grid, called_ms=at + place * 0.001)
            begin += each_ms
        return events

    machine = Machine(gpus=(replace(GPUS["H100"], memory_bytes=80 * 10**9),))
    samples = gpu_samples({"memory_used_bytes": 70e9 if full else 1e9})
    return on_gpu(stepped(step), machine=machine, gpu_rows=samples)


def provoked_by_the_rounds_of_a_loop_that_are_a_formula_each():
    return rounds("mul", "mul", "tanh", "mul", times=40, grid=1000)


def provoked_by_a_polynomial_of_a_few_terms():
    return kernels("mul", "shift", "mul", "shift", "mul", "shift", "mul", "shift")


def spared_by_one_operator_for_row_after_row():
    return rounds("softmax", times=180)


def spared_by_one_operator_for_one_large_tensor_after_another():
    return rounds("softmax", times=180, grid=1000)


def spared_by_three_tensors_that_each_go_through_the_same():
    return kernels("tanh", "tanh", "tanh")


def spared_by_pairs_for_row_after_row():
    return rounds("mul", "tanh", times=90)


def spared_as_a_larger_batch_comes_before_one_kernel_for_each_row():
    return rounds("mul", "mul", "tanh", "mul", times=45)


def provoked_where_there_is_no_memory_for_a_larger_batch():
    return rounds("mul", "mul", "tanh", "mul", times=45, full=True)


def spared_by_operators_for_row_after_row_on_a_cpu():
    return operators(*("relu",) * 12, each_ms=4.0)
