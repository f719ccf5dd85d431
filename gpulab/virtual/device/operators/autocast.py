"""Autocast on the virtual GPU: PyTorch's own operator lists, applied to fake CUDA tensors.

PyTorch's autocast kernels check in C++ whether a tensor is on CUDA. Fake tensors are on the meta device there and fail
this check. So each operator of the lists gets a Python kernel while the virtual GPU is active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# From the reference of torch.amp, "CUDA Ops that can autocast to float16".
HALF_PRECISION = [
    "_convolution",
    "_convolution.deprecated",
    "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "conv1d",
    "conv1d.padding",
    "conv2d",
    "conv2d.padding",
    "conv3d",
    "conv3d.padding",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "einsum",
    "gru_cell",
    "linalg_multi_dot",
    "linalg_vecdot",
    "linear",
    "lstm_cell",
    "matmul",
    "mm",
    "mv",
    "prelu",
    "rnn_relu_cell",
    "rnn_tanh_cell",
    "scaled_dot_product_attention",
]
FLOAT32 = [
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "acos",
    "asin",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "dist",
    "erfinv",
    "exp",
    "expm1",
    "frobenius_norm.dim",
    "group_norm",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "native_layer_norm",
    "nll_loss",
    "nll_loss2d",
    "nuclear_norm",
    "nuclear_norm.dim",
    "pdist",
    "poisson_nll_loss",
    "pow.Scalar",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "reciprocal",
    "renorm",
    "rms_norm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softplus",
    "tan",
    "triplet_margin_loss",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
]
FLOAT32_BY_DEFAULT = [
    "cumprod",
    "cumsum",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "linalg_vector_norm",
    "log_softmax.int",
    "prod",
    "prod.dim_int",
    "softmax.int",
    "sum",
    "sum.dim_IntList",
]
WIDEST_INPUT_TYPE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sampler",
    "index_put",
    "scatter_add",
    "tensordot",
    "vdot",
]
BANNED = ("binary_cross_entropy",)


class AutocastKernels:
    """Autocast kernels with their cache of cast weights."""

    def __init__(self) -> None:
        self._cast_weights: dict[int, tuple[Any, Any]] = {}  # (weight, cast weight), by the weight's id

    def clear(self) -> None:
        """Drop all cached casts, as PyTorch does when the outermost autocast ends."""
        self._cast_weights.clear()

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """Return one kernel per operator of the lists, by aten name; only operators that this PyTorch has."""
        import torch

        kernels: dict[str, Callable[..., Any]] = {}
        lists = ((HALF_PRECISION, self._lower), (FLOAT32, self._float32),
                 (FLOAT32_BY_DEFAULT, self._float32_by_default), (WIDEST_INPUT_TYPE, self._widest),
                 (BANNED, self._banned))  # fmt: skip
        for names, make_kernel in lists:
            for name in names:
                if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"):
                    packet, _, overload = name.partition(".")
                    kernels[name] = make_kernel(getattr(getattr(torch.ops.aten, packet), overload or "default"))
        return kernels

    def _lower(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            return self._run(op, args, kwargs, torch.get_autocast_dtype("cuda"))

        return run

    def _float32(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            return self._run(op, args, kwargs, torch.float32)

        return run

    def _float32_by_default(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            if kwargs.get("dtype") is None and _eligible(args[0]) and not _has_dtype_argument(op, args):
                kwargs = {**kwargs, "dtype": torch.float32}  # cast inside the operator, without a separate kernel
            return self._run(op, args, kwargs, None)

        return run

    def _widest(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            from gpulab.virtual.device.tensors.tensor_info import tensors_in

            tensors = [each for each in tensors_in(args) if _eligible(each)]
            has_float32 = any(each.dtype is torch.float32 for each in tensors)
            return self._run(op, args, kwargs, torch.float32 if has_float32 else torch.get_autocast_dtype("cuda"))

        return run

    def _banned(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(
                "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
                "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
                "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
                "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
                "safe to autocast."
            )

        return run

    def _run(self, op: Any, args: Any, kwargs: Any, dtype: Any) -> Any:
        import torch

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)):
            if dtype is not None:
                args = [self._cast_value(each, dtype) for each in args]
                kwargs = {name: self._cast_value(each, dtype) for name, each in kwargs.items()}
            return op(*args, **kwargs)

    def _cast_value(self, value: Any, dtype: Any) -> Any:
        import torch

        if type(value) in (list, tuple):
            return [self._cast_value(each, dtype) for each in value]
        if not isinstance(value, torch.Tensor) or not _eligible(value) or value.dtype is dtype:
            return value
        is_weight = (
            dtype is not torch.float32 and value.dtype is torch.float32 and value.is_leaf and value.requires_grad
        )
        if not (is_weight and torch.is_autocast_cache_enabled()) or value._is_view():
            return value.to(dtype)
        entry = self._cast_weights.get(id(value))
        if entry is None:
            entry = self._cast_weights[id(value)] = (value, value.to(dtype))
        return entry[1]


def _eligible(value: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return False
    return value.is_floating_point() and value.dtype is not torch.float64


def _has_dtype_argument(op: Any, args: Any) -> bool:
    """Return whether a positional argument is a dtype, as the third of softmax."""
    import torch

    return any(isinstance(each, torch.dtype) for each in args)
