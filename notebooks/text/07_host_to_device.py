# %% [markdown]
# # 07 Host to device: is the GPU computing, or being copied to?
#
# A batch is made in the host's memory and used in the GPU's. In between lies a link some sixty times slower than the GPU's own memory, and a host that may wait for it. Here you learn what the way costs, where the host waits without need, and what can be hidden. Forty-five minutes. Read [01](01_what_is_utilisation.ipynb) first if "the GPU is 40 % busy" tells you nothing yet.
#
# With a CUDA GPU everything runs on it. Without one, a virtual H100 stands in: your code runs unmodified, and its time is computed. This is what it assumes about copies, so that you know what the figures are made of: a pinned copy takes 1.5 us and then moves at 80 % of what the link's standard allows (50 GB/s); one from ordinary memory moves at 6 GB/s, a middle of published traces (5.3 to 9.9 GB/s); the calls cost the host what they cost in such traces, scaled to this CPU. The **shape** of what you will see follows from that. The **rates** of your own machine are for you to measure.
#
# Afterwards you can
# - say from a report whether copies cost a loop time, and from which memory they come;
# - choose where a batch is pinned, and predict what a copy takes from its bytes;
# - hide copies behind compute, and say beforehand what is left;
# - find the lines that make the host wait, and fetch results without waiting.

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
from torch import nn

from gpulab.lessons.labs import copying, races, topology

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


# %% tags=["predict"]
L.predict("share")

# %% [markdown]
# Think of two times: 134 MB over a link of some GB/s, and about 2.2 million million operations on a GPU that does several hundred million million in a second. Then measure.

# %% tags=["measure"]
# %%gpuprofile --virtual auto before
train(in_memory(pinned=False))

# %% tags=["reveal"]
before = gpulab.runs["before"]
L.reveal("share", copying.moved(before, BATCH_BYTES).copying_ms / copying.step_ms(before), "%")

# %% [markdown]
# Three things in the report tell that it is the copy and nothing else. The ledger's line **exposed copies** is time in which the link works and no kernel does; were the model the cause, *matrix kernels* would be long instead, and were it the data, *waiting for data*. The evidence names the **memory**: `Pageable`. And it gives a **rate**, about 6 GB/s, where the link could do 50.
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
print(f"GB/s from the call to the last byte  [{gpulab.runs['sizes'].source}]")
for size in sizes:
    print(f"{size / 1e6:12,.3f} MB   pageable {pageable[size]:6.2f}   pinned {pinned[size]:6.2f}")
for size in L.pick(tiny=[1 << 16, 1 << 26], lab=[1 << 16, 1 << 22, 1 << 28]):
    gb_per_s = copying.host_copy_gb_per_s(size)
    print(f"for scale: a core of this CPU copies {size / 1e6:,.3f} MB at {gb_per_s:.1f} GB/s  [measured here]")

# %% tags=["reveal"]
knee = copying.knee_bytes(pinned)
L.reveal("knee", float(knee), "bytes")

# %% tags=["claim"]
L.claim(
    "a pinned copy reaches half of the link's best rate at a size between 64 KB and 16 MB",
    65_536 <= knee <= 16 << 20,
    before=pinned[min(sizes)],
    after=pinned[max(sizes)],
    unit="GB/s",
    source=gpulab.runs["sizes"],
)

