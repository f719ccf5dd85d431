"""Which changes a finding of gpulab stands for, to compare a diagnosis with the change that wins by the clock."""

_DATA = {"num_workers", "persistent_workers", "batch_whole", "vectorize_items", "cache_items", "storage_format"}
_OPTIMIZER = {"fused_optimizer", "foreach_optimizer", "sparse_gradients"}
_PYTHON = {"remove_python", "fewer_logs", "remove_syncs", "vectorize_items", "batch_whole"}

ANSWERS: dict[str, frozenset[str]] = {
    rule: frozenset(kinds)
    for rule, kinds in {
        "no_workers": _DATA,
        "too_few_workers": _DATA,
        "slow_storage": _DATA,
        "cpu_bound_loading": _DATA,
        "too_many_workers": {"num_workers", "persistent_workers"},
        "slow_evaluation": {"num_workers", "persistent_workers", "eval_less_often", "no_grad"},
        "frequent_evaluation": {"eval_less_often", "no_grad"},
        # One loop over all samples instead of one for each, or a call that moves out of the loop.
        "small_evaluation_batches": {"batch_whole", "remove_python", "larger_batch"},
        "repeated_in_evaluations": {"remove_python", "other"},
        "no_kv_cache": {"kv_cache"},
        "work_between_epochs": {"eval_less_often", "fewer_logs"},
        "padding": {"padding"},
        "ignored_labels": {"selected_positions"},
        "cpu_oversubscription": {"threads"},
        "shared_cpu": {"threads"},
        "host_python": _PYTHON,
        "gil_contention": {"remove_python", "threads", "other"},
        "garbage_collection": {"gc"},
        "periodic_stalls": {"fewer_logs", "eval_less_often"},
        "recompilation": {"static_shapes", "padding", "compile"},
        # On a CPU it advises whole tensors in place of Python loops, or a larger batch, and warns of torch.compile.
        "dispatch_bound": {"remove_python", "batch_whole", "larger_batch", "sdpa", "kv_cache", "foreach_optimizer"},
        "work_outside_model": {"fewer_logs", "remove_python", "clip_grad", "other"},
        "host_syncs": {"remove_syncs", "fewer_logs"},
        "no_mixed_precision": {"precision"},
        "no_bfloat16_on_cpu": {"precision"},
        "nchw_on_cpu": {"channels_last"},
        "dropout_on_cpu": {"dropout"},
        "float64_weights": {"precision"},
        "unused_gradients": {"no_grad"},
        "discarded_gradients": {"no_grad"},
        "frozen_outputs": {"cache_items"},
        # It advises to hoist a call out of a loop, or to pass each row once; "other" holds changes of a model's inputs.
        "repeated_inputs": {"remove_python", "other"},
        "input_preprocessing": {"cache_items"},
        "anomaly_detection": {"other"},
        "sparse_as_dense": {"storage_format"},
        "dense_embedding_gradients": {"sparse_gradients"},
        # It advises one call for the whole batch, which may also mean to vectorize a loop over samples or time steps.
        "unbatched_calls": {"batch_whole", "remove_python"},
        "layout_conversions": {"channels_last"},
        "unfused_optimizer": _OPTIMIZER,
        "unfused_elementwise": {"compile", "sdpa"},
        "small_batch": {"larger_batch"},
        "activation_checkpointing": {"checkpointing_off"},
        "memory_growth": {"no_grad", "other"},
    }.items()
}


def answer(rule: str) -> frozenset[str]:
    """The kinds of change that a first finding of this rule names; none if it advises nothing."""
    return ANSWERS.get(rule, frozenset())
