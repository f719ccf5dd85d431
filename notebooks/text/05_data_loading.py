# %% [markdown]
# # 05 Data loading: is the GPU slow, or is it waiting?
#
# You find out whether a training loop waits for its data, let worker processes fetch it, learn to say beforehand how far that can go, and see when it does nothing. About 50 minutes, on any laptop; with a CUDA GPU it uses that. Nothing is downloaded.
#
# How to work: where a question is put, answer it before you run the next cell, with `L.answer("wait", "b")` in a cell of your own; where the text asks, say a number. A wrong guess teaches more than none. `L.hint("wait")` gives a hint.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("05_data_loading")
L

# %% [markdown]
# ## The symptom
#
# A small classifier is trained on photographs that lie on a file server. The GPU is rented by the hour, and the monitor shows it almost idle. A colleague wants to rent a faster one.
#
# The pipeline below is real: PyTorch's own `DataLoader`, processes and queues. Two costs are declared, so that you know them: an item waits 12 ms for the file server, and later some items compute for 5 ms. The training step is a small real model.

# %% tags=["setup"]
import os
import tempfile
import time
import warnings
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from gpulab import datasets
from gpulab.lessons.labs import caching, loading, packing, queues

if L.device == "cpu":
    torch.set_num_threads(1)  # the model takes one core, so that the others are free for loading data
warnings.filterwarnings("ignore", message="This DataLoader will create")  # what it warns of is experiment 05.6
cores = L.machine.cores_allowed or os.cpu_count()
scratch = tempfile.TemporaryDirectory()  # gone when the kernel ends
folder = Path(scratch.name)

# %% tags=["given"]
photos = loading.Waiting(length=L.pick(tiny=256, lab=512), wait_s=0.012)


def make(workers, data=photos):
    """The program's loader: batches of eight, in an order drawn from a seed."""
    order = torch.Generator().manual_seed(0)
    return DataLoader(data, batch_size=8, shuffle=True, generator=order, num_workers=workers)


