from tests.support.runs.made_runs import collective, launched_kernel, on_gpu, stepped

GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)"
EMBEDDING = "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 2ul>(float*)"


def kernels(name, dur_ms):
    def step(at):
        return [
            *launched_kernel(name, at, dur_ms, number=round(at) + 1),
            *launched_kernel("nvjet_tst_128x64", at + dur_ms, 98 - dur_ms, number=round(at) + 2, called_ms=at + 1),
        ]

    return on_gpu(stepped(step))


def provoked_by_gathering():
    return kernels(GATHER, 30)


def provoked_by_tables_of_embeddings():
    return kernels(EMBEDDING, 30)


def spared_where_it_is_a_small_part():
    return kernels(GATHER, 5)


def spared_by_an_all_gather_between_gpus():
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return on_gpu(
        stepped(lambda at: [collective(name, at, 30), *launched_kernel("nvjet_tst", at + 30, 60, number=round(at))])
    )


def spared_by_plain_copies():
    return kernels("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>(int)", 30)


def spared_where_a_compiler_made_the_kernel():
    return kernels("triton_poi_fused_embedding_gather_add_0", 30)
