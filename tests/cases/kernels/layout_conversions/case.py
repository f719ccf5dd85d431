from gpulab.run import Gpu, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, mark, on_gpu, stepped

TURN = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true>(params)"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"


def convolving(turning_ms, name=TURN):
    def step(at):
        return [
            *launched_kernel(name, at, turning_ms, number=round(at) + 1),
            *launched_kernel(CONVOLUTION, at + turning_ms, 95 - turning_ms, number=round(at) + 2, called_ms=at + 1),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 2, 93),
        ]

    return stepped(step)


def provoked_by_conversions_inside_convolutions():
    return on_gpu(convolving(20))


def provoked_by_the_transposes_of_miopen():
    return on_gpu(convolving(20, "batched_transpose_32x32_half"), "MI300")


def spared_in_channels_last():
    return on_gpu(convolving(20, CONVOLUTION))


def spared_where_only_the_batch_is_turned_once():
    return on_gpu(convolving(1))


def spared_by_transposes_that_the_program_asks_for():
    return on_gpu(convolving(20, "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>(int)"))


def spared_where_the_host_is_the_limit():
    def step(at):
        return [event(EventKind.OP, "aten::conv2d", at, 99), *launched_kernel(TURN, at + 1, 20, number=round(at) + 1)]

    # Steps after the recorded ones are as long: recording adds nothing, and the host needs all of each.
    marks = [mark(100 * number, 1) for number in range(14)]
    return on_gpu(stepped(step), marks=marks, windows=[(0, 600)])


def spared_on_a_gaming_card_of_amd_s_which_is_slower_so():
    machine = Machine(gpus=(Gpu(index=0, name="AMD Radeon RX 7900 XTX"),))
    return on_gpu(convolving(20, "batched_transpose_32x32_half"), machine=machine)