def train(batches):
    """An ordinary training loop; gives the loss of every step."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)
    model = nn.Sequential(*layers).to(L.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images.to(L.device)), labels.to(L.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


# %% tags=["predict"]
L.predict("wait")

# %% [markdown]
# Now measure. `%%gpuprofile before` records this cell as `before`; the report takes the place of the panel when the cell ends.

# %% tags=["measure"]
# %%gpuprofile before
losses_before = train(make(workers=0))

# %% tags=["reveal"]
wait_before = gpulab.diagnose(gpulab.runs["before"]).ledger.share("loader")
L.reveal("wait", wait_before, "%")

# %% [markdown]
# You could have worked it out: eight items of 12 ms, one after the other, are 96 ms for each batch. `wait / (wait + step)` with a step of a few milliseconds is most of the time.
#
# ## Diagnose
#
# The report names a cause. Do not take its word for it: a cause is shown by a counter that would read differently if another cause were true. Answer the next two from the report. `%gpuwhy starving` in a cell of your own tells how that finding is proved, and what it is confused with.

# %% tags=["check"]
# <blank> the letter of your answer, as "a"
# was: answer = None
answer = "b"
# </blank>
L.check("cause", answer)

# %% tags=["check"]
# <blank> the letter of your answer, as "a"
# was: answer = None
answer = "c"
# </blank>
L.check("counter", answer)

# %% [markdown]
# ## Fix: let others fetch
#
# ### 05.1 Workers: none, four
#
# With `num_workers=4` four processes fetch the next batches while the model works on this one. Ask for a forecast first. `%gpuwhatif` replays what was recorded, as if four workers had been there.

# %% tags=["predict"]
L.predict("workers")

# %% tags=["measure"]
# %gpuwhatif before workers=4

# %% tags=["measure"]
# %%gpuprofile after
losses_after = train(
    # <fix>
    # was: make(workers=0)
    make(workers=4)
    # </fix>
)

# %% [markdown]
# First: is it still the same training? Four workers that gave the batches in another order, or lost one, would be no fix.

# %% tags=["same"]
L.same(losses_before, losses_after)

# %% [markdown]
# Then: forecast beside measurement. `workers=4` tells what was changed.

# %% tags=["measure"]
# %gpucompare before after workers=4

# %% tags=["claim"]
compared = gpulab.compare(gpulab.runs["before"], gpulab.runs["after"], rewrites="workers=4")
display(L.reveal("workers", compared.ratio, "times as fast"))
L.claim(
    "four workers make this loop at least 1.3 times as fast, and no faster than the forecast's bound allows",
    1.3 <= compared.ratio <= 1.1 * compared.predicted.bound,
    before=compared.before_ns / 1e6,
    after=compared.after_ns / 1e6,
    unit="ms a step",
)

# %% [markdown]
# ### 05.1 continued: one to eight workers, for two kinds of item
#
# Four to eight workers for each GPU is common advice. Here is a sweep through such numbers, for two kinds of item. One *waits* 40 ms, as for a disk or a server. The other *computes* 5 ms in Python, as a transform written by hand does.
#
# The column to read is how many items are in the making at any moment: items a second, times seconds for each. (That product is Little's law, and holds for every queue.)

# %% tags=["predict"]
L.predict("kinds")


# %% tags=["measure"]
def swept(kind, cost_s, workers, each=16):
    """Items that are in the making at once, with so many workers and nothing that trains."""
    data = kind(each * max(1, workers), cost_s)
    return loading.drained(DataLoader(data, batch_size=4, num_workers=workers))


most = 8
waits = {n: swept(loading.Waiting, 0.040, n) for n in (0, 1, 2, 4)}
# <fix>
# was: waits[most] = swept(loading.Waiting, 0.040, 1)
waits[most] = swept(loading.Waiting, 0.040, most)
# </fix>
computes = {n: swept(loading.Computing, 0.005, n) for n in (0, 1, 2, 4, most)}
print(f"{cores:g} cores may be used here")
print("workers   items that wait          items that compute")
print("          a second   at once       a second   at once")
for n in waits:
    one, other = waits[n], computes[n]
    print(f"{n:7d}   {one.per_s:8.0f}   {one.at_once:7.1f}       {other.per_s:8.0f}   {other.at_once:7.1f}")

# %% tags=["claim"]
display(L.reveal("kinds"))
L.claim(
    "eight workers wait for at least two items at once, and never compute more at once than there are cores",
    waits[most].at_once >= 2 and all(each.at_once <= 1.1 * cores for each in computes.values()),
    before=computes[most].at_once,
    after=waits[most].at_once,
    unit="items at once",
)


# %% [markdown]
# So four to eight is right where items wait. Where they compute, the number of cores decides, which is why the last column stops growing there, and a number that is right for every GPU does not exist. The question to ask is which resource is full. If the CPU is at its limit, more workers only share it; then an item must become cheaper, which is what notebook 06 is about.
#
# ### 05.6 More workers than cores, and what each one holds
#
# In the table above, items that compute are made no faster by eight workers than by as many as there are cores. Workers that do not help still cost. PyTorch warns of them; that warning was kept out of the outputs until now. Each worker holds `prefetch_factor` batches ready (two unless you say otherwise). And each is a copy of your process: it shares memory with you only until either of you writes to it (*copy-on-write*). Python writes whenever it looks at an object, as it counts references there.
#
# Before you run: of 100,000 file names, about 11 MB as a Python list, how much becomes a worker's own merely because it reads them? And of the same names packed into one NumPy array?

# %% tags=["measure"]
def warned(workers):
    """Whether PyTorch warns of so many workers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader(photos, num_workers=workers)
    return any("max number of worker" in str(each.message) for each in caught)


def grown_mb(names):
    """How much memory became one worker's own while it read every name."""
    options = {"multiprocessing_context": "fork"} if "fork" in torch.multiprocessing.get_all_start_methods() else {}
    own = [int(batch[0]) for batch in DataLoader(names, batch_size=5000, num_workers=1, **options)]
    return (own[-1] - own[0]) / 1e6


listed_mb = grown_mb(loading.Names(100_000, packed=False))
# <fix>
# was: packed_mb = grown_mb(loading.Names(100_000, packed=False))
packed_mb = grown_mb(loading.Names(100_000, packed=True))
# </fix>
few_workers = max(1, int(cores))
for count in (few_workers, 4 * few_workers):
    print(f"{count} workers: {2 * count} batches held ready; PyTorch warns: {warned(count)}")
