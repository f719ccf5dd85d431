# %% [markdown]
# # 05 Data loading: is the GPU slow, or is it waiting?
#
# You find out whether a training loop waits for its data, let worker processes fetch it, learn to say beforehand how far that can go, and see when it does nothing. About 45 minutes, on any laptop; with a CUDA GPU it uses that. Nothing is downloaded.

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
# The pipeline below is real: PyTorch's own `DataLoader`, processes and queues. What an item costs is declared, so that you know it: each waits 6 ms for the file server. The training step is a small real model.

# %% tags=["setup"]
import os
import tempfile
import time
import warnings
from itertools import repeat
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from gpulab import synthetic
from gpulab.lessons.labs.data import caching, loading, packing, queue_model

if L.device == "cpu":
    torch.set_num_threads(1)  # the model takes one core, so that the others are free for loading data
warnings.filterwarnings("ignore", message="This DataLoader will create")  # what it warns of is experiment 05.6
cores = L.machine.cores_allowed or os.cpu_count()
scratch = tempfile.TemporaryDirectory()  # gone when the kernel ends
folder = Path(scratch.name)

# %% tags=["given"]
photos = loading.Waiting(length=L.pick(tiny=256, lab=1024), wait_s=0.006)


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
# You could have worked it out: eight items of 6 ms, one after the other, are 48 ms for each batch. `wait / (wait + step)` with a step of a few milliseconds is most of the time.
#
# ## Diagnose
#
# The report names a cause. Do not take its word for it: a cause is shown by a counter that would read differently if another cause were true. Run the next cell to see two questions, answer them from the report, and run it again. `%gpuwhy no_workers`, in a cell of your own, tells how this finding is proved.

# %% tags=["check"]
# <blank> the letters of your two answers, as "a"
# was: cause, counter = None, None
cause, counter = "b", "c"
# </blank>
display(L.check("cause", cause))
L.check("counter", counter)

# %% [markdown]
# ## Fix: let others fetch
#
# ### 05.1 Workers: none, four
#
# With `num_workers=4` four processes fetch the next batches while the model works on this one. How much will that give? Say it first, then ask for a forecast: `%gpuwhatif` replays what was recorded, as if four workers had been there. Read its first line and the range under it.

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
# The loop still waits, and the report says how many workers would keep up. First, is it still the same training? Four workers that gave the batches in another order, or lost one, would be no fix.

# %% tags=["same"]
L.same(losses_before, losses_after)

# %% [markdown]
# Then the forecast beside the measurement; `workers=4` tells what was changed. Read the first line, *Predicted* and *Measured*, and the two bars on one scale. If other programs keep this computer busy, the first line gives no verdict: the figures are as measured, but chance may have made them. Run both recordings again when it is quiet.

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
# Four to eight workers for each GPU is common advice. Here it is tried on two kinds of item. One *waits* 40 ms, as for a disk or a server. The other *computes* for 5 ms in Python, as a transform written by hand does.
#
# The column to read is *at once*: how many items are in the making at any moment. It is items a second, times seconds for each; that product is Little's law, and holds for every queue.

# %% tags=["predict"]
L.predict("kinds")


# %% tags=["measure"]
def swept(kind, cost_s, workers, each=16):
    """How fast items are fetched, and how many at once, with so many workers and nothing that trains."""
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
loading.table({"waits": waits, "computes": computes})

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
# So four to eight is right where items wait. Where they compute, the number of cores decides. Ask which resource is full: if it is the CPU, more workers only share it, and an item must become cheaper.
#
# ## Keep the stream steady
#
# ### 05.2 Prefetch under bursty cost
#
# Often most batches are cheap and one now and then is dear: it begins a new file, or holds a long sound. Here a batch takes 10 ms and every sixteenth 110 ms; that is 16 ms in the mean, and a training step takes 20. One worker is fast enough, in the mean.
#
# What follows is a model of the loader with an exact clock: PyTorch's policy, the costs above, and no noise.

# %% tags=["predict"]
L.predict("burst")

