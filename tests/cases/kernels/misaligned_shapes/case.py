from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, on_gpu, stepped

ODD = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"
BF16 = ["c10::BFloat16", "c10::BFloat16"]


def products(name, dur_ms=80, shapes=((96, 3137, 64), (96, 64, 3137))):
    def step(at):
        recorded = {"op": "aten::bmm", "shapes": shapes, "dtypes": BF16}
        waits = event(EventKind.SYNC, "cudaStreamSynchronize", at + 1, dur_ms - 0.99)
        return [*launched_kernel(name, at, dur_ms, number=round(at) + 1, **recorded), waits]

    return stepped(step)


def provoked_by_an_odd_sequence_length():
    return on_gpu(products(ODD))


def provoked_by_names_alone_where_sizes_were_not_recorded():
    return on_gpu(products(ODD, shapes=None))


def provoked_by_tf32_that_reads_one_number_at_once():
    return on_gpu(products("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1", shapes=None), "A100")


def spared_by_tf32_that_reads_four():
    return on_gpu(products("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align4", shapes=None), "A100")


def spared_where_the_library_pads_odd_sizes_itself():
    return on_gpu(products("nvjet_tst_128x64_64x8_2x1_v_bz_TNT"))


def spared_by_aligned_sizes():
    return on_gpu(products(ODD.replace("align1", "align8"), shapes=((96, 3136, 64), (96, 64, 3136))))


def spared_beside_the_tensor_cores_where_no_alignment_matters():
    return on_gpu(products("cutlass_80_simt_sgemm_128x64_8x5_nn_align1"))


def spared_where_it_is_a_small_part():
    return on_gpu(products(ODD, 4))