print(f"a worker's own memory grows by {listed_mb:.1f} MB with a list, {packed_mb:.1f} MB with an array")

# %% tags=["claim"]
L.claim(
    "reading a list of 100,000 names makes at least 6 MB each worker's own; of an array it is less than half as much",
    listed_mb >= 6 and packed_mb < 0.5 * listed_mb,
    before=listed_mb,
    after=packed_mb,
    unit="MB for each worker",
)

# %% [markdown]
# This is why memory grows through an epoch although nothing leaks, and why it grows with the number of workers. Low use of memory is therefore no reason to add workers, only the room to do so.
#
# ## How far can it go?
#
# ### 05.8 Two bounds: a batch that is there, and a model that does nothing
#
# Each item waits 24 ms here, and there are four workers. Two short runs tell how far any work on the data, or on the model, can get you.
#
# - *Data for free*: train on one batch again and again. No loader can be faster than this.
# - *Model for free*: run through the loader and do nothing. No model can be faster than this.
#
# With workers the two go on at the same time, so the slower one decides: the rate is about the smaller of the two. Without workers they take turns, so the times add up, and neither bound is near.

# %% tags=["predict"]
L.predict("bounds")

# %% tags=["measure"]
few = loading.Waiting(length=96, wait_s=0.024)


def trained_per_s(batches, count=96):
    """Items a second through model and optimizer; the clock starts once the workers do."""
    batches = iter(batches)
    began = time.perf_counter()
    train(batches)
    return count / (time.perf_counter() - began)


ready = next(iter(make(workers=0, data=few)))
trained_per_s(repeat(ready, 4))  # warm
free_data = max(trained_per_s(repeat(ready, 16)) for _ in range(3))
free_model = max(loading.drained(make(workers=4, data=few)).per_s for _ in range(2))
real = trained_per_s(
    # <fix>
    # was: make(workers=0, data=few)
    make(workers=4, data=few)
    # </fix>
)
smaller = min(free_data, free_model)
print(f"data for free:  {free_data:7.0f} items/s")
print(f"model for free: {free_model:7.0f} items/s with four workers")
print(f"the real loop:  {real:7.0f} items/s with four workers")
many = trained_per_s(make(workers=16, data=loading.Waiting(length=384, wait_s=0.024)), count=384)
print(f"                {many:7.0f} items/s with sixteen")

# %% tags=["claim"]
display(L.reveal("bounds", free_data / free_model))
L.claim(
    "with four workers the loop runs at half of its smaller bound or more, and above neither by more than a quarter",
    0.5 * smaller <= real <= 1.25 * smaller,
    before=smaller,
    after=real,
    unit="items/s",
)

# %% [markdown]
# Keep these two runs in mind: they take a minute, and they tell you which half of the program not to work on. *Data for free* is also the most that workers, pinned memory, prefetching and caches can reach together, whatever they promise one by one. Look at the last row: sixteen workers come nearer to that bound, and where workers reach it, only a faster model helps.
#
# ## Keep the stream steady
#
# ### 05.2 Prefetch under bursty cost
#
# Often most batches are cheap and one now and then is not: it begins a new file, or holds a long sound. Here a batch takes 10 ms and every sixteenth 110 ms; that is 16 ms in the mean, and a step takes 20. One worker is fast enough, in the mean.
#
# What follows is a model of the loader with an exact clock: PyTorch's policy, your costs, and no noise. Find the smallest prefetch factor, which is the number of batches a worker may have ready, with which no step but the first has to wait.

# %% tags=["predict"]
L.predict("burst")

# %% tags=["exercise"]
costs_ms = queues.bursty(100, usual_ms=10, burst_ms=110, every=16)
# <blank> the smallest prefetch factor with which no step after the first waits
# was: prefetch = 2
prefetch = 6
# </blank>
print(f"no worker: {queues.fed(costs_ms, 20, workers=0).stalls} of 99 steps wait")
for each in sorted({2, 4, prefetch}):
    print(f"one worker, prefetch {each}: {queues.fed(costs_ms, 20, workers=1, prefetch=each).stalls} of 99 steps wait")

