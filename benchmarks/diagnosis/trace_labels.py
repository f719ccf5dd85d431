"""Known causes of the recorded traces: their labels in the benchmark, and the reasons."""

from __future__ import annotations

# Trace -> the rules that may come first, best known first. Each from what its source says of it, or from reading the
# trace by hand; where several causes of about one size stand side by side, each of them is right. Traces of a few
# events are left out: nothing can be true of a step that is not there.
TRACES: dict[str, tuple[str, ...]] = {
    # By its source: num_workers=0. A third of each step waits for data.
    "v100_resnet50_workers0": ("no_workers",),
    # With 4 workers 1 % is left of that. 32-bit kernels fill three quarters of a step; the host needs nearly all of it
    # to call them, and the optimizer, tensor by tensor, a seventh of that.
    "v100_resnet50_workers4": ("unfused_optimizer", "no_mixed_precision", "dispatch_bound"),
    # Busy 97 %, the queue always full; every convolution and product in 32 bits on a GPU with tensor cores.
    "v100_ns_resolution": ("no_mixed_precision",),
    # NumPy prepares a video in the main thread for 217 of 382 ms.
    "h100_timesformer_inference": ("host_python",),
    # 61 kernels in 4.4 ms, 7 % busy; and the same on a B200, 13 % busy.
    "h100_bert_small_inference": ("dispatch_bound",),
    "b200_eager": ("dispatch_bound",),
    # One rank of eight: all-to-all and all-reduce with no kernel beside them, a fifth of each step.
    "a100_ddp_8ranks_rank": ("exposed_communication",),
    # RCCL takes 71.5 of 97 ms of kernels, hardly any of it hidden.
    "mi300_resnet_checkpoint": ("exposed_communication",),
    # Compiled, in 16 bits, busy 98 %: nothing is wrong with it.
    "mi300_compiled_triton": ("device_bound",),
    # Busy nine tenths of the time, a seventh of that in conversions of layout.
    "mi210_gpu_only": ("device_bound", "layout_conversions"),
}
