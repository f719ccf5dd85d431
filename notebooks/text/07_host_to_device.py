# %% [markdown]
# # 07 Host to device: is the GPU computing, or being copied to?
#
# A batch is made in the memory of the *host*, the computer with its CPU, and used in the memory of the *device*, the GPU. Between them lies a link that carries some sixty times fewer bytes a second than the GPU's own memory. Here you learn what a copy over it costs, which copies can be hidden, and which lines make the host wait without need. Do [01](01_what_is_utilisation.ipynb) first if "the GPU is 40 % busy" tells you nothing yet.
#
# With a CUDA GPU everything runs on it. Without one, a virtual H100 runs your code unmodified and its times are computed. Two rates are put into it, and you will meet both: 50 GB/s over the link at best, which is four fifths of what its standard (PCIe 5, 16 lanes) allows, and 6 GB/s for copies from ordinary memory, a middle of published traces (5.3 to 9.9 GB/s). The **shape** of what you will see follows from that. The **rates** of your own machine are for you to measure.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("07_host_to_device")
L

# %% [markdown]
# ## The symptom
#
# A colleague trains a wide network on features that lie ready in memory, 134 MB a batch. Somebody read that `non_blocking=True` makes copies asynchronous and put it in. Nothing changed.

# %% tags=["given"]
import time

import torch
from IPython.display import display
from torch import nn

from gpulab.lessons.labs.copies import copying, transfers, races
from gpulab.lessons.labs.steps import throughput
from gpulab.lessons.labs.machine import topology

ROWS, WIDTH, STEPS = 8192, 8192, 12
BATCH_BYTES = 2 * ROWS * WIDTH  # two bytes a number


def train(batches):
    """A few steps on batches that lie in the host's memory, or on the GPU already."""
    there = {"device": "cuda", "dtype": torch.bfloat16}
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, **there), nn.GELU(), nn.Linear(WIDTH, 16, **there))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in batches:
        inputs = inputs.to("cuda", non_blocking=True)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :16])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def in_memory(pinned):
    """A loop's worth of batches: two, in turn."""
    two = [torch.ones(ROWS, WIDTH, dtype=torch.bfloat16, pin_memory=pinned) for _ in range(2)]
    return [two[step % 2] for step in range(STEPS)]


# %% [markdown]
# Before you answer, think of two times: 134 MB over a link of 6 GB/s, and about 2.2 million million operations (forward and backward) on a GPU that does several hundred million million in a second.

# %% tags=["predict"]
L.predict("share")

# %% tags=["measure"]
# %%gpuprofile --virtual auto before
train(in_memory(pinned=False))

# %% tags=["reveal"]
before = gpulab.runs["before"]
L.reveal("share", copying.moved(before, BATCH_BYTES).copying_ms / throughput.step_ms(before), "%")

# %% [markdown]
# Three things in the report tell that it is the copy and nothing else. The line **exposed copies** is time in which the link works and no kernel does; were the model the cause, *matrix kernels* would be long instead, and were it the data, *waiting for data*. The evidence names the **memory**: pageable. And it gives a **rate**, about 6 GB/s, where the link could do 50.
#
# Do not be misled by *GPU busy*: the table counts a copy as work of the GPU, so the GPU can be busy all the time and compute for a small part of it.
#
# ## What a copy costs
#
# ### 07.1 Pageable and pinned memory, from 4 KB to 1 GB
#
# Ordinary memory is *pageable*: the system may move it or put it on a disk, so a GPU cannot be told to read it on its own. The driver first copies it, piece by piece, into memory that stays where it is, and the link takes it from there. *Pinned* memory stays where it is from the beginning.
#
# Every copy also costs a fixed time to start. So its rate depends on its size, and there is a knee: below it you pay for starting, above it for bytes.

# %% tags=["predict"]
L.predict("knee")

