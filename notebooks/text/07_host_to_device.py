# %% [markdown]
# # 07 Host to device: is the GPU computing, or waiting for copies?
#
# A batch is created in the memory of the *host* (the computer with its CPU) and used in the memory of the *device* (the GPU). The link between them transfers more than fifty times fewer bytes per second than the GPU's own memory. In this lesson you learn what a copy costs, which copies you can hide, and which lines make the host wait unnecessarily. Do lesson [01](01_what_is_utilisation.ipynb) first if you cannot yet explain what "the GPU is 40 % busy" means.
#
# With a CUDA GPU, everything should run on it (untested). Without one, your code runs unchanged on a virtual H100, which estimates the times. The estimate uses two rates: 50 GB/s as the best rate of the link, which is four fifths of its standard (PCIe 5, 16 lanes), and 7 GB/s for copies from ordinary memory, a typical value in published traces (5.3 to 9.9 GB/s). You can trust the **shape** of the results. The **rates** of your own machine you have to measure.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("07_host_to_device")
L

# %% [markdown]
# ## The symptom
#
# A colleague trains a wide network on features that are already in memory, 134 MB per batch. Someone read that `non_blocking=True` makes copies asynchronous and added it. Nothing changed.

# %% tags=["given"]
import time
from functools import partial

import numpy as np
import torch
from IPython.display import display
from torch import nn
from torch.profiler import record_function
from torch.utils.data import DataLoader

from gpulab.lessons.labs.copies import copying, races, transfers
from gpulab.lessons.labs.host.operators import count_operators
from gpulab.lessons.labs.machine import topology
from gpulab.lessons.labs.steps import throughput

ROWS, WIDTH, STEPS = 8192, 8192, 12
BATCH_BYTES = 2 * ROWS * WIDTH  # two bytes per number


