# %% [markdown]
# # 15 Distribution: what do several GPUs cost, and when do they help?
#
# With several GPUs, each one computes less, or the same on more data. But they must exchange gradients, weights or activations, and they wait for each other. This notebook measures the exchange, hides it, shrinks it, and finds the rank that makes all others wait. Then it splits one model in four ways, and counts what each way stores and sends.
#
# It takes 60 minutes and needs no GPU: four processes on this machine are real *ranks*, joined by gloo, the communication library that PyTorch uses on CPUs. Collectives and bytes are *counted* on them. A few cores cannot show how 64 GPUs scale; where a model answers instead, the verdict is MODEL SAYS.
#
# You should know [03](03_parallel_work_and_batch.ipynb) (batches and accumulation) and [10](10_memory_savers.ipynb) (DDP and FSDP store different parts).

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("15_distribution")
L

# %% tags=["setup"]
import statistics
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpulab.lessons import COUNTED, GIVEN, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.ranks import (
    data_parallel,
    launched_script,
    link_rates,
    rings,
    splits,
    stale_training,
    stragglers,
)
from gpulab.lessons.labs.ranks.gloo_ranks import RankPool
from gpulab.lessons.labs.ranks.overlap_model import make_buckets
from gpulab.lessons.labs.ranks.splits import sum_backward, sum_forward
from gpulab.views.charts.drawing import plots

MIB = 2**20
torch.set_num_threads(1)
pool = RankPool(4)  # four processes, which start in the background


# %% [markdown]
# ## The symptom
#
# A training script was moved from one GPU to two, and is hardly faster. Here is such a step, on two real ranks. `pool.run(function, ranks=2)` runs the same function on both and returns a list of what they return.
#
# A function that runs on ranks is sent there as source text. It sees its arguments and what the functions below use: `torch`, `nn`, `functional`, `dist`, `DistributedDataParallel`, the communication hooks, `nullcontext`, `sum_forward` and `sum_backward`. It does not see variables of this notebook.

# %% tags=["given"]
def one_step():
    """Run by each rank: a step on its own batch; return its loss and the sum of its new weights."""
    model = DistributedDataParallel(nn.Linear(512, 8))  # rank 0 sends its weights to all others
    torch.manual_seed(dist.get_rank())  # each rank has different data
    loss = model(torch.randn(64, 512)).square().mean()
    loss.backward()  # an all-reduce replaces each gradient by its mean over all ranks
    torch.optim.SGD(model.parameters(), 0.1).step()
    return loss.item(), sum(parameter.sum().item() for parameter in model.parameters())


for rank, (loss, weights) in enumerate(pool.run(one_step)):
    print(f"rank {rank}: loss {loss:.3f}, sum of the weights after the step {weights:.4f}")

# %% [markdown]
# The ranks have different losses but the same weights: `DistributedDataParallel` (DDP) averages the gradients of all ranks with an *all-reduce* during the backward pass. This exchange is the price of several GPUs.
#
# How to start ranks in a script of your own, with `torchrun`, is in 15.7.

# %% [markdown]
# ## What an exchange costs
#
# ### 15.1 The all-reduce, from 2 ranks to 64
#
# The cost of a message has two parts: a *latency* that every message has, and its bytes divided by the *bandwidth*. (This is the alpha-beta model.) A *ring* all-reduce of N ranks cuts the data into N pieces. In each of N - 1 rounds, each rank sends one piece to the next rank, which adds its own values; in N - 1 more rounds, the sums go around the ring.

# %% tags=["predict"]
L.predict("small")


# %% tags=["measure"]
def ring_seconds(ranks, size, latency_s, bytes_per_s):
    """Return the time of a ring all-reduce of `size` bytes: 2 (N - 1) rounds, each with a piece of size / N."""
    # <blank> 2 (N - 1) latencies, and 2 (N - 1) pieces of size / N over the bandwidth
    # was: return size / bytes_per_s
    rounds = 2 * (ranks - 1)
    return rounds * latency_s + rounds * size / ranks / bytes_per_s
    # </blank>