# %% [markdown]
# Look at the last lines again. Beyond what fits its cache, a core copies within its own memory at about the rate that pageable copies reach. That is no accident: the driver's copy into its own buffer *is* such a copy, and it is the slower half of the way.
#
# You can now say what a pinned copy takes before you make it: the start, about 10 to 20 us, plus bytes over 50 GB/s. For a batch of 134 MB that is 2.7 ms. Bytes count too: an image sent as `uint8` and made `float32` on the GPU is a quarter of the bytes, and so a quarter of the time, from any memory. (The notebook on formats does that.)
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
    """A loop on batches of a loader with a worker: "plain", "fresh" (pinned in the loop), "ahead" (by the loader)."""
    loader = DataLoader(copying.Ready(8, 1024, 4096), batch_size=None, num_workers=1, pin_memory=way == "ahead")
    layer = nn.Linear(4096, 64, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for inputs in loader:
        if way == "fresh":
            inputs = inputs.pin_memory()
        outputs = layer(inputs.to("cuda", non_blocking=True))
        outputs.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


with L.gpu("plain"):
    loaded("plain")
with L.gpu("fresh"):
    loaded("fresh")
with L.gpu("by the loader"):
    # <fix>
    # was: loaded("plain")
    loaded("ahead")
    # </fix>

ways = {name: copying.moved(gpulab.runs[name], SMALLER) for name in ("plain", "fresh", "by the loader")}
print(f"ms for a batch of {SMALLER / 1e6:.1f} MB, as the loop sees it  [{gpulab.runs['plain'].source}]")
print(f"{'':14} {'pinning':>10} {'held':>10} {'on the link':>12} {'in all':>8}")
for name, way in ways.items():
    told = f"{way.pinning_ms:10.2f} {way.held_ms:10.2f} {way.copying_ms:12.2f} {way.there_ms:8.2f}"
    print(f"{name:14} {told}")

# %% tags=["reveal"]
L.reveal("pin", ways["by the loader"].there_ms, "ms")

# %% tags=["claim"]
L.claim(
    "a batch that the loader pinned is on the GPU in less than half the time of one from pageable memory",
    ways["by the loader"].there_ms < 0.5 * ways["plain"].there_ms,
    before=ways["plain"].there_ms,
    after=ways["by the loader"].there_ms,
    unit="ms",
    source=gpulab.runs["by the loader"],
)

# %% [markdown]
# *Held* is the time the main thread stands inside the copy's call, *pinning* what it spends before that. The last line has neither: a thread of the loader made the copy into pinned memory while the loop was elsewhere. (It is not free, only out of the way; with `num_workers=0` there is no such thread, and the loop pays again.)
#
# Now the middle line, pinning in the loop. Be careful with it where no GPU is at hand: a virtual GPU takes for pinning what an ordinary copy takes on *this* CPU at that moment, and leaves out what makes fresh pinned memory dear, the locking of its pages. Run the cell a few times, and you see it move between about the time of the plain copy and twice that. So that line decides nothing, and we do the sum instead.
#
# A plain copy is pipelined: one piece travels while the next is copied. Pinning first does the same host copy, then the whole way after it, one after the other. On top, fresh memory must be locked: 61 ms for 512 MB were published for `cudaMallocHost` on an older machine (University of Virginia, memory management overhead). PyTorch keeps such memory and gives it out again, which saves the locking from the second batch on, and nothing else.

# %% tags=["claim"]
# <fix>
# was: tried = "ahead"
tried = "fresh"
# </fix>
host_rates = [5.3e9, 6e9, 7e9, 8e9, 9.9e9]  # bytes per second of the host's copy: what traces of pageable copies show
times_as_long = [
    {way: copying.route_ms(SMALLER, way, rate) / copying.route_ms(SMALLER, "plain", rate) for way in copying.ROUTES}
    for rate in host_rates
]
print("how many times as long as a plain copy")
for rate, told in zip(host_rates, times_as_long, strict=True):
    line = ", ".join(f"{way} {ratio:.2f}" for way, ratio in told.items())
    print(f"host copies at {rate / 1e9:.1f} GB/s: {line}")
L.claim(
    "pinning a fresh buffer for each batch in the loop takes at least 1.5 times as long as plain .to()",
    min(told[tried] for told in times_as_long) >= 1.5,
    before=1.0,
    after=min(told[tried] for told in times_as_long),
    unit="times plain",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# So the guides' sentence needs its second half. Pinned memory is faster **for whoever did not have to pin it**. PyTorch's own guide to pinning measured the same pattern at up to twice the time of a plain `.to()`. One thing can change the sum: PyTorch copies large tensors with several threads, and on a host with many free cores, pinning into kept memory can then beat the driver's single copy. It still takes the cores from your loader, and it never beats the thread beside the loop.
#
# `pin_memory=True` and `non_blocking=True` belong together: the first makes an asynchronous copy possible, the second asks for it. That is why the colleague's flag changed nothing.
#
# ## Hiding what is left
#
# ### 07.3 In turn, and ahead
#
# Pinned, the copy of our first loop takes 2.7 ms instead of 22. It still stands in the way: on one stream the GPU copies, computes, copies, computes. The engine that copies and the cores that compute are different parts of the chip, though, and could work at the same time.

# %% tags=["predict"]
L.predict("turns")


# %% [markdown]
# The fix is a second queue of work, a *stream*, for copies. Three lines matter: the copy is called for under `torch.cuda.stream(side)`; the compute stream waits for it (`wait_stream`) before it uses the batch; and `record_stream` tells the allocator that the memory is in use there, so that it is not given away too soon. Which of the three, left out, would show as wrong numbers?

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


# %% [markdown]
# A helper like this is quickly off by one: the last batch lost, or the first one twice. So first: the same batches, in the same order, with real numbers on the CPU.

# %% tags=["same"]
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
compute_ms = copying.step_ms(gpulab.runs["resident"])
turn_ms, ahead_ms = (copying.step_ms(gpulab.runs[name]) for name in ("pinned", "ahead"))
print(f"copy {copy_ms:.2f} ms, compute {compute_ms:.2f} ms a step  [{gpulab.runs['ahead'].source}]")
for name, step_ms, hides in (("in turn", turn_ms, False), ("ahead", ahead_ms, True)):
    by_hand_ms = copying.makespan_ms([copy_ms] * 1000, [compute_ms] * 1000, ahead=hides) / 1000
    print(f"{name:8} {step_ms:.2f} ms a step; by the rule of two lanes {by_hand_ms:.2f}  [simulated]")
# %gpucompare pinned ahead prefetch

# %% tags=["reveal"]
L.reveal("turns", ahead_ms, "ms")

# %% tags=["claim"]
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
# The comparison above also holds what `%gpuwhatif pinned prefetch` had predicted beside what came of it. A virtual GPU lets copies and kernels pass one another at no cost; on a real one they share the GPU's memory, of whose 3,350 GB/s the link can take 50.
#
# And the three lines? Without `stream(side)` the loop is right, and slow. Without one of the other two the GPU may compute on memory that holds something else: wrong numbers, on some days, and no error.
#
# The rule says as well when not to bother. Where a copy takes 3 ms and the compute 0.3, copying ahead gives a step of 3 ms instead of 3.3: the link sets the pace, and only fewer bytes help.
#
# ## Waiting without need
#
# ### 07.4 Reading a value
#
# A host calls for work faster than the GPU does it, and is normally some steps ahead. The moment it needs a number from the GPU, it must stand still until that number is computed. Afterwards the queue is empty, and the GPU waits for the host instead.

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
# A loop that logs wants the mean of the losses, not each of them. Keep a sum where the losses are, and read it once in a hundred steps. Fill the blank; the loop is tried on the CPU with real numbers, where the operator behind every one of these reads, `aten::_local_scalar_dense`, can be counted as well.

# %% tags=["exercise"]
def logged(steps=200):
    """Train a small model on the CPU; gives the mean of its losses, and how often a value was read."""
    torch.manual_seed(0)
    model, history = nn.Linear(8, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = torch.zeros(())
    with copying.counted("aten::_local_scalar_dense") as read:
        for step in range(steps):
            inputs = torch.randn(16, 8)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            # <blank> add loss.detach() to total; in every hundredth step append its mean to history, and start anew
            # was: history.append(loss.item())
            total += loss.detach()
            if step % 100 == 99:
                history.append(total.item() / 100)
                total.zero_()
            # </blank>
    return sum(history) / len(history), read.calls


# %% tags=["same"]
def read_each(steps=200):
    """The same training, every loss read."""
    torch.manual_seed(0)
    model, history = nn.Linear(8, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with copying.counted("aten::_local_scalar_dense") as read:
        for _ in range(steps):
            inputs = torch.randn(16, 8)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(loss.item())
    return sum(history) / len(history), read.calls


(each_mean, each_reads), (seldom_mean, seldom_reads) = read_each(), logged()
L.same(each_mean, seldom_mean)

# %% tags=["claim"]
L.claim(
    "the same mean loss is known after a hundredth of the reads",
    seldom_reads * 100 == each_reads,
    before=each_reads,
    after=seldom_reads,
    unit="reads in 200 steps",
    source=gpulab.lessons.COUNTED,
)


# %% [markdown]
# A hundredth of the reads: does it make the loop faster? The usual advice says so without asking. Try it with our wide model twice: with a host that has nothing else to do, and with one that spends two milliseconds of each step on something of its own, such as writing a log or picking the next samples. (The two milliseconds are declared: a loop that spins until the clock says so.)

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
        until = time.perf_counter() + own_ms / 1000
        while time.perf_counter() < until:
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
took_ms = {name: copying.step_ms(gpulab.runs[name]) for name in names}
cost = {host: took_ms[f"{host} host, each"] / took_ms[f"{host} host, seldom"] - 1 for host in ("idle", "busy")}
for name, ms in took_ms.items():
    print(f"{name:18} {ms:.2f} ms a step  [{gpulab.runs[name].source}]")
print(f"a read in each step costs {cost['idle']:.1%} with an idle host, {cost['busy']:.1%} with a busy one")

# %% tags=["claim"]
L.claim(
    "a read in each step costs under a tenth where the host has nothing else to do, and over a tenth where it has 2 ms",
    cost["idle"] < 0.1 < cost["busy"],
    before=cost["idle"],
    after=cost["busy"],
    unit="%",
    source=gpulab.runs["busy host, each"],
)

# %% [markdown]
# Half of it is a null result. One `.item()` at the end of a long step costs a refill of the queue, a few dozen microseconds, and nobody would notice. It is the host's *own* work that turns it dear: without the read, that work hides behind the GPU; with it, the two take turns. It is the rule of 07.3 again: a wait turns the longer of the two into the sum. So count the waits, and look at what the host does between them.
#
# ## Many small pieces
#
# ### 07.5 A thousand copies, or two
#
# From 07.1 you know what a copy costs that is far below the knee: its start. Here are 500 samples, each with features of its own length and a label. Sent as they are, that is a thousand copies. Brief: send them in at most two, and give back the same list of tensors on the device. The score counts the copies in a recorded run; par is 2. Why not one?

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


# %% tags=["same"]
L.same(one_by_one("cpu"), packed("cpu"))

# %% [markdown]
# Before you run the next cell, do the sum yourself: a thousand times what a copy of 4 KB took in 07.1, and the bytes over the rate of large pageable copies. Which of the two matters?

# %% tags=["measure"]
with L.gpu("one by one"), record_function("moving"):
    one_by_one("cuda")
with L.gpu("packed"), record_function("moving"):
    packed("cuda")

many, few = (copying.copied(gpulab.runs[name]) for name in ("one by one", "packed"))
in_all = sum(each.bytes for each in many)
start_ns, gb_per_s = min(sizes) / pageable[min(sizes)], max(pageable.values())
for name, copies in (("one by one", many), ("packed", few)):
    by_hand_ms = (len(copies) * start_ns + in_all / gb_per_s) / 1e6
    took_in_all_ms = copying.range_ms(gpulab.runs[name], "moving")
    told = f"{took_in_all_ms:6.2f} ms; by hand {by_hand_ms:6.2f}  [{gpulab.runs[name].source}]"
    print(f"{name:10} {len(copies):5,} copies, {in_all / 1e6:.2f} MB: {told}")

# %% tags=["score"]
L.score("copies", len(few))

# %% tags=["claim"]
L.claim(
    "a thousand copies become two that carry the same bytes",
    (len(many), len(few)) == (1000, 2) and in_all == sum(each.bytes for each in few),
    before=len(many),
    after=len(few),
    unit="copies",
    source=gpulab.runs["packed"],
)

# %% [markdown]
# A thousand starts, and hardly a byte: that is the first line, and what your sum leaves out of it is Python going from tensor to tensor. The second line is no copying at all to speak of, but the host's own work: joining a thousand pieces, and making a thousand tensors of two again. A batch that is packed in the loader's worker leaves that to somebody else as well. One copy instead of two would need one kind of number: labels seen as bytes, or as floats. It would save one start of a thousand, at the price of code that nobody likes to read.
#
# ## Coming back
#
# ### 07.6 Results that are read too early
#
# The way back has a trap of its own. `results.to("cpu", non_blocking=True)` returns at once, and the copy comes when its turn has come. A virtual GPU has no numbers and a CPU has no queue, so a simulator shows it here: one stream, a link, and a host, exact to the microsecond.

# %% tags=["predict"]
L.predict("race")

# %% tags=["exercise"]
import numpy as np

right = np.arange(1, 100_001, dtype=np.float32)


def fetched(gpu, pause_us=0.0, wait=True):
    """The values on the host, behind whatever the GPU has still to do."""
    host = gpu.pinned(len(right))
    gpu.fetch(host, right)  # as host.copy_(results, non_blocking=True)
    gpu.work(pause_us)
    if wait:
        # <blank> record an event behind the copy, and wait for it
        # was: gpu.work(5)
        gpu.record().wait()
        # </blank>
    return gpu.read(host)


def wrong_behind(queue_us, **how):
    """How many of the values are wrong with so many us of kernels queued before the copy."""
    gpu = races.Gpu(bytes_per_us=50_000)
    gpu.compute(queue_us)
    return races.wrong(fetched(gpu, **how), right)


queues_us = (0, 2, 6, 200)
for queue_us in queues_us:
    at_once, paused, waited_for = (
        wrong_behind(queue_us, wait=False),
        wrong_behind(queue_us, pause_us=10, wait=False),
        wrong_behind(queue_us),
    )
    told = f"{at_once:7,} at once, {paused:7,} after 10 us, {waited_for:7,} after the wait"
    print(f"{queue_us:3} us of kernels before it: wrong {told}")

# %% tags=["reveal"]
L.reveal("race", float(wrong_behind(10, wait=False)), "wrong values of 100,000")

# %% tags=["claim"]
L.claim(
    "the values are right after the wait behind every queue, and wrong without it behind every queue",
    all(wrong_behind(each) == 0 for each in queues_us) and all(wrong_behind(each, wait=False) for each in queues_us),
    before=wrong_behind(200, wait=False),
    after=wrong_behind(200),
    unit="wrong values",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# Look at the middle column. A pause that is long enough behind an empty queue is too short behind a busy one: first half of the values are old ones, then all. A program that "always worked" goes wrong on the day the model grows, and no error tells. In PyTorch the wait is `done = torch.cuda.Event(); done.record()` right after the copy, and `done.synchronize()` before you read. It waits for that copy alone, so the host can do other things in between.
#
# The same trap lies on the way there: who refills a pinned buffer before its copy has left sends the wrong batch. A DataLoader hands out new buffers and is safe; a ring of buffers of your own needs events.
#
# ## The link itself
#
# ### 07.7 Four lanes, or the wrong socket
#
# Sometimes no line of code is to blame. A link has lanes, and a card that sits badly, or in the wrong slot, runs with fewer. And a machine with two sockets has a near and a far side: a process on the far side sends its bytes through the link between the sockets first. Here is what the driver's tools would print on three machines. **They are made up to be read**; the process trains on the GPU that the second command asks for.

# %% tags=["check"]
for name, text in topology.MACHINES.items():
    print(f"machine {name}\n{text}\n")

# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
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
# On a real GPU, gpulab reads lanes and generation from the driver while the GPU works (an idle link is lowered to save power, so a reading at rest proves nothing) and speaks up by itself; `%gpuwhy slow_link` says how. What the far socket costs depends on the machine, and nothing here has measured it. Bind the process (`taskset -c 0-31`, or `numactl --cpunodebind=0 --membind=0`) and measure both.
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