def train(batches):
    """Train for a few steps on batches in host memory, or on batches that are already on the GPU."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, **options), nn.GELU(), nn.Linear(WIDTH, 16, **options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in batches:
        inputs = inputs.to("cuda", non_blocking=True)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :16])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def host_batches(pinned):
    """Return the batches of one loop, which alternate between two tensors."""
    two = [torch.ones(ROWS, WIDTH, dtype=torch.bfloat16, pin_memory=pinned) for _ in range(2)]
    return [two[step % 2] for step in range(STEPS)]


# %% [markdown]
# Before you answer, estimate two times: 134 MB from ordinary memory at 7 GB/s, and about 2.2 TFLOP (forward and backward) on a GPU that reaches several hundred TFLOP/s.

# %% tags=["predict"]
L.predict("share")

# %% tags=["measure"]
# %%gpuprofile --virtual auto before
train(host_batches(pinned=False))

# %% tags=["reveal"]
before = gpulab.runs["before"]
L.reveal("share", copying.batch_copy_cost(before, BATCH_BYTES).transfer_ms / throughput.step_ms(before), "%")

# %% [markdown]
# Three parts of the report prove that the copy is the cause. **Exposed copies** is the time in which the link is busy and no kernel runs; if the model were the cause, *matrix kernels* would be long instead, and if data loading were the cause, *waiting for data*. The evidence names the kind of **memory**: pageable. And it gives the **rate**, about 7 GB/s, although the link could reach 50.
#
# Do not be misled by *GPU busy*: the table counts a copy as GPU work, so the GPU can be busy all the time and compute for only a small part of it.

# %% [markdown]
# ## What a copy costs
#
# ### 07.1 Pageable and pinned memory, from 4 KB to 1 GB
#
# Ordinary memory is *pageable*: the operating system may move it or swap it to disk, so the GPU cannot read it directly. The driver first copies it, piece by piece, into memory that cannot move, and the link transfers it from there. *Pinned* memory cannot move, so this extra copy is not needed.
#
# Every copy also has a fixed start-up time. So the rate depends on the size, and there is a knee: below it, the start-up takes most of the time; above it, the transfer does.

# %% tags=["predict"]
L.predict("knee")

# %% tags=["measure"]
# <blank> ten sizes from 4 KB to 1 GB, each four times the one before
# was: sizes = [64 << 20, 256 << 20, 1 << 30]
sizes = [4096 << (2 * index) for index in range(10)]  # 4 KB, 16 KB, ..., 1 GB
# </blank>
# A real GPU should copy initialised memory; a virtual one copies nothing, so the memory need not be written.
allocate = torch.ones if L.device == "cuda" else torch.empty

with L.gpu("sizes"):
    for pinned in (False, True):
        memory = allocate(max(sizes), dtype=torch.uint8, pin_memory=pinned)
        for size in sizes:
            for _ in range(3):
                memory[:size].to("cuda", non_blocking=True)
                torch.cuda.synchronize()
        del memory

pageable_rates = copying.bandwidth_by_size(gpulab.runs["sizes"], pinned=False)
pinned_rates = copying.bandwidth_by_size(gpulab.runs["sizes"], pinned=True)
host_sizes = L.pick(tiny=(1 << 16, 1 << 24), lab=(1 << 16, 1 << 20, 1 << 24, 1 << 28))
host_rates = {size: copying.host_copy_gb_per_s(size) for size in host_sizes}
print(f"from the call to the last byte  [{gpulab.runs['sizes'].source}; one core: measured here]")
transfers.bandwidth_table(pageable_rates, pinned_rates, host_rates)

# %% tags=["claim"]
knee = copying.knee_bytes(pinned_rates)
display(L.reveal("knee", float(knee), "bytes"))
L.claim(
    "a pinned copy reaches half of the link's best rate at a size between 64 KB and 16 MB",
    65_536 <= knee <= 16 << 20,
    before=pinned_rates[min(sizes)],
    after=pinned_rates[max(sizes)],
    unit="GB/s",
    source=gpulab.runs["sizes"],
)

# %% [markdown]
# Now you can predict the time of a pinned copy. The first row of the table shows the start-up: 4 KB at a quarter of a GB/s take about 16 us, almost all of it for the calls. Then add the bytes divided by 50 GB/s: for a batch of 134 MB, that is 2.7 ms.
#
# The last column shows your own CPU copying from memory to memory. Small blocks stay in its cache. A large block is copied more slowly, usually at a fraction of the 50 GB/s of the link. A pageable copy contains such a copy, made by the driver, which is the slower half of the transfer. (The 7 GB/s of the virtual GPU are a fixed parameter, as explained above, and are not derived from your CPU.)
#
# The number of bytes matters too: an image that is sent as `uint8` and converted to `float32` on the GPU has a quarter of the bytes, and so takes a quarter of the time, from either kind of memory.
#
# ### 07.2 Where to pin
#
# "Pinned memory is faster", says nearly every guide, so people write `x.pin_memory().to("cuda", non_blocking=True)`. But who pins the memory, and when?

# %% tags=["predict"]
L.predict("pin")

# %% tags=["measure"]
SMALL_BATCH_BYTES = 4 * 1024 * 4096  # 16.8 MB of float32


def train_with_loader(pinning):
    """Train on batches of a DataLoader with one worker; `pinning`: "plain" (none), "in the loop" or "by the loader"."""
    batches = copying.ReadyBatches(8, 1024, 4096)
    loader = DataLoader(batches, batch_size=None, num_workers=1, pin_memory=pinning == "by the loader")
    layer = nn.Linear(4096, 64, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for inputs in loader:
        if pinning == "in the loop":
            inputs = inputs.pin_memory()
        outputs = layer(inputs.to("cuda", non_blocking=True))
        outputs.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


copies = {}
for name in ("plain", "in the loop", "by the loader"):
    with L.gpu(name):
        # <blank> pin as the name says
        # was: train_with_loader("plain")
        train_with_loader(name)
        # </blank>
    copies[name] = copying.batch_copy_cost(gpulab.runs[name], SMALL_BATCH_BYTES)
print(f"a batch of {SMALL_BATCH_BYTES / 1e6:.1f} MB, as the loop sees it  [{gpulab.runs['plain'].source}]")
transfers.copy_cost_table(copies)

# %% tags=["claim"]
display(L.reveal("pin", copies["plain"].total_ms / copies["by the loader"].total_ms, "times as fast as plain"))
L.claim(
    "a batch that the loader pinned reaches the GPU in less than half the time of one from pageable memory",
    copies["by the loader"].total_ms < 0.5 * copies["plain"].total_ms,
    before=copies["plain"].total_ms,
    after=copies["by the loader"].total_ms,
    unit="ms",
    source=gpulab.runs["by the loader"],
)

# %% [markdown]
# The table shows how long the main thread spends on *pinning* before it calls the copy, and how long the call then *holds* it. In the last row both are almost zero: a thread of the loader copied the batch into pinned memory while the loop did something else. (With `num_workers=0` there is no such thread, and the loop pays for pinning again.)
#
# Without a GPU, do not trust the middle row. A virtual GPU estimates pinning by an ordinary copy on *this* CPU, so on a fast laptop this row may even beat the plain copy. Two things make pinning in the loop slow.
#
# The first is *fresh* memory, which nobody has written to yet. Before a program can use it, the operating system has to find pages for it and clear them. Pinning fresh memory includes this work, and then locks the pages. You can measure the work without a GPU, with ordinary memory: copy a batch into fresh memory nine times, and then into the same memory nine times.

# %% tags=["measure"]
fresh_ms = copying.fastest_copy_ms([copying.fresh_memory(SMALL_BATCH_BYTES) for _ in range(9)])
# <blank> nine copies into the same memory: call copying.fresh_memory once, and pass a list of it, 9 times
# was: kept_ms = fresh_ms
kept_ms = copying.fastest_copy_ms([copying.fresh_memory(SMALL_BATCH_BYTES)] * 9)
# </blank>
print(f"copying {SMALL_BATCH_BYTES / 1e6:.1f} MB on one core, fastest of nine copies  [{gpulab.lessons.MEASURED}]")
print(f"into fresh memory {fresh_ms:.1f} ms, into kept memory {kept_ms:.1f} ms")

# %% tags=["claim"]
L.claim(
    "a copy into fresh memory takes at least 1.2 times as long as a copy into memory that was used before",
    fresh_ms >= 1.2 * kept_ms,
    before=fresh_ms,
    after=kept_ms,
    unit="ms",
    names=("fresh", "kept"),
)

# %% [markdown]
# Locking takes additional time: 61 ms for 512 MB were published for an older machine (University of Virginia, on `cudaMallocHost`, which also finds the pages). PyTorch keeps pinned memory and uses it again, so a loop pays for fresh memory in its first batches only.
#
# The second is the order of the work. A plain copy runs in pieces: the link transfers one piece while the driver copies the next, so the slower of the two sets the time. If you pin first, you make the same copy, and only then does the transfer start. The next table is a calculation and no measurement: it assumes these 61 ms, a link of 50 GB/s, and that your copy into pinned memory is as fast as the driver's. *Fresh* memory is page-locked, filled and sent; *kept* memory was page-locked earlier; *ahead* means that the loader's thread filled it.

# %% tags=["worked"]
transfers.route_table(SMALL_BATCH_BYTES, gb_per_s=(5.3, 7.0, 9.9))  # the rates of pageable copies in published traces

# %% [markdown]
# So, by this calculation, pinned memory is faster **only if the loop does not have to pin it**. PyTorch's own guide to pinning measured the same pattern at up to twice the time of a plain `.to()`. One thing can change the result: PyTorch copies large tensors with several threads, so on a host with many free cores, pinning into cached memory can be faster than the driver's single copy. Even then it takes cores away from your loader, and it is never faster than the loader's pinning thread.
#
# `pin_memory=True` and `non_blocking=True` belong together: the first makes an asynchronous copy possible, and the second requests it. That is why the colleague's flag changed nothing.

# %% [markdown]
# ## Hide the remaining copies
#
# ### 07.3 One after the other, or overlapped
#
# The batches of our first loop are in memory from the start, so you can pin them once before the loop, and no step pays for pinning. A copy then takes 2.7 ms instead of 19. But it still delays the compute: on one *stream* (a queue of work that the GPU processes in order), the GPU copies, computes, copies, computes. Copies and kernels use different parts of the chip, so both could run at the same time.

# %% tags=["predict"]
L.predict("turns")


# %% [markdown]
# The fix is a second stream, for copies. Three lines matter:
#
# - under `torch.cuda.stream(copy_stream)`, the copy goes to that stream; without this line the loop is correct, but slow;
# - `wait_stream(copy_stream)` lets the compute start only when the batch has arrived;
# - `record_stream` tells PyTorch's caching allocator that the compute stream still uses this memory, so that it does not reuse the memory too early.
#
# Without one of the last two, the GPU may compute on memory that does not hold the batch yet, or already holds something else: wrong numbers, now and then, and no error. It is also easy to be off by one batch, so the next cell tests the function on the CPU: it must return the same batches in the same order.

# %% tags=["worked"]
def prefetch(batches, device="cuda"):
    """Yield each batch on the device; copy the next one while this one is in use."""
    copy_stream = torch.cuda.Stream() if device == "cuda" else None
    iterator = iter(batches)

    def copy_next():
        with torch.cuda.stream(copy_stream):
            batch = next(iterator, None)
            return None if batch is None else batch.to(device, non_blocking=True)

    next_batch = copy_next()
    while next_batch is not None:
        if copy_stream is not None:
            torch.cuda.current_stream().wait_stream(copy_stream)
            next_batch.record_stream(torch.cuda.current_stream())
        batch, next_batch = next_batch, copy_next()
        yield batch


test_batches = [torch.full((4, 3), float(number)) for number in range(1, 6)]
L.same(test_batches, list(prefetch(test_batches, device="cpu")))

# %% tags=["measure"]
with L.gpu("pinned"):
    train(host_batches(pinned=True))
with L.gpu("resident"):
    train([torch.ones(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")] * STEPS)  # no copies: the lower bound
with L.gpu("prefetched"):
    # <blank> copy the next batch in advance: prefetch(...)
    # was: train(host_batches(pinned=True))
    train(prefetch(host_batches(pinned=True)))
    # </blank>

copy_ms = copying.batch_copy_cost(gpulab.runs["pinned"], BATCH_BYTES).transfer_ms
compute_ms = throughput.step_ms(gpulab.runs["resident"])
in_turn_ms, prefetched_ms = (throughput.step_ms(gpulab.runs[name]) for name in ("pinned", "prefetched"))
print(f"copy {copy_ms:.2f} ms, compute {compute_ms:.2f} ms per step  [{gpulab.runs['prefetched'].source}]")
for name, step_ms, overlaps in (("one after the other", in_turn_ms, False), ("prefetched", prefetched_ms, True)):
    calculated_ms = copying.makespan_ms([copy_ms] * 1000, [compute_ms] * 1000, ahead=overlaps) / 1000
    print(f"{name:20} {step_ms:.2f} ms per step; calculated from copy and compute: {calculated_ms:.2f}  [simulated]")
# %gpucompare pinned prefetched prefetch

# %% tags=["claim"]
display(L.reveal("turns", prefetched_ms, "ms"))
longer_ms = max(copy_ms, compute_ms)
L.claim(
    "with prefetched copies, a step takes as long as the longer of copy and compute, to within 5 %",
    abs(prefetched_ms - longer_ms) <= 0.05 * longer_ms,
    before=in_turn_ms,
    after=prefetched_ms,
    unit="ms",
    source=gpulab.runs["prefetched"],
)

# %% [markdown]
# In the comparison, *Predicted* is what gpulab expects from the run `pinned` alone; `%gpuwhatif pinned prefetch` shows this prediction. On a virtual GPU, copies and kernels do not slow each other down. On a real one they share the memory bandwidth, but the link needs only 50 of its 3,350 GB/s.
#
# The rule also tells you when prefetching is not worth it. If a copy takes 3 ms and the compute 0.3 ms, prefetching gives a step of 3 ms instead of 3.3: the link is the bottleneck, and only fewer bytes help.

# %% [markdown]
# ## Unnecessary synchronisation
#
# ### 07.4 Reading a value
#
# The host launches work faster than the GPU completes it, and normally runs a few steps ahead. As soon as it needs a number from the GPU, it must wait until that number is computed. By then the queue is empty, and the GPU in turn waits for the host.

# %% tags=["predict"]
L.predict("waits")

# %% tags=["measure"]
with L.gpu("lines"):
    loss = torch.ones(3, device="cuda").sum()
    losses = []
    for line, action in {
        "loss.item()": lambda: loss.item(),
        "print(loss)": lambda: str(loss),
        "if loss > 10": lambda: bool(loss > 10),
        "loss.cpu()": lambda: loss.cpu(),
        "torch.isnan(loss)": lambda: torch.isnan(loss),
        "losses.append(loss.detach())": lambda: losses.append(loss.detach()),
    }.items():
        with record_function(line):
            action()
waits = copying.syncs_by_range(gpulab.runs["lines"])
for line, count in waits.items():
    print(f"{line:30} waits {'once' if count == 1 else f'{count} times'}")

# %% tags=["reveal"]
L.reveal("waits", float(waits.get("print(loss)", 0) + waits.get("if loss > 10", 0)), "waits in print and if")


# %% [markdown]
# A virtual GPU counts `print(loss)` as one wait. To format a tensor, PyTorch reads its value again and again (8 times in version 2.13), so on a real GPU this line waits more often; `print(loss.item())` waits once.
#
# A training log needs the mean loss, not every single loss. Accumulate the losses on the device, and read the sum every hundred steps: write that in `read_rarely`. Steps are counted from 0, so the first hundred are complete after step 99.
#
# The claim below tests both functions on the CPU, on a small training with real numbers. The operator behind each of these reads, `aten::_local_scalar_dense`, can be counted there too.

# %% tags=["exercise"]
def read_every_step(losses):
    """Return the mean loss; read every single loss."""
    history = [loss.item() for loss in losses]
    return sum(history) / len(history)


def read_rarely(losses):
    """Return the mean loss; add the losses up, and read the sum every hundred steps."""
    history, total = [], torch.zeros(())
    for step, loss in enumerate(losses):
        # <blank> add loss to total; every hundred steps append total.item() / 100 to history and reset total to 0
        # was: history.append(loss.item())
        total += loss
        if step % 100 == 99:
            history.append(total.item() / 100)
            total.zero_()
        # </blank>
    return sum(history) / len(history)


# %% tags=["claim"]
means, reads = {}, {}
for mean_loss in (read_every_step, read_rarely):
    with copying.count_calls("aten::_local_scalar_dense") as counter:
        means[mean_loss] = mean_loss(transfers.training_losses(200))
    reads[mean_loss] = counter.calls
display(L.same(means[read_every_step], means[read_rarely]))
L.claim(
    "a hundredth of the reads is enough to get the same mean loss",
    100 * reads[read_rarely] <= reads[read_every_step],
    before=reads[read_every_step],
    after=reads[read_rarely],
    unit="reads in 200 steps",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# Does this make a loop faster? The usual advice takes it for granted. Test it on our wide model, with two kinds of host: one that has nothing else to do, and one that spends two milliseconds per step on work of its own, such as choosing the next samples. (Here it only runs an empty loop for that time.)

# %% tags=["predict"]
L.predict("cost")


# %% tags=["measure"]
def train_resident(read_every, host_ms):
    """Train on a batch that is on the GPU; read the loss every `read_every` steps; the host has `host_ms` of work."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    inputs = torch.ones(ROWS, WIDTH, **options)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, **options), nn.GELU(), nn.Linear(WIDTH, 16, **options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 17):
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :16])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % read_every == 0:
            loss.item()
        end_s = time.thread_time() + host_ms / 1000
        while time.thread_time() < end_s:
            pass