SIZES = tuple(2**power for power in (12, 14, 16, 18, 20, 22))
TURNS = {2: 50, 4: 15}  # the shortest of so many all-reduces counts
measured_s = {n: pool.run(data_parallel.timed_all_reduces, SIZES, TURNS[n], ranks=n)[0] for n in TURNS}
link = link_rates.fitted_link(measured_s[2])  # from the smallest and the largest size
predicted_s = {size: ring_seconds(2, size, link.latency_s, link.bytes_per_s) for size in SIZES}
print(f"this machine: {1e6 * link.latency_s:.0f} us of latency, {link.bytes_per_s / 1e9:.2f} GB/s between two ranks")
plots.line_plot(
    "Small all-reduces cost their latency, large ones their bytes",
    {
        "two ranks": {size / 1024: 1e3 * seconds for size, seconds in measured_s[2].items()},
        "your formula": {size / 1024: 1e3 * seconds for size, seconds in predicted_s.items()},
        "four ranks": {size / 1024: 1e3 * seconds for size, seconds in measured_s[4].items()},
    },
    x="KiB",
    y="ms",
    source=MEASURED,
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
display(L.reveal("small", measured_s[2][65536] / measured_s[2][4096], "times as long"))
between = SIZES[1:-1]  # the sizes that the link was not fitted to
errors = [max(predicted_s[size] / measured_s[2][size], measured_s[2][size] / predicted_s[size]) for size in between]
counted = rings.ring(rings.device_vectors(), range(8))  # a ring of eight lists
by_formula = (ring_seconds(8, rings.DATA_BYTES, 1, float("inf")), ring_seconds(8, rings.DATA_BYTES, 0, 1))
by_ring = (counted.steps, max(counted.bytes_by_link.values()))  # rounds, and bytes on each link
L.claim(
    "fitted to two sizes, the formula predicts the four between them within a factor of 3 on two real ranks, and "
    "gives the rounds and bytes of a ring of eight exactly",
    max(errors) < 3 and by_formula == by_ring,
    after=max(errors),
    unit="as the largest factor",
    source=MEASURED,
)

# %% [markdown]
# A factor of 3 is wide. Caches, and other programs on the same cores, are not in the formula. If there are fewer cores than ranks, four ranks are slower than it says, because they also share the cores.
#
# The formula is useful where you cannot measure yet: before you rent 64 GPUs. Assume a model with 100 million parameters, whose step computes for 100 ms on one GPU, and a link with 30 us of latency and 12.5 GB/s, the nominal rate of 100 Gbit/s Ethernet. Nothing overlaps yet.
#
# In *weak scaling*, each rank keeps its batch size, so the global batch grows. In *strong scaling*, the global batch stays the same, and each rank gets a part of it.

# %% tags=["predict"]
L.predict("scaling")

# %% tags=["measure"]
COMPUTE_S, GRADIENT_BYTES, LATENCY_S, BANDWIDTH = 0.1, 400e6, 30e-6, 12.5e9
RANKS = (1, 2, 4, 16, 64)
exchange_s = {n: ring_seconds(n, GRADIENT_BYTES, LATENCY_S, BANDWIDTH) if n > 1 else 0 for n in RANKS}
weak = {n: COMPUTE_S / (COMPUTE_S + exchange_s[n]) for n in RANKS}
strong = {n: COMPUTE_S / n / (COMPUTE_S / n + exchange_s[n]) for n in RANKS}
steps_here = {
    (ranks, rows): pool.run(data_parallel.steps_per_second, rows, 9, ranks=ranks)[0]
    for ranks, rows in ((1, 256), (2, 256), (2, 128))
}
alone = steps_here[1, 256]
print(f"two ranks here: weak {steps_here[2, 256] / alone:.0%}, strong {steps_here[2, 128] / alone / 2:.0%} efficient")
tables.table_view(
    ("ranks", "exchange, ms", "weak: step, ms", "efficiency", "strong: step, ms", "efficiency"),
    [
        (
            n,
            f"{1e3 * exchange_s[n]:.0f}",
            f"{1e3 * (COMPUTE_S + exchange_s[n]):.0f}",
            f"{weak[n]:.0%}",
            f"{1e3 * (COMPUTE_S / n + exchange_s[n]):.0f}",
            f"{strong[n]:.1%}",
        )
        for n in RANKS
    ],
    below="By the model.",
)

# %% tags=["claim"]
display(L.reveal("scaling"))
L.claim(
    "without overlap, 64 ranks are about 60 % efficient in weak scaling, and less than 3 % in strong scaling",
    0.55 < weak[64] < 0.65 and strong[64] < 0.03,
    before=weak[64],
    after=strong[64],
    unit="%",
    names=("weak", "strong"),
    source=SIMULATED,
)

# %% [markdown]
# Two ranks here are less efficient than in the model: they share cores and caches, and every other program on the machine disturbs them. So nothing is claimed about their speed.
#
# In a ring, each rank sends 2 (N - 1) / N times the gradients: once for two ranks, at most twice for any number. Only the number of messages grows in proportion to N. So the efficiency of weak scaling falls little after the first few ranks (62 % with 16, 60 % with 64); its price is a larger global batch ([04](04_large_batches.ipynb)). Strong scaling divides the arithmetic, but not the gradients.

# %% [markdown]
# ## Hide it
#
# ### 15.2 Buckets that overlap with the backward pass
#
# The backward pass computes the gradients of the last layer first. DDP does not wait for the rest: it collects gradients in *buckets*, and all-reduces each bucket as soon as it is full, while the backward pass of earlier layers still runs. `bucket_cap_mb` is the size of a bucket, 25 MiB by default. Here are 8 layers with 1 MiB of weights each, on two ranks.

# %% tags=["predict"]
L.predict("buckets")

# %% tags=["measure"]
# <blank> a cap in MiB, with which the first all-reduce starts when at most a quarter of the gradients is ready
# was: CAP_MB = 25
CAP_MB = 2
# </blank>
starts = {cap: pool.run(data_parallel.bucket_starts, cap)[0] for cap in (25, CAP_MB)}
tables.table_view(
    ("bucket_cap_mb", "buckets", "MiB each", "gradients ready when each one starts"),
    [
        (
            cap,
            len(buckets),
            f"{buckets[0][0] / MIB:.1f}",
            ", ".join(f"{share:.0%}" for _, share in buckets),
        )
        for cap, buckets in starts.items()
    ],
)

# %% tags=["claim"]
first_of_25, first = starts[25][0][1], starts[CAP_MB][0][1]
display(L.reveal("buckets", first_of_25, "%"))
L.claim(
    "buckets of 25 MiB give a model of 8 MiB no overlap: the all-reduce starts when all gradients are ready; smaller "
    "buckets start it when at most a quarter is",
    first_of_25 == 1 and first < 0.26,
    before=first_of_25,
    after=first,
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# Here `bucket_cap_mb` was set, so it holds for all buckets. If you leave it out, the first bucket has only 1 MiB, so that something is sent early, and the others 25 MiB. In its first step, DDP sends everything in one bucket (unless `find_unused_parameters` is set) and records the order in which gradients become ready; then it rebuilds the buckets in this order.
#
# When are buckets too small? CPU ranks exchange data on the cores that compute, so they cannot show what a GPU hides. A model of the timeline can: 400 gradients of 1 MB, computed in 100 ms, on 8 ranks with the link from above. The link carries one bucket at a time.

# %% tags=["measure"]
BACKWARD_MS = 100


def exposed_ms(buckets, bucket_ms):
    """Return for how long the exchange lasts after the end of the backward pass."""
    link_free_ms = 0
    for bucket in buckets:
        # <blank> a bucket starts when it is ready (bucket.ready_ms) and the link is free
        # was: start_ms = max(BACKWARD_MS, link_free_ms)
        start_ms = max(bucket.ready_ms, link_free_ms)
        # </blank>
        link_free_ms = start_ms + bucket_ms(bucket)
    return link_free_ms - BACKWARD_MS


def bucket_ms(bucket):
    return 1e3 * ring_seconds(8, bucket.bytes, LATENCY_S, BANDWIDTH)


CAPS_MB = (1, 2, 4, 10, 25, 50, 100, 200, 400)
exposed = {cap: exposed_ms(make_buckets([1_000_000] * 400, BACKWARD_MS, cap * 1e6), bucket_ms) for cap in CAPS_MB}
plots.line_plot(
    f"Buckets of 1 MB expose {exposed[1]:.0f} ms, of 25 MB {exposed[25]:.0f} ms, one bucket {exposed[400]:.0f} ms",
    {"exposed communication": exposed},
    x="MB per bucket",
    y="ms",
    source=SIMULATED,
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
L.claim(
    "buckets of 25 MB expose less than a tenth of what one bucket exposes; buckets of 1 MB expose more than one "
    "bucket, because each one pays the latency",
    exposed[25] < 0.1 * exposed[400] and exposed[1] > exposed[400],
    before=exposed[400],
    after=exposed[25],
    unit="ms",
    source=SIMULATED,
)

# %% [markdown]
# The last bucket is always exposed, because no backward pass is left to hide it. For a recorded run, `gpulab.whatif(run, "overlap")` and `gpulab.whatif(run, "bucket_mb=25")` replay the step with such changes.
#
# Two more arguments of DDP are often mentioned here. `gradient_as_bucket_view=True` lets gradients be views of the buckets, which saves a copy and the memory of one set of gradients. `static_graph=True` promises that each step uses the same parameters in the same way, so that DDP does not search for unused ones in each step. Neither reduces the bytes that are sent.

# %% [markdown]
# ## Shrink it
#
# ### 15.3 Compressed gradients
#
# A *communication hook* replaces the all-reduce of a bucket. PyTorch has one that sends float16, and PowerSGD, which sends each gradient matrix as a product of two thin ones, and adds what was lost to the next gradient. Two ranks train a classifier for 60 steps with each. All-reduced bytes are counted.
#
# All gradients of this model are in one bucket. With two, PowerSGD failed on gloo with PyTorch 2.13: its all-reduces did not match between the ranks.

# %% tags=["predict"]
L.predict("compress")


# %% tags=["measure"]
def send_float32(model):
    model.register_comm_hook(None, default_hooks.allreduce_hook)


def send_float16(model):
    # <blank> the same with default_hooks.fp16_compress_hook
    # was: model.register_comm_hook(None, default_hooks.allreduce_hook)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    # </blank>


def send_rank_2(model):
    # its state: the process group (None: all ranks), the rank of the product, and the first step that it compresses
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
    # <blank> register powerSGD_hook.powerSGD_hook with this state
    # was: model.register_comm_hook(None, default_hooks.allreduce_hook)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    # </blank>


trained = {
    name: pool.run(data_parallel.train_shard, register, 60)[0]
    for name, register in {"float32": send_float32, "float16": send_float16, "PowerSGD": send_rank_2}.items()
}
tables.table_view(
    ("sent as", "KiB, first step", "KiB, last step", "loss"),
    [
        (name, f"{result['bytes'][0] / 1024:.1f}", f"{result['bytes'][-1] / 1024:.1f}", f"{result['loss']:.4f}")
        for name, result in trained.items()
    ],
    below="The first steps of PowerSGD are not compressed, because early gradients change fast.",
)

# %% tags=["claim"]
last_bytes = {name: result["bytes"][-1] for name, result in trained.items()}
change = {name: abs(result["loss"] / trained["float32"]["loss"] - 1) for name, result in trained.items()}
display(L.reveal("compress", last_bytes["PowerSGD"] / last_bytes["float32"], "%"))
L.claim(
    "float16 sends exactly half of the bytes, with a loss within 1 %; PowerSGD of rank 2 less than 5 %, with a loss "
    "within 10 %",
    last_bytes["float16"] * 2 == last_bytes["float32"]
    and change["float16"] < 0.01
    and last_bytes["PowerSGD"] < 0.05 * last_bytes["float32"]
    and change["PowerSGD"] < 0.1,
    before=last_bytes["float32"] / 1024,
    after=last_bytes["PowerSGD"] / 1024,
    unit="KiB per step",
    source=MEASURED,
)

# %% [markdown]
# Fewer bytes help only if the bytes are the bottleneck. Compression costs arithmetic, and PowerSGD makes three all-reduces per bucket instead of one. On a fast link it can make a step longer. In float16, large gradients can overflow; `bf16_compress_hook` sends bfloat16, which has the range of float32, but it does not run on gloo.

# %% [markdown]
# ## Wait for nobody
#
# ### 15.4 One slow rank
#
# In each step, four ranks work, and then call an all-reduce. One of them needs longer for its work. Each rank records when it began, when it arrived at the all-reduce, and when it left.

# %% tags=["predict"]
L.predict("slow")

# %% tags=["measure"]
noted = pool.run(stragglers.slow_steps, 15, ranks=4)


def median_ms(times, start, end):
    return 1e3 * statistics.median(b - a for a, b in zip(times[start], times[end], strict=True))


work_ms = [median_ms(times, "began", "arrived") for times in noted]
in_all_reduce_ms = [median_ms(times, "arrived", "left") for times in noted]
step_ms = [median_ms(times, "began", "left") for times in noted]
# <blank> the rank that makes the others wait
# was: straggler = in_all_reduce_ms.index(max(in_all_reduce_ms))
straggler = in_all_reduce_ms.index(min(in_all_reduce_ms))
# </blank>
tables.table_view(
    ("rank", "works, ms", "in the all-reduce, ms", "step, ms"),
    [
        (rank, f"{work_ms[rank]:.0f}", f"{in_all_reduce_ms[rank]:.0f}", f"{step_ms[rank]:.0f}")
        for rank in range(len(noted))
    ],
    below=f"Your straggler: rank {straggler}.",
)

# %% tags=["claim"]
display(L.reveal("slow"))
others = [rank for rank in range(4) if rank != straggler]
L.claim(
    "the steps of all ranks last as long as that of the slowest, within 15 %, and the straggler spends the least time "
    "in the all-reduce",
    straggler == stragglers.SLOW_RANK
    and max(step_ms) < 1.15 * min(step_ms)
    and work_ms[straggler] == max(work_ms)
    and in_all_reduce_ms[straggler] < 0.5 * min(in_all_reduce_ms[rank] for rank in others),
    before=min(in_all_reduce_ms[rank] for rank in others),
    after=in_all_reduce_ms[straggler],
    unit="ms in the all-reduce",
    names=("the others", "the straggler"),
    source=MEASURED,
)

# %% [markdown]
# So the rank with the longest "communication" is not the one to repair, and more bandwidth would help none of them. Look for the reason on the straggler: longer sequences, a slow disk, a hot GPU, a busy host.

# %% [markdown]
# ## Split the model
#
# ### 15.5 Data, pipeline, tensor, fully sharded
#
# The model is `gelu(x @ up) @ down`. *Data parallel* gives each rank all weights and a part of the batch. A *pipeline* gives each rank one layer. *Fully sharded* (FSDP2: `fully_shard`) stores a part of each weight per rank, and gathers the whole of it before use. *Tensor parallel* splits each matrix product. Write the last one: each rank takes some columns of `up` and the rows of `down` with the same numbers, so that GELU needs no exchange.
#
# Use two functions: `sum_forward(t)` adds `t` over all ranks in the forward pass; `sum_backward(t)` returns `t` unchanged and adds its gradient over all ranks in the backward pass.

# %% tags=["predict"]
L.predict("split")


# %% tags=["measure"]
def my_part(up, down, rank, ranks):
    """Return the columns of `up` and the rows of `down` that this rank stores."""
    # <blank> chunk `up` by columns (dim=1) and `down` by rows (dim=0)
    # was: return up, down
    return up.chunk(ranks, dim=1)[rank], down.chunk(ranks, dim=0)[rank]
    # </blank>


def forward(x, columns, rows):
    """Return the result of the whole block on each rank."""
    # <blank> functional.gelu(x @ columns) @ rows, with sum_backward around x, and sum_forward around the result
    # was: return functional.gelu(x @ columns) @ rows
    return sum_forward(functional.gelu(sum_backward(x) @ columns) @ rows)
    # </blank>


W, X, H = splits.WEIGHT_BYTES, splits.INPUT_BYTES, splits.HIDDEN_BYTES


def expected_by_split(ranks):
    """Return the bytes of the weights per rank, and of its messages per step; W weights, X input, H hidden."""
    return {
        "data": (W, W),  # one all-reduce of all gradients
        "pipeline": (W / ranks, 2 * H),  # hidden activations forth, their gradients back
        # <blank> tensor: all-reduces of the result and of x's gradient; fully sharded: 2 all-gathers, 1 reduce-scatter
        # was: "tensor": (W, W),
        # was: "fully sharded": (W, W),
        "tensor": (W / ranks, 2 * X),
        "fully sharded": (W / ranks, 3 * W),
        # </blank>
    }


on_ranks = pool.run(splits.split_step, my_part, forward)
expected = expected_by_split(2)
counts = {name: (result["stored"], result["bytes"]) for name, result in on_ranks[0].items()}
tables.table_view(
    ("split", "weights, KiB", "by formula", "messages per step, KiB", "by formula", "calls"),
    [
        (
            name,
            *(f"{value / 1024:.0f}" for pair in zip(counts[name], expected[name], strict=True) for value in pair),
            len(on_ranks[0][name]["kinds"]),
        )
        for name in splits.SPLITS
    ],
    below="Counted on rank 0 of 2. Messages: the size of each call, as nccl-tests defines it.",
)

# %% tags=["same"]
L.same(splits.whole_gradient(), torch.cat([rank["tensor"]["gradient"] for rank in on_ranks], dim=1))

# %% tags=["claim"]
display(L.reveal("split"))
L.claim(
    "weights and bytes of all four splits equal the formulas; tensor parallelism makes two all-reduces per block, and "
    "FSDP two all-gathers and a reduce-scatter per layer",
    all(counts[name] == expected[name] for name in splits.SPLITS)
    and on_ranks[0]["tensor"]["kinds"] == ["all-reduce"] * 2
    and sorted(on_ranks[0]["fully sharded"]["kinds"]) == ["all-gather"] * 4 + ["reduce-scatter"] * 2,
    before=counts["data"][1] / 1024,
    after=counts["tensor"][1] / 1024,
    unit="KiB per step",
    names=("data parallel", "tensor parallel"),
    source=COUNTED,
)

# %% [markdown]
# Data parallel and FSDP send bytes in proportion to the *weights*, tensor parallel and pipelines in proportion to the *activations*. A message is not yet what the link carries: in a ring, an all-reduce sends the data twice (15.1), an all-gather or a reduce-scatter once. So FSDP sends 1.5 times the bytes of DDP, although its messages add up to three times as many.
#
# The batch is small here, 32 rows. Above 256 rows, by the formulas, tensor parallelism has larger messages than data parallelism. It repeats them in each block, and the next operation needs their result, so little can hide them: it is used within a host with NVLink. A pipeline sends activations between its stages only; here it is cut where they are widest. In PyTorch: `parallelize_module` with `ColwiseParallel` and `RowwiseParallel`, and `torch.distributed.pipelining`. The idle time of pipelines is in [10.9](10_memory_savers.ipynb).

# %% [markdown]
# ## Exercise: exchange less often
#
# ### 15.6 Accumulation with no_sync()
#
# Four micro-batches make one update ([03](03_parallel_work_and_batch.ipynb)). Only the sum of their gradients matters, and each backward pass adds to it.

# %% tags=["predict"]
L.predict("accumulate")


# %% [markdown]
# Inside `with model.no_sync():`, DDP exchanges nothing and only accumulates gradients on each rank. The forward pass must be inside, too. PyTorch's documentation: "The forward pass should be included inside the context manager, or else gradients will still be synchronized." Try it: put only `backward()` inside, and look at the count.

# %% tags=["exercise"]
def every_time(model, micro_batches):
    """Accumulate the mean gradient of the micro-batches; exchange in each backward pass."""
    for inputs, labels in micro_batches:
        loss = functional.cross_entropy(model(inputs), labels) / len(micro_batches)
        loss.backward()


def once(model, micro_batches):
    """The same gradients, exchanged once. `nullcontext()` is a context that does nothing."""
    for index, (inputs, labels) in enumerate(micro_batches):
        # <blank> forward and backward in model.no_sync(), except for the last micro-batch
        # was: loss = functional.cross_entropy(model(inputs), labels) / len(micro_batches)
        # was: loss.backward()
        is_last = index == len(micro_batches) - 1
        with nullcontext() if is_last else model.no_sync():
            loss = functional.cross_entropy(model(inputs), labels) / len(micro_batches)
            loss.backward()
        # </blank>


always, seldom = (pool.run(data_parallel.accumulated, function, 4)[0] for function in (every_time, once))
L.score("exchanges", seldom["collectives"])

# %% tags=["same"]
L.same(always["gradient"], seldom["gradient"])

# %% tags=["claim"]
display(L.reveal("accumulate", always["collectives"]))
L.claim(
    "with no_sync() around all micro-batches but the last, an update of 4 needs 1 all-reduce instead of 4, and has the "
    "same gradients",
    always["collectives"] == 4 and seldom["collectives"] == 1 and 4 * seldom["bytes"] == always["bytes"],
    before=always["collectives"],
    after=seldom["collectives"],
    unit="all-reduces per update",
    source=COUNTED,
)

# %% [markdown]
# With FSDP2 it is `model.set_requires_gradient_sync(False)`, which keeps unsharded gradients on each rank, so it costs memory.

# %% [markdown]
# ## In a script of your own
#
# ### 15.7 Start ranks with torchrun
#
# `pool.run` exists in this notebook only. In a script, `dist.init_process_group()` reads the rank of the process, the number of ranks and the address of rank 0 from the environment variables `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. Here is a script for any number of ranks. Each rank saves its gradient twice: computed alone, and with DDP.

# %% tags=["given"]
TRAIN = """
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(8, 1))
torch.manual_seed(rank)
batch = torch.randn(16, 8)
alone = torch.autograd.grad(model.module(batch).square().mean(), model.module.weight)[0]
model(batch).square().mean().backward()
averaged = model.module.weight.grad
Path(f"rank{rank}.json").write_text(json.dumps({"alone": alone.tolist(), "averaged": averaged.tolist()}))
dist.barrier()  # no rank leaves while another one still exchanges data
dist.destroy_process_group()
"""

# %% tags=["predict"]
L.predict("launch")

# %% [markdown]
# `launched_script.run_in_folder(command, script)` writes the script as `train.py` into a temporary folder, runs the command there, and returns what the ranks saved.

# %% tags=["measure"]
# <blank> torchrun for this machine alone (--standalone), with two processes (--nproc-per-node), and train.py
# was: command = "python train.py"
command = "torchrun --standalone --nproc-per-node 2 train.py"
# </blank>
launches = {line: launched_script.run_in_folder(line, TRAIN) for line in dict.fromkeys(("python train.py", command))}
tables.table_view(
    ("command", "error", "exit code", "ranks"),
    [(line, launch.error or "none", launch.exit_code, len(launch.ranks)) for line, launch in launches.items()],
    left=2,
)

# %% tags=["claim"]
display(L.reveal("launch"))
alone = [torch.tensor(rank["alone"]) for rank in launches[command].ranks]
averaged = [torch.tensor(rank["averaged"]) for rank in launches[command].ranks]
L.claim(
    "python alone starts no rank; torchrun starts two, whose gradients differ before the all-reduce, and equal their "
    "mean after it",
    not launches["python train.py"].ranks
    and len(averaged) == 2
    and not torch.equal(*alone)
    and all(torch.allclose(gradient, sum(alone) / 2) for gradient in averaged),
    before=len(launches["python train.py"].ranks),
    after=len(averaged),
    unit="ranks",
    names=("python", "torchrun"),
    source=MEASURED,
)

# %% [markdown]
# `--standalone` is for one host. For two hosts with 8 GPUs each, start this on both: `torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py`, with the name of one of the hosts. On GPUs, the script also calls `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`. To record all ranks: `torchrun --nproc-per-node 2 -m gpulab run train.py`.
#
# In a notebook, `accelerate.notebook_launcher(train, num_processes=2)` starts ranks that call the function `train`. It forks, so no earlier cell may have used CUDA. For an `Accelerator` on CPUs, use `accelerate.debug_launcher`.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 15.8 Workers that do not wait: asynchronous SGD and gossip
#
# Four workers compute gradients in 10, 11, 12 and 30 ms and send them to a server. In synchronous SGD, the server waits for all four gradients before it updates the weights. In *asynchronous* SGD, it updates them after each gradient, which may then have been computed with older weights.

# %% tags=["predict"]
L.predict("stale")

# %% tags=["measure"]
PERIODS_MS = (10, 11, 12, 30)
synchronous = stale_training.clock_of_workers(PERIODS_MS, needed=4)
# <blank> the server needs one gradient for an update
# was: asynchronous = stale_training.clock_of_workers(PERIODS_MS, needed=4)
asynchronous = stale_training.clock_of_workers(PERIODS_MS, needed=1)
# </blank>
tables.table_view(
    ("", "gradients per s", "workers wait", "age of a gradient, updates"),
    [
        (name, f"{clock.gradients_per_s:.0f}", f"{clock.wait_frac:.0%}", f"{clock.mean_staleness:.1f}")
        for name, clock in (("synchronous", synchronous), ("asynchronous", asynchronous))
    ],
    below="Simulated.",
)

# %% tags=["claim"]
L.claim(
    "without waiting, four workers of unequal speed deliver more than twice as many gradients, but each one is about "
    "3 updates old",
    asynchronous.wait_frac == 0
    and asynchronous.gradients_per_s > 2 * synchronous.gradients_per_s
    and 2.5 < asynchronous.mean_staleness < 3.5,
    before=synchronous.wait_frac,
    after=asynchronous.wait_frac,
    unit="%",
    source=SIMULATED,
)


# %% [markdown]
# What does the age of a gradient cost? The next cell really trains a small model for 300 updates, with gradients of old weights. Then eight copies train without a server: in a *gossip ring*, each copy averages its weights with its two neighbours only.

# %% tags=["measure"]
def gossip(copies):
    """Return new weights for each copy, from its own and those of both neighbours; `copies` is a list of tensors."""
    # <blank> the mean of copies[i - 1], copies[i] and copies[(i + 1) % n]
    # was: return copies
    n = len(copies)
    return [(copies[i - 1] + copies[i] + copies[(i + 1) % n]) / 3 for i in range(n)]
    # </blank>


def all_reduce(copies):
    mean = torch.stack(copies).mean(dim=0)
    return [mean] * len(copies)


stale_losses = {age: stale_training.loss_with_staleness(age, learning_rate=0.3) for age in (0, 3, 7, 15)}
mixed = {mix.__name__: stale_training.loss_with_mixing(mix, workers=8, steps=60) for mix in (all_reduce, gossip)}
for name, (loss, spread) in mixed.items():
    print(f"{name:10} loss of the mean weights {loss:.4f}, the copies differ from them by at most {spread:.1%}")
tables.table_view(
    ("gradients are old by", "loss after 300 updates"),
    [(f"{age} updates", f"{loss:.3f}") for age, loss in stale_losses.items()],
)

# %% tags=["claim"]
display(L.reveal("stale", stale_losses[15] / stale_losses[0], "times the loss"))
L.claim(
    "the loss rises with the age of the gradients; a gossip ring reaches the loss of an all-reduce within 5 %, with "
    "copies that differ by less than 5 %",
    sorted(stale_losses.values()) == list(stale_losses.values())
    and mixed["gossip"][0] < 1.05 * mixed["all_reduce"][0]
    and mixed["gossip"][1] < 0.05,
    before=stale_losses[0],
    after=stale_losses[15],
    unit="(loss)",
    source=MEASURED,
)

# %% [markdown]
# At this learning rate, an age of 3 costs little, an age of 15 a lot. Try `learning_rate=0.1` and `0.6`: the larger the updates, the more harm old gradients do. Nearly all training on GPUs is synchronous: equal GPUs with equal work wait little for each other, so there is little to gain.
#
# ### 15.9 Ring, tree, hierarchy, and the order of devices
#
# Eight devices are in two hosts: 0 to 3, and 4 to 7. The link between the hosts is slow. In a ring, each device sends to the next one in the order. A colleague's hostfile alternates between the hosts.

# %% tags=["predict"]
L.predict("order")

# %% tags=["measure"]
# <blank> an order of the eight devices that crosses between the hosts as rarely as possible
# was: order = [0, 4, 1, 5, 2, 6, 3, 7]
order = [0, 1, 2, 3, 4, 5, 6, 7]
# </blank>
PATTERNS = {
    "ring, hosts in turn": lambda vectors: rings.ring(vectors, [0, 4, 1, 5, 2, 6, 3, 7]),
    "ring, your order": lambda vectors: rings.ring(vectors, order),
    "tree": rings.tree,
    "hierarchy": rings.hierarchy,
}
total = sum(rings.device_vectors())
logs, sums_right = {}, {}
for name, pattern in PATTERNS.items():
    vectors = rings.device_vectors()
    logs[name] = pattern(vectors)
    sums_right[name] = all((vector == total).all() for vector in vectors)
crossing = {name: log.bytes_between_hosts / rings.DATA_BYTES for name, log in logs.items()}
tables.table_view(
    ("all-reduce", "rounds", "between hosts", "on the busiest link"),
    [
        (name, log.steps, f"{crossing[name]:.2f}", f"{max(log.bytes_by_link.values()) / rings.DATA_BYTES:.2f}")
        for name, log in logs.items()
    ],
    below="Bytes as multiples of the size of the data. Between hosts: both directions together.",
)

# %% tags=["claim"]
display(L.reveal("order", crossing["ring, hosts in turn"] / crossing["ring, your order"], "times"))
L.claim(
    "a ring with the hosts in turn sends four times as many bytes between them as one that visits each host once; a "
    "hierarchy sends fewer still, in fewer rounds",
    all(sums_right.values())
    and crossing["ring, hosts in turn"] == 4 * crossing["ring, your order"]
    and crossing["hierarchy"] < crossing["ring, your order"]
    and logs["hierarchy"].steps < logs["ring, your order"].steps,
    before=crossing["ring, hosts in turn"],
    after=crossing["ring, your order"],
    unit="times the data",
    source=COUNTED,
)

# %% [markdown]
# A tree needs the fewest rounds, which is good for small messages. But each of its 6 rounds sends all data, a round of the ring an eighth of them: for large messages, the ring is faster (14 / 8 against 6 times the data, one after the other). NCCL chooses its algorithm by size and topology, and pipelines its trees; `nvidia-smi topo -m` prints the topology of a host. What you decide is which ranks form a group: tensor-parallel groups within a host, data-parallel ones across.
#
# ### 15.10 The primitives of NCCL, and other links
#
# NCCL and gloo offer the same primitives: send and receive, broadcast, all-reduce, reduce-scatter, all-gather. You could write an all-reduce with send and receive alone: rank 0 receives all tensors, adds them, and sends the sum back. A library does it in two parts: in a *reduce-scatter*, each rank gets the sum of one part of the data; in an *all-gather*, each rank gets all parts. Write the second one, for four ranks.

# %% tags=["predict"]
L.predict("primitives")


# %% tags=["measure"]
def through_rank_0(tensor):
    """Return the sum over all ranks, on each rank."""
    if dist.get_rank() > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return tensor
    part = torch.empty_like(tensor)
    for rank in range(1, dist.get_world_size()):
        dist.recv(part, rank)
        tensor += part
    for rank in range(1, dist.get_world_size()):
        dist.send(tensor, rank)
    return tensor


def in_two_parts(tensor):
    """The same; `part` is where this rank stores its part of the sum."""
    part = tensor.new_empty(len(tensor) // dist.get_world_size())
    # <blank> dist.reduce_scatter_tensor(output, input), then dist.all_gather_into_tensor(output, input)
    # was: pass
    dist.reduce_scatter_tensor(part, tensor)
    dist.all_gather_into_tensor(tensor, part)
    # </blank>
    return tensor


def by_all_reduce(tensor):
    dist.all_reduce(tensor)
    return tensor


sums = {
    function.__name__: pool.run(data_parallel.summed, function, ranks=4)
    for function in (through_rank_0, in_two_parts, by_all_reduce)
}
ring_of_4 = rings.ring(rings.device_vectors()[:4], range(4))  # its bytes: counted on lists, as in 15.9
ring_sends = max(ring_of_4.bytes_by_link.values()) / rings.DATA_BYTES
rank_0_sends = sums["through_rank_0"][0]["sent"]
tables.table_view(
    ("function", "calls on rank 0", "rank 0 sends, times the data"),
    [
        ("through_rank_0", ", ".join(sums["through_rank_0"][0]["kinds"]), f"{rank_0_sends:.2f}"),
        ("in_two_parts", ", ".join(sums["in_two_parts"][0]["kinds"]) or "none", f"{ring_sends:.2f}"),
        ("by_all_reduce", ", ".join(sums["by_all_reduce"][0]["kinds"]), f"{ring_sends:.2f}"),
    ],
    left=2,
    below="Calls are counted on rank 0, and so are the bytes of the first line; the bytes of the others in a ring.",
)

# %% tags=["claim"]
display(L.reveal("primitives", rank_0_sends / ring_sends, "times"))
sums_equal = all(
    torch.equal(own["sum"], library["sum"])
    for own, library in zip(sums["in_two_parts"], sums["by_all_reduce"], strict=True)
)
L.claim(
    "on four real ranks, a reduce-scatter and an all-gather give the same sum as an all-reduce; in a ring, each rank "
    "then sends half of what rank 0 sends without them",
    sums_equal
    and sums["in_two_parts"][0]["kinds"] == ["reduce-scatter", "all-gather"]
    and rank_0_sends == 2 * ring_sends,
    before=rank_0_sends,
    after=ring_sends,
    unit="times the data",
    names=("rank 0, with send and receive", "each rank of a ring"),
    source=COUNTED,
)

# %% [markdown]
# With N ranks, it is N / 2 times as much: rank 0 sends the data N - 1 times, a rank of the ring 2 (N - 1) / N times. FSDP uses both parts separately, for gradients and for weights (15.5).
#
# How long does it take on other links? The next table divides what each of 8 ranks sends for 400 MB of gradients by published bandwidths, which are upper limits; latencies are left out. The bandwidth of gloo is what two ranks reach on this machine.

# %% tags=["measure"]
SENT_BYTES = 2 * 7 / 8 * 400e6
gloo_link = link_rates.fitted_link(pool.run(data_parallel.timed_all_reduces, (2**12, 2**22), 50)[0])
tables.table_view(
    ("link, one direction", "source", "GB/s", "all-reduce, ms"),
    [
        (name, source, f"{rate / 1e9:.3g}", f"{1e3 * SENT_BYTES / rate:.1f}")
        for name, rate, source in (
            ("gloo, this machine", gloo_link.bytes_per_s, MEASURED),
            *((each.name, each.bytes_per_s, each.source) for each in link_rates.PUBLISHED_LINKS),
        )
    ],
    left=2,
    below=f"Bandwidths {GIVEN}, except for gloo; PCIe after its 128b/130b coding.",
)

# %% [markdown]
# On GPUs, use `backend="nccl"`: its kernels move data between GPUs directly, over NVLink, PCIe or the network. Gloo is for tensors on CPUs. To measure your own links, run `all_reduce_perf` of nccl-tests: its *busbw* is 2 (N - 1) / N times the size, divided by the time, so it can be compared with the column GB/s. With `NCCL_DEBUG=INFO`, NCCL prints which transport it uses between which GPUs.
#
# ### 15.11 Read the recording of a job
#
# Two ranks train under gpulab, and each saves a recording. A colleague looks at rank 0 only. Diagnose the whole job: `gpulab.diagnose` takes one run or a list of runs.

# %% tags=["predict"]
L.predict("record")

# %% tags=["measure"]
with tempfile.TemporaryDirectory() as folder:
    pool.run(stragglers.recorded_steps, folder)
    runs = gpulab.load(folder)
alone = gpulab.diagnose(runs[0])
# <blank> diagnose all ranks together
# was: together = gpulab.diagnose(runs[0])
together = gpulab.diagnose(runs)
# </blank>
for name, diagnosis in (("rank 0 alone", alone), ("your diagnosis", together)):
    print(f"{name}: {diagnosis.findings[0].claim}")

# %% tags=["claim"]
verdict = together.findings[0]
display(L.reveal("record"))
L.claim(
    "the recording of rank 0 alone says exposed communication; both recordings together name rank 1 as a straggler",
    alone.findings[0].rule == "exposed_communication"
    and verdict.rule == "straggler"
    and verdict.numbers["rank"] == stragglers.LATE_RANK,
    source=MEASURED,
)

# %% [markdown]
# To communicate less often, the advice for rank 0, would treat the symptom only. `gpulab.report(runs)` shows who waits for whom, and what the straggler does meanwhile. For hundreds of ranks, `gpulab.fleet("traces/")` reads one file per rank.

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% tags=["given"]
pool.close()

# %% [markdown]
# ## Summary
#
# First make sure that no rank is late: record all ranks, not one. Then calculate the exchange: about twice the bytes of the gradients over the bandwidth, and compare it with the backward pass. If it is shorter, buckets can hide it. If it is longer, exchange less often (`no_sync`, a larger batch per rank), or fewer bytes (a hook). Split the model only if it does not fit: FSDP first, tensor parallel within a host, pipelines between hosts. Prefer weak scaling: strong scaling divides the work, not the gradients.

# %% tags=["card"]
L.card()