# %% tags=["claim"]
display(L.reveal("burst"))
L.claim(
    "enough batches ahead make every stall of this stream disappear; with steps of 15 ms no number of them does",
    queues.fed(costs_ms, 20, workers=1, prefetch=prefetch).stalls == 0
    and queues.fed(costs_ms, 15, workers=1, prefetch=64).stalls > 0,
    before=queues.fed(costs_ms, 20, workers=1, prefetch=2).stalls,
    after=queues.fed(costs_ms, 20, workers=1, prefetch=prefetch).stalls,
    unit="stalls in 99 steps",
    source=gpulab.lessons.SIMULATED,
)


# %% [markdown]
# In your program this is `DataLoader(..., prefetch_factor=6)`; it counts for each worker, and its price is the memory for those batches. Prefetching moves waiting to where it hides; it does not make items cheaper. With steps of 15 ms the mean batch, 16 ms, is dearer than a step: then only more workers or cheaper items help.
#
# ### 05.3 Workers that stay
#
# Unless told otherwise, a `DataLoader` ends its workers after each epoch and starts new ones for the next. Each of them opens the data set again, which takes 0.2 s here. Before you run: with two workers and three epochs, how many processes are started, and how many with `persistent_workers=True`?

# %% tags=["measure"]
def indexed(**options):
    return DataLoader(loading.Indexed(48, open_s=0.2), batch_size=8, num_workers=2, **options)


restarted = loading.epochs(indexed(), 3)
# <fix>
# was: kept = loading.epochs(indexed(), 3)
kept = loading.epochs(indexed(persistent_workers=True), 3)
# </fix>
for name, each in (("restarted", restarted), ("kept", kept)):
    gaps = ", ".join(f"{1000 * gap_s:.0f}" for gap_s in each.gaps_s)
    print(f"{name:9s} {each.processes} processes; ms from each epoch's beginning to its first batch: {gaps}")

# %% tags=["claim"]
L.claim(
    "workers that stay: two processes for three epochs in place of six, and at most half the gap before a later epoch",
    (restarted.processes, kept.processes) == (6, 2) and kept.later_gap_s < 0.5 * restarted.later_gap_s,
    before=1000 * restarted.later_gap_s,
    after=1000 * kept.later_gap_s,
    unit="ms before the first batch",
)

# %% [markdown]
# ### 05.4 Threads, processes, and one thread that waits for all
#
# A worker is a process, which costs memory and a copy of every batch. Would threads do? In most builds of Python only one thread at a time runs Python code: it holds the *global interpreter lock* (GIL). A thread that waits lets go of it.
#
# Asynchronous I/O goes further: one thread asks for many items, and goes on with whichever is there.

# %% tags=["predict"]
L.predict("threads")

# %% tags=["measure"]
# <fix>
# was: threads = 1
threads = 4
# </fix>
waiting, computing = loading.Waiting(32, 0.08), loading.Computing(96, 0.005)
waiting_threads = loading.by_threads(waiting, threads)
computing_threads = loading.by_threads(computing, threads)
waiting_alone = loading.by_one_thread(waiting, at_once=16)
waiting_workers = loading.drained(DataLoader(waiting, batch_size=4, num_workers=4))
computing_workers = loading.drained(DataLoader(computing, batch_size=4, num_workers=4))
print("items at once               that wait   that compute")
print(f"four threads                {waiting_threads.at_once:9.1f}   {computing_threads.at_once:12.1f}")
print(f"four processes              {waiting_workers.at_once:9.1f}   {computing_workers.at_once:12.1f}")
print(f"one thread, 16 asked for    {waiting_alone.at_once:9.1f}              -")

# %% tags=["claim"]
display(L.reveal("threads"))
L.claim(
    "four threads wait for at least 1.5 items at once, and compute at most one where Python has its lock",
    waiting_threads.at_once >= 1.5 and computing_threads.at_once <= 1.1,
    before=computing_threads.at_once,
    after=waiting_threads.at_once,
    unit="items at once",
)