# <blank> read the loss in every step
# was: OFTEN = 100
OFTEN = 1
# </blank>
with L.gpu("idle host, rare reads"):
    train_resident(100, 0.0)
with L.gpu("idle host, read every step"):
    train_resident(OFTEN, 0.0)
with L.gpu("busy host, rare reads"):
    train_resident(100, 2.0)
with L.gpu("busy host, read every step"):
    train_resident(OFTEN, 2.0)

names = [f"{host} host, {reading}" for host in ("idle", "busy") for reading in ("rare reads", "read every step")]
step_ms = {name: throughput.step_ms(gpulab.runs[name]) for name in names}
cost = {
    host: step_ms[f"{host} host, read every step"] / step_ms[f"{host} host, rare reads"] - 1
    for host in ("idle", "busy")
}
for name, ms in step_ms.items():
    print(f"{name:26} {ms:.2f} ms per step  [{gpulab.runs[name].source}]")
print(f"reading in every step costs {cost['idle']:.1%} with an idle host, {cost['busy']:.1%} with a busy one")

# %% tags=["claim"]
display(L.reveal("cost"))
L.claim(
    "reading in every step costs less than 10 % if the host has nothing else to do, but more than 10 % if it has 2 ms",
    cost["idle"] < 0.1 < cost["busy"],
    before=cost["idle"],
    after=cost["busy"],
    unit="%",
    source=gpulab.runs["busy host, read every step"],
)

