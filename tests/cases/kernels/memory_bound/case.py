from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, on_gpu, stepped

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
GIB = 2**28  # so many float32 numbers


def adding(elements, dur_ms, *, gpu="H100", name=ADD, told=True, many=4):
    """Additions of two float32 tensors: twelve bytes an element, each beside a matrix product."""

    def step(at):
        events = [event(EventKind.SYNC, "cudaStreamSynchronize", at + 1, many * (dur_ms + 2) - 0.99)]
        sizes = {"shapes": [[elements], [elements]], "dtypes": ["float", "float"]} if told else {}
        for n in range(many):
            number, begin = round(at) * 10 + 2 * n + 1, at + n * (dur_ms + 2)
            called = at + 0.01 * n
            events += launched_kernel(name, begin, dur_ms, number=number, op="aten::add", called_ms=called, **sizes)
            events += launched_kernel(
                "nvjet_tst", begin + dur_ms, 2, number=number + 1, op="aten::mm", called_ms=called + 0.005
            )
        return events

    return on_gpu(stepped(step), gpu)


def provoked_by_additions_at_the_rate_of_the_memory():
    return adding(10 * GIB, 12.4)  # 32 GB in 12.4 ms: 2.6 of the 3.35 TB/s that an H100 has


def spared_at_a_fifth_of_that_rate():
    return adding(GIB, 16)


def spared_where_sizes_were_not_recorded():
    return adding(10 * GIB, 12.4, told=False)


def spared_by_tensors_that_live_in_the_cache():
    return adding(20 * GIB, 12.4)


def spared_on_a_gpu_whose_memory_is_not_known():
    return adding(10 * GIB, 12.4, gpu="MI300")


def spared_where_the_time_is_in_products():
    return adding(10 * GIB, 12.4, name="sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n")