# %% [markdown]
# A single thread that reads the next file while this one is decoded (*read-ahead*) is the smallest form of it. Libraries that let go of the lock while they compute, as Pillow does when it decodes a JPEG and NumPy in large operations, gain from threads too; code in Python itself does not.
#
# ## Fetch less
#
# ### 05.5 Caches: in memory, on disk, shared
#
# The fastest read is one that is not made. The store here is declared, 4 ms a read, and the caches are real. Items say whether their read went to the store, so reads are counted, not timed.
#
# There is a trap in it. A cache that the data set keeps in memory belongs to a process. With workers, which process is that?

# %% tags=["predict"]
L.predict("cache")


# %% tags=["measure"]
def remote(cache, **options):
    order = torch.Generator().manual_seed(0)
    return DataLoader(caching.Remote(96, cache), batch_size=8, shuffle=True, generator=order, **options)


counted = {
    "no cache": caching.reads(remote(None, num_workers=2), 2),
    "memory, no workers": caching.reads(remote(caching.Ram()), 2),
    "memory, two workers": caching.reads(remote(caching.Ram(), num_workers=2), 2),
    "memory, two that stay": caching.reads(remote(caching.Ram(), num_workers=2, persistent_workers=True), 2),
}
(folder / "cache").mkdir()
# <fix>
# was: cache = caching.Ram()
cache = caching.Disk(folder / "cache")
# </fix>
counted["disk, two workers"] = caching.reads(remote(cache, num_workers=2), 2)
print("reads of the store       epoch 1   epoch 2   hit ratio   kB from the store")
for name, (first, second) in counted.items():
    read_kb = (first + second) * caching.ITEM_BYTES / 1024
    print(f"{name:22s}   {first:7d}   {second:7d}   {1 - second / 96:8.0%}    {read_kb:17.0f}")
print("\na cache shared over a network (1 ms where it answers, 20 ms where the store must), by hit ratio:")
print(", ".join(f"{hit:.0%}: {caching.mean_wait_ms(hit, 1, 20):.1f} ms" for hit in (0, 0.5, 0.9, 0.99)), "(modelled)")

# %% tags=["claim"]
display(L.reveal("cache"))
L.claim(
    "in the second epoch a cache on disk answers every read, and one in the memory of workers that end answers none",
    counted["disk, two workers"] == [96, 0] and counted["memory, two workers"] == [96, 96],
    before=counted["memory, two workers"][1],
    after=counted["disk, two workers"][1],
    unit="reads of the store in epoch 2",
    source=gpulab.lessons.COUNTED,
)


# %% [markdown]
# A full cache is no proof that it helps: ask for its hit ratio, and for the process whose memory it fills.
#
# ### 05.7 Two GPUs: does each read all of it?
#
# With two processes, each training on its own GPU (*ranks*), it is easy to have both read the whole data set. Every GPU is then busy, every epoch takes as long as with one, and half of what is read was read twice. `DistributedSampler` gives each rank its share. Here it is asked for both shares in turn, without a second process: what it hands out is the same.
#
# Before you run: which share of all reads is wasted without it?

# %% tags=["measure"]
def rank_reads(rank, items=1000):
    """The items that one of two ranks reads in an epoch."""
    # <fix>
    # was: return list(range(items))
    return list(DistributedSampler(range(items), num_replicas=2, rank=rank, shuffle=True, seed=0))
    # </fix>


def wasted(*ranks):
    """Share of the reads of all ranks that another one made as well."""
    made = [item for rank in ranks for item in rank]
    return 1 - len(set(made)) / len(made)


everyone = wasted(range(1000), range(1000))
shared = wasted(rank_reads(0), rank_reads(1))
print(f"every rank reads all: {everyone:.0%} wasted; with the sampler: {shared:.0%}")
print(f"of 1001 items two ranks read {len(rank_reads(0, 1001)) + len(rank_reads(1, 1001))}: shares must be equal")
print("the next epoch has the same order, unless you call sampler.set_epoch(epoch)")