# %% [markdown]
# The first half is a null result: if the host has nothing else to do, you would not notice the reads, because the kernels of a step run for milliseconds and the next ones are launched within microseconds. In a loop of short kernels, launching them is such work of the host, and then each read costs time even if the host does nothing else (notebook [12](12_launch_fusion_graphs.ipynb)). For the busy host, compare its two lines: without the reads, its 2 ms overlap with the GPU's 3.5 ms; with them, the times add up. This is the rule of 07.3 again: a synchronisation turns the longer of the two into the sum. So count the synchronisations, and check what the host does between them.

# %% [markdown]
# ## Many small copies
#
# ### 07.5 A thousand copies, or two
#
# 07.1 showed that a small copy costs mainly its start-up. Here are 500 samples, each with a label and a feature tensor of its own length. Sent as they are, they need a thousand copies.
#
# **Exercise:** write `packed`. It sends all samples in at most two copies, and returns the same two lists of tensors on the device, with the same types. The score counts the copies in a recorded run; the target is 2. Do not pin anything here, because the last cell also runs your function on the CPU, where pinning raises an error. `L.hint("copies")` gives up to three hints.

# %% tags=["exercise"]
generator = torch.Generator().manual_seed(7)
lengths = torch.randint(50, 1500, (500,), generator=generator).tolist()
features = [torch.randn(length, generator=generator) for length in lengths]
labels = [torch.tensor(index % 10) for index in range(500)]