# %% tags=["measure"]
# <fix>
# was: sizes = [64 << 20, 256 << 20, 1 << 30]
sizes = [4096 << (2 * place) for place in range(10)]  # 4 KB, 16 KB, ..., 1 GB
# </fix>
# A GPU is to read memory that was written; a virtual one reads none, and a gigabyte need not be touched for it.
made = torch.ones if L.device == "cuda" else torch.empty

with L.gpu("sizes"):
    for pinned in (False, True):
        memory = made(max(sizes), dtype=torch.uint8, pin_memory=pinned)
        for size in sizes:
            for _ in range(3):
                memory[:size].to("cuda", non_blocking=True)
                torch.cuda.synchronize()
        del memory

pageable = copying.curve(gpulab.runs["sizes"], pinned=False)
pinned = copying.curve(gpulab.runs["sizes"], pinned=True)
for_scale = L.pick(tiny=(1 << 16, 1 << 24), lab=(1 << 16, 1 << 20, 1 << 24, 1 << 28))
here = {size: copying.host_copy_gb_per_s(size) for size in for_scale}
print(f"from the call to the last byte  [{gpulab.runs['sizes'].source}; one core: measured here]")
transfers.rates(pageable, pinned, here)

# %% tags=["claim"]
knee = copying.knee_bytes(pinned)
display(L.reveal("knee", float(knee), "bytes"))
L.claim(
    "a pinned copy reaches half of the link's best rate at a size between 64 KB and 16 MB",
    65_536 <= knee <= 16 << 20,
    before=pinned[min(sizes)],
    after=pinned[max(sizes)],
    unit="GB/s",
    source=gpulab.runs["sizes"],
)

# %% [markdown]
# You can now say what a pinned copy takes before you make it. The first line of the table is the start: 4 KB at a quarter of a GB/s are some 16 us, nearly all of it calls. Add the bytes over 50 GB/s: for a batch of 134 MB that is 2.7 ms.
#
# The last column is your own CPU, copying from memory to memory. Small blocks stay in its cache; a large one goes at a few GB/s, or at ten or twenty on a quick laptop, and on none at 50. A pageable copy contains such a copy, the driver's, which is the slower half of the way. (The 6 GB/s of the virtual GPU are put in, as said above, not worked out from your CPU.)
#
# Bytes count too: an image sent as `uint8` and made `float32` on the GPU is a quarter of the bytes, and so a quarter of the time, from any memory.
#
# ### 07.2 Where to pin
#
# "Pinned memory is faster", says nearly every guide, so people write `x.pin_memory().to("cuda", non_blocking=True)`. Who pins, and when?

# %% tags=["predict"]
L.predict("pin")

# %% tags=["measure"]
from torch.utils.data import DataLoader

SMALLER = 4 * 1024 * 4096  # bytes of a batch here, 16.8 MB of float32


