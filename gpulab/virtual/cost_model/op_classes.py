"""Classify operators by name: those that launch no kernel, and the class of the others."""

from __future__ import annotations

import re
from functools import cache

from gpulab.virtual.cost_model.kernel import OpClass

# Only allocate memory, create a view, or query a tensor.
_NOTHING = re.compile(
    r"empty(?:_like|_strided|_permuted|_quantized)?|new_empty(?:_strided)?|set|resize(?:_as)?|detach|alias|lift(?:_fresh)?"
    r"|view(?:_as)?|reshape(?:_as)?|_unsafe_view|_reshape_alias|expand(?:_as)?|permute|transpose|t|slice|select|narrow"
    r"|split(?:_with_sizes)?|chunk|unbind|unsqueeze|squeeze|as_strided|diagonal|unfold|movedim|flatten|unflatten"
    r"|record_stream|requires_grad|is_\w+|sym_\w+|size|stride|storage_offset|numel|_has_compatible_shallow_copy_type"
    r"|swapaxes|view_as_real|view_as_complex|real|imag|swapdims|mT|mH|adjoint|H|T|_version|is_pinned"
    r"|_cudnn_init_dropout_state|_assert_async|_assert_scalar"
)
_CLASSES = (
    (r"_?foreach_\w+|_fused_\w+|_amp_foreach_\w+", OpClass.OPTIMIZER),
    (r"bmm|baddbmm|addbmm|_grouped_mm", OpClass.BATCHED),
    (r"mm|addmm|_addmm_activation|mv|addmv|dot|vdot|matmul|linear|_scaled_mm|_int_mm|addr|ger", OpClass.PRODUCT),
    (r"(?:\w+_)?convolution\w*|conv[123]d|conv_\w+|_conv_depthwise2d|conv_depthwise3d", OpClass.CONVOLUTION),
    (r"_(?:scaled_dot_product|flash|efficient|cudnn)_\w*attention\w*", OpClass.ATTENTION),
    (r"_cudnn_rnn(?:_backward)?|_thnn_fused_\w+|lstm\w*|gru\w*|rnn_\w+", OpClass.RECURRENT),
    (r"copy|_to_copy|clone|contiguous|cat|stack|_pack_padded_sequence|repeat|flip|roll|constant_pad_nd|slice_backward"
     r"|select_backward|slice_scatter|select_scatter|as_strided_scatter|diagonal_backward|pixel_\w*shuffle|tril|triu"
     r"|(?:reflection|replication)_pad\w*|split_copy|expand_copy|repeat_interleave|im2col|col2im|channel_shuffle"
     r"|_copy_from|_copy_from_and_resize|unfold_backward|transpose_copy|permute_copy|index_fill|block_diag",
     OpClass.COPY),
    (r"(?:\w*_)?(?:layer|batch|group|instance|rms)_norm\w*|_fused_rms_norm\w*|_batch_norm\w*|_weight_norm\w*",
     OpClass.NORM),
    (r"_softmax\w*|_log_softmax\w*|softmax|log_softmax|_safe_softmax|_masked_softmax\w*|nll_loss\w*|logsumexp"
     r"|cross_entropy\w*|_ctc_loss\w*|multi_margin_loss\w*|multilabel_\w+", OpClass.SOFTMAX),
    (r"sum|mean|amax|amin|aminmax|argmax|argmin|prod|var|std|var_mean|std_mean|norm|linalg_vector_norm|any|all|max|min"
     r"|nansum|count_nonzero|median|nanmedian|mode|cumsum|cumprod|cummax|cummin|logcumsumexp|bincount|histc"
     r"|trace|equal|value_selecting_reduction_backward", OpClass.REDUCTION),
    (r"\w*(?:pool|upsample|interpolate|grid_sampler)\w*", OpClass.POOL),
    (r"(?:_unsafe_)?index\w*|gather\w*|scatter\w*|embedding\w*|_embedding_bag\w*|take\w*|put|nonzero\w*|where_nonzero"
     r"|masked_select\w*|masked_scatter\w*|sort|argsort|topk|unique\w*|_unique2|searchsorted|bucketize|multinomial"
     r"|randperm|kthvalue|_index_put_impl|isin|one_hot", OpClass.INDEXING),
    (r"linalg_\w+|_linalg_\w+|fft_\w+|_fft_\w+|cholesky\w*|triangular_solve|lu_\w+|svd|qr|_cdist\w*|_pdist\w*",
     OpClass.OTHER),
)  # fmt: skip
_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in _CLASSES)


@cache
def base_name(name: str) -> str:
    """Return an operator's name without its namespace and without the in-place underscore."""
    short = name.rpartition("::")[2]
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


@cache
def has_no_kernel(name: str) -> bool:
    """Whether an operator of this name only allocates memory, creates a view, or queries a tensor."""
    return name.startswith("prim::") or bool(_NOTHING.fullmatch(base_name(name)))


@cache
def op_class(name: str) -> OpClass:
    """Return the class of an operator; operators that are not listed count as elementwise."""
    short = base_name(name)
    return next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(short)), OpClass.ELEMENTWISE)