def one_by_one(device):
    """Copy each tensor separately."""
    return [tensor.to(device) for tensor in features], [tensor.to(device) for tensor in labels]


def packed(device):
    """Return the same tensors on the device, with at most two copies."""
    # <blank> join the features and the labels, copy each once, and split them again on the device
    # was: return one_by_one(device)
    all_features, all_labels = torch.cat(features).to(device), torch.stack(labels).to(device)
    return list(all_features.split(lengths)), list(all_labels.unbind())
    # </blank>


# %% [markdown]
# Before you run the next cell, estimate both times yourself: a thousand times the time of a pageable copy of 4 KB in 07.1, and 1.6 MB at 7 GB/s. Which of the two is the larger?

# %% tags=["measure"]
with L.gpu("one by one"), record_function("moving"):
    one_by_one("cuda")
with L.gpu("packed"), record_function("moving"):
    packed("cuda")

many, few = (copying.host_device_copies(gpulab.runs[name]) for name in ("one by one", "packed"))
start_ns, gb_per_s = min(sizes) / pageable_rates[min(sizes)], max(pageable_rates.values())
print(f"[{gpulab.runs['packed'].source}]")
for name, run_copies in (("one by one", many), ("packed", few)):
    total_bytes = sum(copy.bytes for copy in run_copies)
    calculated_ms = (len(run_copies) * start_ns + total_bytes / gb_per_s) / 1e6
    total_ms = copying.range_ms(gpulab.runs[name], "moving")
    print(f"{name:10} copies {len(run_copies):5,}: {total_ms:6.2f} ms; calculated {calculated_ms:6.2f} ms")