# %% [markdown]
# A worker may have `prefetch_factor` batches ready, two unless you say otherwise. Find the smallest number with which no step but the first has to wait.

# %% tags=["exercise"]
costs_ms = queue_model.bursty(100, usual_ms=10, burst_ms=110, every=16)
print(f"no worker: {queue_model.fed(costs_ms, 20, workers=0).stalls} of 99 steps wait")
print(f"one worker, two ready: {queue_model.fed(costs_ms, 20, workers=1, prefetch=2).stalls} of 99 steps wait")
display(L.reveal("burst"))
# <blank> the smallest prefetch factor with which no step after the first waits, as a number
# was: prefetch = None
prefetch = 6
# </blank>
L.check("ahead", prefetch)

# %% tags=["claim"]
ahead = prefetch or 2
stalls = [queue_model.fed(costs_ms, 20, workers=1, prefetch=each).stalls for each in (ahead - 1, ahead)]
L.claim(
    "enough batches ahead, and no fewer, make every stall of this stream disappear; with steps of 15 ms no number does",
    stalls[0] > 0 and stalls[1] == 0 and queue_model.fed(costs_ms, 15, workers=1, prefetch=64).stalls > 0,
    before=queue_model.fed(costs_ms, 20, workers=1, prefetch=2).stalls,
    after=stalls[1],
    unit="stalls in 99 steps",
    source=gpulab.lessons.SIMULATED,
)


# %% [markdown]
# In your program this is `DataLoader(..., prefetch_factor=...)`. It counts for each worker, and its price is the memory for those batches. Prefetching hides waiting; it does not make items cheaper. With steps of 15 ms the mean batch, 16 ms, is dearer than a step: then only more workers or cheaper items help.
#
# ### 05.3 Workers that stay
#
# Unless told otherwise, a `DataLoader` ends its workers after each epoch and starts new ones for the next. Each of them opens the data set again, which takes 0.2 s here. Count the processes of three epochs, and look at how long each epoch takes to its first batch.

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
    print(f"{name:9s} {each.processes} processes; ms to the first batch of each epoch: {gaps}")

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
# A worker is a process, which costs memory and a copy of every batch. Would threads of one process do? And one thread alone can ask for many items, and go on with whichever is there (*asynchronous I/O*); it is given 16 at a time.

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
at_once = {
    "four threads": (f"{waiting_threads.at_once:.1f}", f"{computing_threads.at_once:.1f}"),
    "four processes": (f"{waiting_workers.at_once:.1f}", f"{computing_workers.at_once:.1f}"),
    "one thread, 16 asked for": (f"{waiting_alone.at_once:.1f}", "-"),
}
pd.DataFrame(at_once, index=["waiting at once", "computing at once"]).T

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
# Libraries that let go of the lock while they compute gain from threads too: Pillow does when it decodes a JPEG, NumPy in large operations. The smallest form of it is *read-ahead*: one thread reads the next file while this one is decoded.
#
# ## Fetch less, hold less
#
# ### 05.5 Caches: in memory, on disk, shared
#
# The fastest read is one that is not made. The store here is declared, 4 ms a read, and the caches are real. Items say whether their read went to the store, so reads are counted, not timed. Two epochs are run, and the *hit ratio* is the share of the second epoch's reads that the cache answers.

# %% tags=["predict"]
L.predict("cache")


# %% tags=["claim"]
def read(cache, **options):
    """Reads of the store in each of two epochs."""
    order = torch.Generator().manual_seed(0)
    return caching.reads(
        DataLoader(caching.Remote(96, cache), batch_size=8, shuffle=True, generator=order, **options), 2
    )


