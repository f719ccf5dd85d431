"""What a kernel's name says of its arithmetic: names as cuBLAS, cuDNN, CUTLASS and others give them."""

import pytest

from gpulab.analysis.kernels.families import (
    is_compiled,
    is_elementwise,
    is_gather_scatter,
    is_layout_conversion,
    is_softmax,
)
from gpulab.analysis.kernels.interior_kernels import short_kernel_name
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.kernels.tensor_cores import (
    UNKNOWN_ARITHMETIC,
    Cores,
    KernelArithmetic,
    alignment,
    kernel_arithmetic,
)
from gpulab.hardware.precision import Precision

CUDA_CORES = KernelArithmetic(Cores.CUDA, Precision.FLOAT32)
TF32 = KernelArithmetic(Cores.TENSOR, Precision.TF32)
HALF = KernelArithmetic(Cores.TENSOR, Precision.HALF)

NAMES = {
    "volta_sgemm_128x64_nn": CUDA_CORES,
    "ampere_sgemm_128x128_tn": CUDA_CORES,
    "maxwell_sgemm_128x64_tn": CUDA_CORES,
    "volta_scudnn_128x64_relu_interior_nn_v1": CUDA_CORES,
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)": CUDA_CORES,
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)": CUDA_CORES,
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)": CUDA_CORES,
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(params)": CUDA_CORES,
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)": CUDA_CORES,
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4": CUDA_CORES,
    "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4": TF32,
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8": TF32,
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_segment_k_off": TF32,
    "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>": TF32,
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": HALF,
    "volta_h884gemm_128x64_ldg8_nn": HALF,
    "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1": HALF,
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": HALF,
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)": HALF,
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)": HALF,
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": HALF,
    "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": HALF,
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": HALF,
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT": HALF,
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN": HALF,
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext": HALF,
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>()": HALF,
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0": HALF,
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1": UNKNOWN_ARITHMETIC,
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1": UNKNOWN_ARITHMETIC,
    "triton_tem_fused_mm_0": UNKNOWN_ARITHMETIC,
    "attn_fwd": UNKNOWN_ARITHMETIC,
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm90_or_later<Gemm>>(Params)": UNKNOWN_ARITHMETIC,  # noqa: E501
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: short_kernel_name(name)[:50])
def test_units_and_precision_follow_from_the_kernel_name(name):
    assert kernel_arithmetic(name) == NAMES[name]


@pytest.mark.parametrize("name", [name for name in NAMES if NAMES[name] != UNKNOWN_ARITHMETIC])
def test_kernels_with_known_units_are_matrix_kernels(name):
    assert is_matrix(name)


def test_double_precision_is_recognised():
    assert kernel_arithmetic("ampere_dgemm_128x64_nn").precision is Precision.FLOAT64


def test_a_half_precision_kernel_on_cuda_cores_is_not_float32():
    assert (
        kernel_arithmetic("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4>(params)")
        != CUDA_CORES
    )


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", 1),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(Params)", 2),
        ("cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align4", 4),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_ffma_aligna4_alignc4", None),
        ("volta_sgemm_128x64_nn", None),
    ],
)
def test_alignment_follows_from_a_cutlass_name(name, elements):
    assert alignment(name) == elements


@pytest.mark.parametrize(
    "name",
    [
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)",
        "SubTensorOpWithCastTensor1d",
        "void moe::dev::finalize::finalizeKernelVecLoad<KernelParams<cutlass::bfloat16_t, 4, true> >()",
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true>(params)",
        "batched_transpose_32x32_half",
    ],
)
def test_the_name_of_a_matrix_library_alone_makes_no_matrix_kernel(name):
    assert not is_matrix(name)


def test_elementwise_kernels_are_recognised_by_name():
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
    assert is_elementwise(add)
    assert not is_elementwise("triton_poi_fused_add_mul_0")
    assert not is_elementwise("void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>()")
    assert not is_elementwise("void at::native::index_elementwise_kernel<128, 4>(int)")
    assert is_compiled("triton_red_fused_add_mean_0")
    assert is_gather_scatter("void at::native::index_elementwise_kernel<128, 4>(int)")
    assert is_layout_conversion("void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(params)")


def test_the_log_softmax_of_a_loss_is_no_softmax():
    assert is_softmax("void cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, SoftMaxForwardEpilogue>()")
    assert not is_softmax("void cunn_SoftMaxForward<8, float, float, float, LogSoftMaxForwardEpilogue>(float*)")


def test_kernel_names_are_shortened_for_display():
    assert short_kernel_name(
        "void cutlass::Kernel2<cutlass_75_tensorop_x_align1>(cutlass_75_tensorop_x_align1::Params)"
    ) == ("cutlass_75_tensorop_x_align1")
    assert short_kernel_name("void at::native::(anonymous namespace)::softmax_kernel<4>(int)") == "softmax_kernel"
