from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, on_gpu, stepped

SINGLE = "ampere_sgemm_128x64_nn"


def products(name, dur_ms=80):
    def step(at):
        waits = event(EventKind.SYNC, "cudaStreamSynchronize", at + 1, dur_ms - 0.99)
        return [*launched_kernel(name, at, dur_ms, number=round(at) + 1), waits]

    return stepped(step)


def provoked_by_float32_products_on_ampere():
    return on_gpu(products(SINGLE), "A100", facts={"float32_matmul_precision": "highest"})


def provoked_by_names_alone_where_the_setting_was_not_recorded():
    return on_gpu(products("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)"), "H100")


def provoked_by_the_new_setting_that_keeps_it_off():
    return on_gpu(products(SINGLE), "H100", facts={"matmul_fp32_precision": "ieee"})


def spared_where_tf32_is_on_already():
    return on_gpu(products("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4"), "A100")


def spared_before_ampere_which_has_none():
    return on_gpu(products("volta_sgemm_128x64_nn"), "V100", facts={"float32_matmul_precision": "highest"})


def spared_on_a_card_whose_tf32_is_no_faster():
    return on_gpu(products(SINGLE), "3090", facts={"float32_matmul_precision": "highest"})


def spared_under_autocast():
    return on_gpu(products("nvjet_hsh_128x64_64x8_2x1_v_bz_TNT"), "H100", facts={"float32_matmul_precision": "highest"})


def spared_where_the_setting_is_on_and_the_products_keep_off():
    return on_gpu(products(SINGLE), "A100", facts={"float32_matmul_precision": "high"})


def spared_where_it_is_a_twentieth_of_the_step():
    return on_gpu(products(SINGLE, 5), "A100", facts={"float32_matmul_precision": "highest"})