(folder / "cache").mkdir(exist_ok=True)
# <fix>
# was: cache = caching.Ram()
cache = caching.Disk(folder / "cache")
# </fix>
counted = {
    "no cache": read(None, num_workers=2),
    "memory, no workers": read(caching.Ram()),
    "memory, two workers": read(caching.Ram(), num_workers=2),
    "memory, two that stay": read(caching.Ram(), num_workers=2, persistent_workers=True),
    "disk, two workers": read(cache, num_workers=2),
}
display(caching.table(counted, items=96), L.reveal("cache"))
print("a cache shared over a network (1 ms where it answers, 20 ms where the store must), by hit ratio (modelled):")
print(", ".join(f"{hit:.0%}: {caching.mean_wait_ms(hit, 1, 20):.1f} ms" for hit in (0, 0.5, 0.9, 0.99)))
L.claim(
    "in the second epoch a cache on disk answers every read, and one in the memory of workers that end answers none",
    counted["disk, two workers"] == [96, 0] and counted["memory, two workers"] == [96, 96],
    before=counted["memory, two workers"][1],
    after=counted["disk, two workers"][1],
    unit="reads of the store in epoch 2",
    source=gpulab.lessons.COUNTED,
)


# %% [markdown]
# A full cache is no proof that it helps: ask for its hit ratio, and for the process whose memory it fills. With one that is shared over a network, the few reads that miss soon make up most of the wait.
#
# ### 05.6 More workers than cores, and what each one holds
#
# Workers that do not help still cost. PyTorch warns of them; that warning was kept out of the outputs until now. Each worker holds `prefetch_factor` batches ready. And each is a copy of your process: it shares memory with you only until either of you writes to it (*copy-on-write*). Python writes whenever it looks at an object, because it counts references there.
#
# How much of a list of 100,000 file names, about 11 MB, becomes a worker's own merely because it reads them? And if the same names are packed into one NumPy array?

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
too_few_workers = max(1, int(cores))
for count in (too_few_workers, 4 * too_few_workers):
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
# This is why memory grows through an epoch although nothing leaks, and why it grows with the number of workers. Free memory is therefore no reason to add workers, only the room to do so.
#
# ### 05.7 Two GPUs: does each read all of it?
#
# With two processes, each training on its own GPU (*ranks*), it is easy to have both read the whole data set. Both GPUs are then busy, and every epoch takes as long as with one. `DistributedSampler` gives each rank its share. Here it is asked for both shares in turn, without a second process: what it hands out is the same.

# %% tags=["claim"]
def rank_reads(rank, items=1000):
    """The items that one of two ranks reads in an epoch."""
    # <fix>
    # was: return list(range(items))
    return list(DistributedSampler(range(items), num_replicas=2, rank=rank, shuffle=True, seed=0))
    # </fix>


def wasted(*ranks):
    """Of the reads of all ranks, the share that another one had made already."""
    made = [item for rank in ranks for item in rank]
    return 1 - len(set(made)) / len(made)


