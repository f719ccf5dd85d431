from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, loader_call, on_gpu, stepped

PLAIN, TF32, HALF = "volta_sgemm_128x64_nn", "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", "nvjet_tst_128x64"
OTHER = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def busy_with(name, dur_ms=60):
    """Steps of 100 ms in which the GPU always works; the host launches all of it at once and then waits."""

    def step(at):
        return [
            *launched_kernel(name, at, dur_ms, number=round(at) + 1),
            *launched_kernel(
                "vectorized_elementwise_kernel", at + dur_ms, 98 - dur_ms, number=round(at) + 2, called_ms=at + 1
            ),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 2, 96),
        ]

    return stepped(step)


def provoked_by_float32_on_a_gpu_without_tf32():
    return on_gpu(busy_with(PLAIN), "V100")


def provoked_by_tf32_where_half_is_twice_as_fast():
    return on_gpu(busy_with(TF32, 80), "A100", facts={"float32_matmul_precision": "high"})


def provoked_by_convolutions_of_cudnn_in_float32():
    return on_gpu(busy_with("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)"), "V100")


def spared_where_autocast_is_on():
    return on_gpu(busy_with(HALF), "H100")


def spared_where_names_do_not_tell():
    return on_gpu(busy_with("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm90>"), "H100")


def spared_on_amd_whose_names_follow_other_rules():
    return on_gpu(busy_with("Cijk_Alik_Bljk_SB_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1"), "MI300")


def spared_where_products_are_a_small_part():
    return on_gpu(busy_with(PLAIN, 5), "V100")


def spared_where_the_gpu_waits_for_its_data():
    def step(at):
        return [
            loader_call(at, 80),
            *launched_kernel(PLAIN, at + 80, 15, number=round(at) + 1),
            event(EventKind.OP, "x", at + 81, 18),
        ]

    return on_gpu(stepped(step), "V100", loaders=[Loader(workers=0, batch_size=8)])