# %% tags=["claim"]
L.claim(
    "without a sampler half of all reads are wasted; with one, none",
    everyone == 0.5 and shared == 0,
    before=everyone,
    after=shared,
    unit="%",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# ### Formats: 2,000 files, one map, one tar
#
# To pack the data into a format such as TFRecord or WebDataset, so that reading it costs less, is the last piece of common advice that is tested here; notebook 06 goes further. The same 2,000 rows lie in as many files, in one array that is mapped into memory (the operating system reads the pages that are touched), and in a tar, which is what WebDataset uses. All are read in the same random order, from a local disk whose files are in memory already.
#
# Before you run: which of the three is slowest?

# %% tags=["measure"]
rows, _ = datasets.table(rows=2000, columns=256, seed=0)
packing.write(folder, rows)
order = np.random.default_rng(0).permutation(len(rows))
files = packing.measured(packing.from_files, folder, order)
mapped = packing.measured(packing.from_map, folder, order)
# <fix>
# was: tar = packing.measured(packing.from_map, folder, order)
tar = packing.measured(packing.from_tar, folder, order)
# </fix>
print("              opens   ms on this disk   ms if each open first waited 10 ms (modelled)")
for name, each in (("2,000 files", files), ("one map", mapped), ("one tar", tar)):
    print(f"{name:12s}  {each.opens:5d}   {1000 * each.wall_s:15.0f}   {1000 * each.elsewhere_s(0.010):10,.0f}")

# %% tags=["claim"]
display(L.same(files.total, tar.total))
L.claim(
    "the tar takes one open in place of 2,000, and on this disk still takes at least 1.3 times as long as the files",
    (files.opens, tar.opens) == (2000, 1) and tar.wall_s >= 1.3 * files.wall_s,
    before=1000 * files.wall_s,
    after=1000 * tar.wall_s,
    unit="ms",
)


# %% [markdown]
# A format is not fast or slow; it trades opens for something else. Here the tar saves opens that cost next to nothing, and pays in Python for finding its members. Count the opens, and ask what one costs where your data lies.
#
# ## Make
#
# Write `epochs(folder, orders)`: for every order in `orders` (row numbers, one order for each epoch), read the rows in that order and give the sum of all their values; the answer is a list of sums. The rows lie in `folder` three times: one by one, as `packing.from_files` reads them, in `rows.npy`, and in `rows.tar`. Hold no more than 1 MB in memory at any moment, and open as few files as you can. Par is three opens for three epochs.

# %% tags=["exercise"]
def epochs(folder, orders):
    # <blank> three epochs with no more than three opens, and 1 MB at most
    # was: return [packing.from_files(folder, order) for order in orders]
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return [sum(float(rows[place].sum()) for place in order) for order in orders]
    # </blank>


made = packing.tried(epochs, folder, [order, order[::-1], np.sort(order)])
print("right:", made.right, "  memory:", made.held_mb, "MB at most")

# %% tags=["score"]
L.score("opens", made.opens if made.right and made.held_mb <= 1 else None)


# %% [markdown]
# ## Transfer: is it the data?
#
# Another program, another idle GPU. It is often said that workers, pinned memory, prefetching and a cache are by themselves enough for a utilisation above 90 %. This program trains a deep, narrow model, and its one batch already lies in GPU memory: data costs nothing. Run it, on your GPU or on a virtual one, and read the counters.

# %% tags=["measure"]
def deep(width, depth=48, batch=32, steps=9):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(batch, width, device="cuda")
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


with L.gpu("other"):
    # <fix>
    # was: deep(width=4096, depth=16, batch=4096)
    deep(width=64)
    # </fix>
other = gpulab.runs["other"]
ledger = gpulab.diagnose(other).ledger
busy = sum(ledger.share(part.key) for part in ledger.parts if part.busy)
kernels = other.events.query("kind == 'kernel'")
print(f"source: {other.source}")
print(f"waiting for data: {ledger.share('loader'):.0%} of a step; the GPU works: {busy:.0%} of a step")
print(f"kernels: {len(kernels):,} recorded, half of them shorter than {kernels.dur_ns.median() / 1000:.1f} us")

# %% tags=["check"]
# <blank> the letter of your answer, as "a"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% tags=["claim"]
L.claim(
    "with data for free this GPU works in less than half of each step: nothing done to the loader can reach 90 %",
    busy < 0.5 and ledger.share("loader") == 0,
    after=busy,
    unit="%",
    source=other,
)

# %% [markdown]
# On a virtual GPU the kernel times are computed from their sizes and the launch times from this CPU, so the share is an estimate; that many short kernels leave a GPU waiting for its host is not in doubt, and notebook 12 is about it.
#
# ## What you take with you

# %% tags=["card"]
L.card()