everyone = wasted(range(1000), range(1000))
shared = wasted(rank_reads(0), rank_reads(1))
print(f"of 1001 items two ranks read {len(rank_reads(0, 1001)) + len(rank_reads(1, 1001))}: shares must be equal")
L.claim(
    "without a sampler half of all reads are wasted; with one, none",
    everyone == 0.5 and shared == 0,
    before=everyone,
    after=shared,
    unit="%",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# Call `sampler.set_epoch(epoch)` before each epoch, or every epoch has the same order.
#
# ### Formats: 2,000 files, one map, one tar
#
# Another common piece of advice is to pack the data into a format such as TFRecord or WebDataset, so that reading it costs less. The same 2,000 rows lie in as many files, in one array that is mapped into memory (the operating system reads the pages that are touched), and in a tar, which is what WebDataset uses. All are read in the same random order, from a local disk whose files are in memory already.

# %% tags=["predict"]
L.predict("formats")

# %% tags=["measure"]
rows, _ = synthetic.table(rows=2000, columns=256, seed=0)
packing.write(folder, rows)
order = np.random.default_rng(0).permutation(len(rows))
files = packing.measured(packing.from_files, folder, order)
mapped = packing.measured(packing.from_map, folder, order)
# <fix>
# was: tar = packing.measured(packing.from_map, folder, order)
tar = packing.measured(packing.from_tar, folder, order)
# </fix>
packing.table({"2,000 files": files, "one map": mapped, "one tar": tar}, per_open_s=0.010)

# %% tags=["claim"]
display(L.reveal("formats"), L.same(files.total, tar.total))
L.claim(
    "the tar takes one open in place of 2,000, and on this disk still takes at least 1.3 times as long as the files",
    (files.opens, tar.opens) == (2000, 1) and tar.wall_s >= 1.3 * files.wall_s,
    before=1000 * files.wall_s,
    after=1000 * tar.wall_s,
    unit="ms",
)


# %% [markdown]
# A format is not fast or slow; it trades opens for something else. Count the opens, and ask what one costs where your data lies: the last column shows it for a store across a network. (The map takes three opens each time: `np.load` opens the file to see what it is, to read its shape, and to map it.)
#
# ## Make
#
# Write `epochs(folder, orders)`. For every order in `orders` (row numbers; there are five orders of 1,200 rows, one for each epoch) it reads these rows and sums all their values; it gives the list of the five sums.
#
# The rows lie in `folder` three times: one by one, as `packing.from_files` reads them, in `rows.npy`, and in `rows.tar`. Hold no more than 1 MB in memory at any moment, and open as few files as you can: **par is three opens for all five epochs.** `L.hint("opens")`, in a cell of your own, gives a hint, and another one each time.

# %% tags=["exercise"]
def epochs(folder, orders):
    # <blank> five epochs with no more than three opens, and 1 MB at most
    # was: return [packing.from_files(folder, order) for order in orders]
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return [sum(float(rows[place].sum()) for place in order) for order in orders]
    # </blank>


made = packing.tried(epochs, folder, [order[first : first + 1200] for first in range(0, 801, 200)])
print(f"sums right: {made.right}; memory held: {made.held_mb} MB, and 1 MB is allowed")
L.score("opens", made.opens if made.right and made.held_mb <= 1 else None)

# %% [markdown]
# ## How far can it go?
#
# ### 05.8 Two bounds: a batch that is there, and a model that does nothing
#
# Two short runs tell how far any work on the data, or on the model, can get you.
#
# - *Data for free*: train on one batch again and again. No loader can be faster than this.
# - *Model for free*: run through the loader and do nothing. No model can be faster than this.
#
# With workers both go on at the same time, so the slower one decides: the rate is about the smaller of the two. Without workers they take turns, and the times add up. Here each item waits 24 ms, and there are four workers.

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
display(L.reveal("bounds", free_data / free_model, "times as fast with data for free as with model for free"))
L.claim(
    "with four workers the loop runs at half of its smaller bound or more, and above neither by more than a quarter",
    0.5 * smaller <= real <= 1.25 * smaller,
    before=smaller,
    after=real,
    unit="items/s",
)


# %% [markdown]
# Keep these two runs in mind: they take a minute, and they tell you which half of the program not to work on. *Data for free* is also the most that workers, pinned memory, prefetching and caches can reach together, whatever they promise one by one. The last row comes nearer to it with sixteen workers; where workers reach it, only a faster model helps.
#
# ## Transfer: is it the data?
#
# Another program, another idle GPU. Guides often say that workers, pinned memory, prefetching and a cache are by themselves enough for a utilisation above 90 %. This program trains a deep, narrow model, and its one batch already lies in GPU memory: data costs nothing. Run it, on your GPU or on a virtual one, and read the counters.

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
# On a virtual GPU the kernel times are computed from their sizes and the launch times from this CPU, so the share is an estimate. That many short kernels leave a GPU waiting for its host is not in doubt; notebook 12 is about it.
#
# ## What you take with you
#
# - An idle GPU is a question, and the time inside `DataLoader.__next__` is the first counter to ask.
# - Where items wait, workers help, by as many as wait at once. Where they compute, the cores decide.
# - Before any work on the loader, run the two bounds. If *data for free* is no faster, go on with [07 Host to device](07_host_to_device.ipynb) or [12 Launches, fusion and graphs](12_launch_fusion_graphs.ipynb).

# %% tags=["card"]
L.card()