def loaded(way):
    """A loop on batches of a loader with a worker: not pinned ("plain"), pinned "in the loop" or "by the loader"."""
    batches = copying.Ready(8, 1024, 4096)
    loader = DataLoader(batches, batch_size=None, num_workers=1, pin_memory=way == "by the loader")
    layer = nn.Linear(4096, 64, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for inputs in loader:
        if way == "in the loop":
            inputs = inputs.pin_memory()
        outputs = layer(inputs.to("cuda", non_blocking=True))
        outputs.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


ways = {}
for name in ("plain", "in the loop", "by the loader"):
    with L.gpu(name):
        # <fix>
        # was: loaded("plain")
        loaded(name)
        # </fix>
    ways[name] = copying.moved(gpulab.runs[name], SMALLER)
print(f"a batch of {SMALLER / 1e6:.1f} MB, as the loop sees it  [{gpulab.runs['plain'].source}]")
transfers.beside(ways)

# %% tags=["claim"]
display(L.reveal("pin", ways["plain"].there_ms / ways["by the loader"].there_ms, "times as fast as plain"))
L.claim(
    "a batch that the loader pinned is on the GPU in less than half the time of one from pageable memory",
    ways["by the loader"].there_ms < 0.5 * ways["plain"].there_ms,
    before=ways["plain"].there_ms,
    after=ways["by the loader"].there_ms,
    unit="ms",
    source=gpulab.runs["by the loader"],
)

# %% [markdown]
# *Pinning* is what the main thread spends before the copy's call, *held* how long it stands inside it. The last line has neither: a thread of the loader made the copy into pinned memory while the loop was elsewhere. (With `num_workers=0` there is no such thread, and the loop pays again.)
#
# Do not trust the middle line without a GPU: a virtual one takes for pinning what an ordinary copy takes on *this* CPU at that moment, so on a quick laptop it may even beat the plain copy. The sum is better. A plain copy goes in pieces: one travels while the next is copied, and the slower of the two sets the time. Whoever pins first makes the same copy, and only then lets the batch travel.
#
# And memory that is pinned for the first time has to be locked in its place: 61 ms for 512 MB were published for an older machine (University of Virginia, on `cudaMallocHost`). PyTorch keeps locked memory and gives it out again, so a loop pays for that in its first batches only. Below, *fresh* memory is locked, filled and sent; *kept* was locked before; *ahead* was filled by the loader's thread.

# %% tags=["claim"]
print("how many times as long as a plain copy, by the rate of the host's own copies")
print(f"{'':8}" + "".join(f"{route:>8}" for route in copying.ROUTES))
sums = {rate: transfers.times_as_long(SMALLER, rate * 1e9) for rate in (5.3, 6.0, 7.0, 8.0, 9.9)}  # GB/s, as in traces
for rate, times in sums.items():
    print(f"{rate} GB/s" + "".join(f"{each:8.2f}" for each in times.values()))

# <fix>
# was: least = {kind: min(times["ahead"] for times in sums.values()) for kind in ("fresh", "kept")}
least = {kind: min(times[kind] for times in sums.values()) for kind in ("fresh", "kept")}
# </fix>
L.claim(
    "pinning a batch in the loop takes longer than plain .to(): by half at least into fresh memory, by 5 % into kept",
    least["fresh"] >= 1.5 and least["kept"] >= 1.05,
    before=least["kept"],
    after=least["fresh"],
    unit="times plain",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# So pinned memory is faster **for whoever did not have to pin it**. PyTorch's own guide to pinning measured the same pattern at up to twice the time of a plain `.to()`. One thing can change the sum: PyTorch copies large tensors with several threads, and on a host with many free cores, pinning into kept memory can then beat the driver's single copy. It still takes these cores from your loader, and it never beats the thread beside the loop.
#
# `pin_memory=True` and `non_blocking=True` belong together: the first makes an asynchronous copy possible, the second asks for it. That is why the colleague's flag changed nothing.
#
# ## Hiding what is left
#
# ### 07.3 In turn, and ahead
#
# The batches of our first loop lie ready, so they can be pinned once, before it begins, and nobody pays in a step. A copy then takes 2.7 ms instead of 22. It still stands in the way: on one *stream*, which is a queue of work that the GPU does in order, it copies, computes, copies, computes. The part of the chip that copies is not the part that computes, though, and both could work at the same time.

# %% tags=["predict"]
L.predict("turns")


# %% [markdown]
# The fix is a second stream, for copies. Three lines matter:
#
# - under `torch.cuda.stream(side)` the copy goes to that stream; without this line the loop is right, and slow;
# - `wait_stream(side)` lets the compute begin only when the batch is there;
# - `record_stream` tells PyTorch's allocator that the compute still uses this memory, so that it is not given away too soon.
#
# Without one of the last two the GPU may compute on memory that holds something else: wrong numbers, on some days, and no error. Such a helper is also quickly off by one, so it is first tried on the CPU: the same batches, in the same order.

# %% tags=["worked"]
def ahead(batches, device="cuda"):
    """Each batch on the device; the next one is copied while this one is computed on."""
    side = torch.cuda.Stream() if device == "cuda" else None
    rest = iter(batches)

    def copied():
        with torch.cuda.stream(side):
            batch = next(rest, None)
            return None if batch is None else batch.to(device, non_blocking=True)

    following = copied()
    while following is not None:
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            following.record_stream(torch.cuda.current_stream())
        batch, following = following, copied()
        yield batch


some = [torch.full((4, 3), float(number)) for number in range(1, 6)]
L.same(some, list(ahead(some, device="cpu")))

# %% tags=["measure"]
with L.gpu("pinned"):
    train(in_memory(pinned=True))
with L.gpu("resident"):
    train([torch.ones(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")] * STEPS)  # nothing to copy: the bound
with L.gpu("ahead"):
    # <fix>
    # was: train(in_memory(pinned=True))
    train(ahead(in_memory(pinned=True)))
    # </fix>

copy_ms = copying.moved(gpulab.runs["pinned"], BATCH_BYTES).copying_ms
compute_ms = throughput.step_ms(gpulab.runs["resident"])
turn_ms, ahead_ms = (throughput.step_ms(gpulab.runs[name]) for name in ("pinned", "ahead"))
print(f"copy {copy_ms:.2f} ms, compute {compute_ms:.2f} ms a step  [{gpulab.runs['ahead'].source}]")
for name, step_ms, hides in (("in turn", turn_ms, False), ("ahead", ahead_ms, True)):
    by_hand_ms = copying.makespan_ms([copy_ms] * 1000, [compute_ms] * 1000, ahead=hides) / 1000
    print(f"{name:8} {step_ms:.2f} ms a step; worked out from these two {by_hand_ms:.2f}  [simulated]")
# %gpucompare pinned ahead prefetch

# %% tags=["claim"]
display(L.reveal("turns", ahead_ms, "ms"))
longer_ms = max(copy_ms, compute_ms)
L.claim(
    "with copies ahead, a step takes as long as the longer of copy and compute, within 5 %",
    abs(ahead_ms - longer_ms) <= 0.05 * longer_ms,
    before=turn_ms,
    after=ahead_ms,
    unit="ms",
    source=gpulab.runs["ahead"],
)

# %% [markdown]
# In the comparison, *Predicted* is what gpulab expected from the run `pinned` alone; `%gpuwhatif pinned prefetch` asks for it. A virtual GPU lets copies and kernels pass one another at no cost; on a real one they share the GPU's memory, of whose 3,350 GB/s the link can take 50.
#
# The rule says as well when not to bother. Where a copy takes 3 ms and the compute 0.3, copying ahead gives a step of 3 ms instead of 3.3: the link sets the pace, and only fewer bytes help.
#
# ## Waiting without need
#
# ### 07.4 Reading a value
#
# A host asks for work faster than the GPU does it, and is normally some steps ahead. The moment it needs a number from the GPU, it must stand still until that number is computed. By then nothing is queued any more, and the GPU waits for the host.

# %% tags=["predict"]
L.predict("waits")

# %% tags=["measure"]
from torch.profiler import record_function

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
waited = copying.waits(gpulab.runs["lines"])
for line, times in waited.items():
    print(f"{line:30} waits {'once' if times == 1 else f'{times} times'}")

# %% tags=["reveal"]
L.reveal("waits", float(waited.get("print(loss)", 0) + waited.get("if loss > 10", 0)), "waits in print and if")


# %% [markdown]
# A training log wants the mean of the losses, not each of them. Add them up where they are, and read the sum once in a hundred steps: write that into `read_seldom`. Steps count from 0, so the first hundred are complete after step 99.
#
# Both functions are tried on the CPU, on a small training with real numbers. The operator behind every one of these reads, `aten::_local_scalar_dense`, can be counted there as well.

# %% tags=["exercise"]
def read_each(losses):
    """The mean loss; each loss is read."""
    history = [loss.item() for loss in losses]
    return sum(history) / len(history)


def read_seldom(losses):
    """The mean loss; the losses are added up, and the sum is read in every hundredth step."""
    history, total = [], torch.zeros(())
    for step, loss in enumerate(losses):
        # <blank> add loss to total; in every hundredth step append total.item() / 100 to history, and set total to 0
        # was: history.append(loss.item())
        total += loss
        if step % 100 == 99:
            history.append(total.item() / 100)
            total.zero_()
        # </blank>
    return sum(history) / len(history)


# %% tags=["claim"]
means, reads = {}, {}
for way in (read_each, read_seldom):
    with copying.counted("aten::_local_scalar_dense") as read:
        means[way] = way(transfers.losses(200))
    reads[way] = read.calls
display(L.same(means[read_each], means[read_seldom]))
L.claim(
    "the same mean loss is known after a hundredth of the reads",
    100 * reads[read_seldom] <= reads[read_each],
    before=reads[read_each],
    after=reads[read_seldom],
    unit="reads in 200 steps",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# Does that make a loop faster? The usual advice says so without asking. Here is our wide model twice: with a host that has nothing else to do, and with one that spends two milliseconds of each step on something of its own, such as picking the next samples. (Here it only spins until they are over.)

# %% tags=["predict"]
L.predict("cost")


# %% tags=["measure"]
def stepped(every, own_ms):
    """Steps on a batch that lies on the GPU; reads the loss in each step, or every so many. The host has other work."""
    there = {"device": "cuda", "dtype": torch.bfloat16}
    inputs = torch.ones(ROWS, WIDTH, **there)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, **there), nn.GELU(), nn.Linear(WIDTH, 16, **there))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 17):
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :16])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            loss.item()
        until = time.thread_time() + own_ms / 1000
        while time.thread_time() < until:
            pass


# <fix>
# was: OFTEN = 100
OFTEN = 1
# </fix>
with L.gpu("idle host, seldom"):
    stepped(100, 0.0)
with L.gpu("idle host, each"):
    stepped(OFTEN, 0.0)
with L.gpu("busy host, seldom"):
    stepped(100, 2.0)
with L.gpu("busy host, each"):
    stepped(OFTEN, 2.0)

names = [f"{host} host, {how}" for host in ("idle", "busy") for how in ("seldom", "each")]
took_ms = {name: throughput.step_ms(gpulab.runs[name]) for name in names}
cost = {host: took_ms[f"{host} host, each"] / took_ms[f"{host} host, seldom"] - 1 for host in ("idle", "busy")}
for name, ms in took_ms.items():
    print(f"{name:18} {ms:.2f} ms a step  [{gpulab.runs[name].source}]")
print(f"a read in each step costs {cost['idle']:.1%} with an idle host, {cost['busy']:.1%} with a busy one")

# %% tags=["claim"]
display(L.reveal("cost"))
L.claim(
    "a read in each step costs under a tenth where the host has nothing else to do, and over a tenth where it has 2 ms",
    cost["idle"] < 0.1 < cost["busy"],
    before=cost["idle"],
    after=cost["busy"],
    unit="%",
    source=gpulab.runs["busy host, each"],
)

# %% [markdown]
# Half of it is a null result: where the host has nothing else to do, nobody would notice the read. With work of its own, look at the two lines of the busy host. Without the read its 2 ms are hidden behind the GPU's 3.5; with it they are added. It is the rule of 07.3 again: a wait turns the longer of the two into the sum. So count the waits, and look at what the host does between them.
#
# ## Many small pieces
#
# ### 07.5 A thousand copies, or two
#
# From 07.1 you know what a small copy costs: its start. Here are 500 samples, each with features of its own length and a label. Sent as they are, that is a thousand copies.
#
# **Make:** write `packed`, which sends them in at most two copies, and gives back the same two lists of tensors on the device, with the same types. The score counts the copies in a recorded run; par is 2. `L.hint("copies")` helps, three times.

# %% tags=["exercise"]
chance = torch.Generator().manual_seed(7)
lengths = torch.randint(50, 1500, (500,), generator=chance).tolist()
features = [torch.randn(length, generator=chance) for length in lengths]
labels = [torch.tensor(place % 10) for place in range(500)]


def one_by_one(device):
    """Each tensor by itself."""
    return [each.to(device) for each in features], [each.to(device) for each in labels]


def packed(device):
    """The same tensors on the device, in at most two copies."""
    # <blank> join the features and the labels, copy each once, and take them apart on the device
    # was: return one_by_one(device)
    together, numbers = torch.cat(features).to(device), torch.stack(labels).to(device)
    return list(together.split(lengths)), list(numbers.unbind())
    # </blank>


# %% [markdown]
# Before you run the next cell, do the sum yourself: a thousand times what a pageable copy of 4 KB took in 07.1, and 1.6 MB over 6 GB/s. Which of the two matters?

# %% tags=["measure"]
with L.gpu("one by one"), record_function("moving"):
    one_by_one("cuda")
with L.gpu("packed"), record_function("moving"):
    packed("cuda")

many, few = (copying.copied(gpulab.runs[name]) for name in ("one by one", "packed"))
start_ns, gb_per_s = min(sizes) / pageable[min(sizes)], max(pageable.values())
print(f"[{gpulab.runs['packed'].source}]")
for name, copies in (("one by one", many), ("packed", few)):
    in_all = sum(each.bytes for each in copies)
    by_hand_ms = (len(copies) * start_ns + in_all / gb_per_s) / 1e6
    took_in_all_ms = copying.range_ms(gpulab.runs[name], "moving")
    print(f"{name:10} copies {len(copies):5,}: {took_in_all_ms:6.2f} ms; by hand {by_hand_ms:6.2f} ms")

# %% tags=["claim"]
display(L.same(transfers.typed(one_by_one("cpu")), transfers.typed(packed("cpu"))))
display(L.score("copies", len(few)))
L.claim(
    "a thousand copies become two at the most, which carry the same tensors",
    len(many) == 1000 and len(few) <= 2,
    before=len(many),
    after=len(few),
    unit="copies",
    source=gpulab.runs["packed"],
)

# %% [markdown]
# A thousand starts, and hardly a byte: that is the first line, and what your sum leaves out of it is Python going from tensor to tensor. The second line is next to no copying, but the host's own work: joining a thousand pieces, and making a thousand tensors of two again. Pack a batch in the loader's worker, and that is somebody else's work too.
#
# One copy instead of two would need one type of number, labels seen as bytes or made floats. It saves one start of a thousand, at the price of code that nobody likes to read.
#
# ## Coming back
#
# ### 07.6 Results that are read too early
#
# The way back has a trap of its own. A virtual GPU has no numbers and a CPU has no queue, so a simulator shows it here: one stream, a link and a host, exact to the microsecond.

# %% tags=["predict"]
L.predict("race")

# %% [markdown]
# What helps is an *event*, a mark in the stream that can be waited for. In PyTorch: `done = torch.cuda.Event()`, then `done.record()` right behind the copy, and `done.synchronize()` before you read. It waits for what stands before the mark and for nothing else, so the host can do other things in between. In the simulator `done = gpu.record()` makes the mark, and `done.synchronize()` waits for it. Fill that in.

# %% tags=["exercise"]
import numpy as np

right = np.arange(1, 100_001, dtype=np.float32)


def fetched(gpu, pause_us=0.0, wait=True):
    """The values on the host, behind whatever the GPU has still to do."""
    host = gpu.pinned(len(right))
    gpu.fetch(host, right)  # as host.copy_(results, non_blocking=True)
    gpu.work(pause_us)
    if wait:
        # <blank> mark the place behind the copy, and wait for it
        # was: gpu.work(5)
        done = gpu.record()
        done.synchronize()
        # </blank>
    return gpu.read(host)


def wrong_behind(queue_us, **how):
    """How many of the values are wrong with so many us of kernels queued before the copy."""
    gpu = races.Gpu(bytes_per_us=50_000)
    gpu.compute(queue_us)
    return races.wrong(fetched(gpu, **how), right)


queues_us = (0, 2, 6, 200)
print("wrong values of 100,000, by the kernels queued before the copy")
print(f"{'':>6} {'at once':>10} {'after 10 us':>12} {'after your wait':>16}")
for queue_us in queues_us:
    at_once, paused = wrong_behind(queue_us, wait=False), wrong_behind(queue_us, pause_us=10, wait=False)
    print(f"{queue_us:3} us {at_once:10,} {paused:12,} {wrong_behind(queue_us):16,}")

# %% tags=["claim"]
display(L.reveal("race", float(wrong_behind(10, wait=False)), "wrong values of 100,000"))
L.claim(
    "the values are right after the wait behind every queue, and wrong without it behind every queue",
    all(wrong_behind(each) == 0 for each in queues_us) and all(wrong_behind(each, wait=False) for each in queues_us),
    before=wrong_behind(200, wait=False),
    after=wrong_behind(200),
    unit="wrong values",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# Look at the middle column. A pause that is long enough behind an empty queue is too short behind a busy one: first half of the values are old ones, then all. A program that "always worked" goes wrong on the day the model grows, and no error tells.
#
# The same trap lies on the way there: who refills a pinned buffer before its copy has left sends the wrong batch. A DataLoader hands out new buffers and is safe; a ring of buffers of your own needs events.
#
# ## The link itself
#
# ### 07.7 Four lanes, or the wrong socket
#
# Sometimes no line of code is to blame. A link has lanes, and a card that sits badly, or in the wrong slot, runs with fewer. And a machine with two sockets has a near and a far side: a process on the far side sends its bytes through the link between the sockets first.
#
# Here is what the driver's tools would print on three machines. **They are made up to be read.** The process, `train.py`, uses GPU 0. *CPU Affinity* names the cores on each GPU's own side, `taskset` the cores that the process may run on.

# %% tags=["check"]
print(f"machine a\n{topology.MACHINES['a']}")
for name in "bc":
    print(f"\nmachine {name}: the same, but for\n{topology.unlike(name, 'a')}")

# <blank> "a", "b" or "c"
# was: answer = None
answer = "c"
# </blank>
L.check("slot", answer)

# %% tags=["claim"]
# <fix>
# was: texts = {name: topology.MACHINES["a"] for name in topology.MACHINES}
texts = topology.MACHINES
# </fix>
found = {name: topology.read(text) for name, text in texts.items()}
L.claim(
    "of three made-up machines, one link has a quarter of its lanes and one process runs on the far socket",
    {name: way.faults for name, way in found.items()} == {"a": (), "b": ("lanes",), "c": ("node",)},
    before=found["a"].gb_per_s,
    after=found["b"].gb_per_s,
    unit="GB/s",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# On a real GPU, gpulab reads lanes and generation from the driver while the GPU works (an idle link is lowered to save power, so a reading at rest proves nothing) and speaks up by itself; `%gpuwhy slow_pcie_link` says how. What the far socket costs depends on the machine, and nothing here has measured it. Bind the process (`taskset -c 0-31`, or `numactl --cpunodebind=0 --membind=0`) and measure both.
#
# ## Another symptom
#
# A run on somebody's GPU, made up for this question. Its step takes 21 ms, its batch is copied ahead on a stream of its own, as in 07.3:
#
# | counter, per step | value |
# |---|---|
# | kernels | 14 ms |
# | copy to the GPU, `Pinned -> Device`, on stream 13 | 1 copy, 245 MB, 5 ms, 49 GB/s |
# | of it beside kernels | 0 % |
# | cudaStreamSynchronize, inside aten::item | 5 calls, 13 ms in them |
# | the next copy is called for | after the last of these |
# | waiting for data | 0.1 ms |

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
