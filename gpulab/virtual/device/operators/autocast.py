"""autocast on the virtual GPU: PyTorch's own lists, applied to tensors that its C++ takes for no CUDA tensors.

PyTorch's kernels for autocast ask a tensor whether it lies on CUDA, which one of ours, being on meta for C++, denies.
So each operator of the lists gets a kernel in Python for the time of the virtual GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# From the reference of torch.amp, "CUDA Ops that can autocast to float16".
LOWER = [
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
FLOAT32_UNLESS_TOLD = [
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
WIDEST = [
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


class Autocast:
    """Kernels for autocast, with the cache of weights that were cast."""

    def __init__(self) -> None:
        self._cast: dict[int, tuple[Any, Any]] = {}  # weight and what it was cast to, by the weight's id

    def clear(self) -> None:
        """Forget all casts, as PyTorch does when the outermost autocast ends."""
        self._cast.clear()

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """One kernel for each operator of the lists, by its name in aten; only those that this PyTorch has."""
        import torch

        made: dict[str, Callable[..., Any]] = {}
        kinds = ((LOWER, self._lower), (FLOAT32, self._float32), (FLOAT32_UNLESS_TOLD, self._unless_told),
                 (WIDEST, self._widest), (BANNED, self._banned))  # fmt: skip
        for names, kind in kinds:
            for name in names:
                if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"):
                    packet, _, overload = name.partition(".")
                    made[name] = kind(getattr(getattr(torch.ops.aten, packet), overload or "default"))
        return made

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

    def _unless_told(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            if kwargs.get("dtype") is None and _eligible(args[0]) and not _typed(op, args):
                kwargs = {**kwargs, "dtype": torch.float32}  # inside the operator: no tensor is cast before
            return self._run(op, args, kwargs, None)

        return run

    def _widest(self, op: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            from gpulab.virtual.device.tensors.tensor_info import tensors_in

            given = [each for each in tensors_in(args) if _eligible(each)]
            wide = any(each.dtype is torch.float32 for each in given)
            return self._run(op, args, kwargs, torch.float32 if wide else torch.get_autocast_dtype("cuda"))

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
                args = [self._as(each, dtype) for each in args]
                kwargs = {name: self._as(each, dtype) for name, each in kwargs.items()}
            return op(*args, **kwargs)

    def _as(self, value: Any, dtype: Any) -> Any:
        import torch

        if type(value) in (list, tuple):
            return [self._as(each, dtype) for each in value]
        if not isinstance(value, torch.Tensor) or not _eligible(value) or value.dtype is dtype:
            return value
        kept = dtype is not torch.float32 and value.dtype is torch.float32 and value.is_leaf and value.requires_grad
        if not (kept and torch.is_autocast_cache_enabled()) or value._is_view():
            return value.to(dtype)
        found = self._cast.get(id(value))
        if found is None:
            found = self._cast[id(value)] = (value, value.to(dtype))
        return found[1]


def _eligible(value: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return False
    return value.is_floating_point() and value.dtype is not torch.float64


def _typed(op: Any, args: Any) -> bool:
    """Whether a type stands among the positional arguments, as softmax's third."""
    import torch

    return any(isinstance(each, torch.dtype) for each in args)