# %% tags=["claim"]
display(L.same(transfers.with_dtypes(one_by_one("cpu")), transfers.with_dtypes(packed("cpu"))))
display(L.score("copies", len(few)))
calls_before, calls_after = (  # counted without a GPU: the meta device is another device, too
    count_operators(partial(method, "meta"))["aten._to_copy"] for method in (one_by_one, packed)
)
L.claim(
    "at most two copies to another device replace a thousand, and transfer the same tensors",
    calls_before == 1000 and calls_after <= 2,
    before=calls_before,
    after=calls_after,
    unit="copies",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# The first line is a thousand start-ups and hardly any bytes; the rest of its time, which your estimate does not contain, is Python iterating over the tensors. In the second line almost nothing is copying; the time is the host's own work: joining a thousand tensors, and splitting two tensors into a thousand. If you pack a batch in a DataLoader worker, the main process does not have to do this work.
#
# One copy instead of two would need a single data type: labels reinterpreted as bytes, or converted to floats. That would save one more start-up, about 16 us, at the cost of code that is hard to read.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 07.6 Results that are read too early
#
# Copies back to the host have a problem of their own. A virtual GPU has no numbers and a CPU has no queue, so this experiment uses a simulator: one stream, a link and a host, exact to the microsecond.

# %% tags=["predict"]
L.predict("race")

# %% [markdown]
# The solution is an *event*: a marker in the stream that the host can wait for. In PyTorch, write `done = torch.cuda.Event()`, then `done.record()` directly after the copy, and `done.synchronize()` before you read. This waits only for the work before the marker, so the host can do other things in between. The simulator has the same methods: write these three lines with `gpu` instead of `torch.cuda`.

# %% tags=["exercise"]
correct = np.arange(1, 100_001, dtype=np.float32)


def fetch_results(gpu, pause_us=0.0, wait=True):
    """Return the values that the host reads, after whatever work the GPU still has in its queue."""
    host_buffer = gpu.pinned(len(correct))
    gpu.fetch(host_buffer, correct)  # like host_buffer.copy_(results, non_blocking=True)
    gpu.work(pause_us)
    if wait:
        # <blank> set a marker after the copy, and wait for it
        # was: gpu.work(5)
        done = gpu.Event()
        done.record()
        done.synchronize()
        # </blank>
    return gpu.read(host_buffer)


def count_wrong_values(queue_us, **options):
    """Count the wrong values when this many us of kernels are queued before the copy."""
    gpu = races.SimulatedGpu(bytes_per_us=50_000)
    gpu.compute(queue_us)
    return races.count_wrong_values(fetch_results(gpu, **options), correct)


queues_us = (0, 2, 6, 200)
print("wrong values out of 100,000, by the duration of the kernels queued before the copy")
print(f"{'':>6} {'immediately':>12} {'after 10 us':>12} {'after your wait':>16}")
for queue_us in queues_us:
    immediately = count_wrong_values(queue_us, wait=False)
    after_pause = count_wrong_values(queue_us, pause_us=10, wait=False)
    print(f"{queue_us:3} us {immediately:12,} {after_pause:12,} {count_wrong_values(queue_us):16,}")

# %% tags=["claim"]
display(L.reveal("race", float(count_wrong_values(10, wait=False)), "wrong values of 100,000"))
longest_us = 10_000_000  # ten seconds: no pause replaces the wait
L.claim(
    "with the wait, all values are right for every queue length; without it, some are wrong for every queue length",
    all(count_wrong_values(queue_us) == 0 for queue_us in (*queues_us, longest_us))
    and all(count_wrong_values(queue_us, wait=False) for queue_us in queues_us),
    before=count_wrong_values(200, wait=False),
    after=count_wrong_values(200),
    unit="wrong values",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# Look at the middle column. A pause of 10 us is long enough if little work is queued. With 6 us of queued kernels half of the values are old, and with 200 us all of them. A program that "always worked" fails on the day the model grows, without an error.
#
# The same problem exists in the other direction: if you refill a pinned buffer before its copy has finished, you send the wrong batch. A DataLoader returns new buffers, so it is safe; a ring of buffers of your own needs events.
#
# ### 07.7 Four lanes, or the wrong socket
#
# Sometimes the code is not the cause. A PCIe link has lanes, and a card that is badly seated or in the wrong slot runs with fewer of them. And on a machine with two sockets, each GPU is attached to one of them: a process on the other socket sends its bytes through the link between the sockets first.
#
# The next cell shows what the driver's tools could print on three machines. **These outputs are invented for practice.** The process, `train.py`, uses GPU 0. *CPU Affinity* lists the cores on the same socket as each GPU; `taskset` lists the cores that the process may use.

# %% tags=["check"]
print(f"machine a\n{topology.TOPOLOGY_TEXTS['a']}")
for name in "bc":
    print(f"\nmachine {name}: as machine a, except\n{topology.differing_lines(name, 'a')}")

# <blank> "a", "b" or "c"
# was: answer = None
answer = "c"
# </blank>
L.check("slot", answer)

# %% tags=["claim"]
# <blank> the outputs of all three machines: topology.TOPOLOGY_TEXTS
# was: outputs = {name: topology.TOPOLOGY_TEXTS["a"] for name in topology.TOPOLOGY_TEXTS}
outputs = topology.TOPOLOGY_TEXTS
# </blank>
links = {name: topology.parse_topology(output) for name, output in outputs.items()}
L.claim(
    "of three invented machines, one has a link with a quarter of its lanes, and one runs its process on the wrong "
    "socket",
    {name: link.faults for name, link in links.items()} == {"a": (), "b": ("lanes",), "c": ("node",)},
    before=links["a"].gb_per_s,
    after=links["b"].gb_per_s,
    unit="GB/s",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# On a real GPU, gpulab reads the lanes and the PCIe generation from the driver while the GPU works, and reports a slow link by itself. (An idle link switches to a lower speed to save power, so a reading at rest proves nothing.) `%gpuwhy slow_pcie_link` explains how. The cost of the wrong socket depends on the machine, and this lesson has not measured it. Bind the process (`taskset -c 0-31`, or `numactl --cpunodebind=0 --membind=0`) and measure both variants.

# %% [markdown]
# ## Transfer
#
# Here are the counters of a training run, invented for this question. A step takes 21 ms. The last line of the loop body copies the next batch on a separate stream, and the next step waits for this copy:
#
# | counter, per step | value |
# |---|---|
# | kernels | 14 ms |
# | copy to the GPU, `Pinned -> Device`, on stream 13 | 1 copy, 245 MB, 5 ms, 49 GB/s |
# | part of it that overlaps with kernels | 0 % |
# | cudaStreamSynchronize, inside aten::item | 5 calls, 13 ms in total |
# | start of the next copy | after the last of these calls |
# | waiting for data | 0.1 ms |

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
