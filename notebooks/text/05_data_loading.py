# %% [markdown]
# # 05 Data loading: is the GPU slow, or is it waiting?
#
# You find out whether a training loop waits for its data, speed it up with DataLoader workers, predict how much they can help, and see when they do not help at all. This takes about 45 minutes on any laptop; if there is a CUDA GPU, the notebook uses it. Nothing is downloaded.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("05_data_loading")
L

# %% [markdown]
# ## The symptom
#
# You train a small classifier on photographs that are stored on a file server. The GPU is rented by the hour, and the monitor shows that it is almost idle. A colleague suggests renting a faster one.
#
# The pipeline below is real: it uses PyTorch's own `DataLoader`, processes and queues. Only the time to load an item is simulated, so that you know its exact value: each item waits 6 ms for the file server. The training step runs a small real model.

# %% tags=["setup"]
import gc
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
from gpulab.lessons.labs.data import caching, loading, queue_model, storage_formats

if L.device == "cpu":
    torch.set_num_threads(1)  # the model uses one core, so that the others are free for loading data
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores, see 05.7
cores = L.machine.cores_allowed or os.cpu_count()
scratch = tempfile.TemporaryDirectory()  # deleted when the kernel ends
folder = Path(scratch.name)

# %% tags=["given"]
photos = loading.IoBoundDataset(length=L.pick(tiny=512, lab=1024), wait_s=0.006)


def make_loader(workers, data=photos):
    """Return the program's DataLoader: batches of eight, in an order shuffled with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return DataLoader(data, batch_size=8, shuffle=True, generator=generator, num_workers=workers)


def train(batches):
    """Run an ordinary training loop and return the loss of every step."""
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
# Now measure. `%%gpuprofile before` records this cell as a run named `before`. A live panel shows the cell while it runs; the report replaces the panel when the cell ends.

# %% tags=["measure"]
# %%gpuprofile before
losses_before = train(make_loader(workers=0))

# %% tags=["reveal"]
wait_before = gpulab.diagnose(gpulab.runs["before"]).ledger.typical_frac("loader")
L.reveal("wait", wait_before, "%")

# %% [markdown]
# You could have calculated this: eight items of 6 ms, one after the other, take 48 ms per batch. The rest of the step takes a few milliseconds, so `wait / (wait + rest)` is close to one.

# %% [markdown]
# ## Diagnose
#
# The report names a cause. Do not take its word for it: look for a number in the report that would be different if the cause were another one. Run the next cell to see two questions, answer them from the report, and run the cell again. To see how gpulab detects this cause, run `%gpuwhy no_workers` in a new cell.

# %% tags=["check"]
# <blank> the letters of your two answers, for example "a"
# was: cause, number = None, None
cause, number = "b", "c"
# </blank>
display(L.check("cause", cause))
L.check("number", number)

# %% [markdown]
# ## Fix: load data in worker processes
#
# ### DataLoader workers: none or four
#
# With `num_workers=4`, four processes load the next batches while the model trains on the current one. How much faster will the loop be? Predict it yourself first. Then ask gpulab: `%gpuwhatif` replays the recorded run as if it had used four workers. Read the first line of its answer and the range below it.

# %% tags=["predict"]
L.predict("workers")

# %% tags=["measure"]
# %gpuwhatif before workers=4

# %% tags=["measure"]
# %%gpuprofile after
losses_after = train(
    # <blank> load with four workers
    # was: make_loader(workers=0)
    make_loader(workers=4)
    # </blank>
)

# %% [markdown]
# The loop still waits for data, and the report says how many workers it would take to end the waiting, and how many gpulab proposes. It proposes up to eight, or one per core on a machine with more than eight cores. (If its first line says that other processes used the cores, the report may call loading CPU-bound instead: then record again when the computer is quiet.) But first: is it still the same training? If the four workers lost a batch, or delivered other batches than before, the two runs could not be compared.

# %% tags=["same"]
L.same(losses_before, losses_after)

# %% [markdown]
# Now compare the prediction with the measurement; `workers=4` tells `%gpucompare` which change you made. Read the first line, then *Predicted* and *Measured*, then the two bars, which share one scale. If other programs keep this computer busy, the first line may give no verdict, because the difference could be noise. In that case, record both runs again when the computer is quiet.

# %% tags=["measure"]
# %gpucompare before after workers=4

# %% tags=["claim"]
comparison = gpulab.compare(gpulab.runs["before"], gpulab.runs["after"], rewrites="workers=4")
display(L.reveal("workers", comparison.ratio, "times as fast"))
L.claim(
    "with four workers, the speed-up is at least 1.3x and does not exceed the predicted upper bound "
    "(10 % tolerance for noise)",
    1.3 <= comparison.ratio <= 1.1 * comparison.predicted.bound,
    before=comparison.before_ns / 1e6,
    after=comparison.after_ns / 1e6,
    unit="ms per step",
)

# %% [markdown]
# ### 05.1 0 to 8 workers, for I/O-bound and CPU-bound items
#
# "Use four to eight workers per GPU" is common advice. Test it on two kinds of item. An *I/O-bound* item waits 40 ms, like a read from a disk or a server. A *CPU-bound* item computes for 5 ms in Python, like a hand-written transform.
#
# Look at the columns *concurrency*. They tell how many items are loaded at the same time. The number is calculated as (items loaded per second) x (seconds to load one item alone). CPU-bound workers that share a core take turns: together, they load no more items per second than one of them alone, so the concurrency stays the same. On many cloud machines, what is sold as a core is one of the two hardware threads of a physical core. Four CPU-bound workers on four such threads may reach a concurrency of only about two. Other programs that use the CPU lower all numbers in this table and in the one of 05.6.

# %% tags=["predict"]
L.predict("kinds")


# %% tags=["measure"]
def measure_loading(dataset_class, cost_s, workers, items_per_worker=16):
    """Measure the loading rate and the concurrency of this many workers, without training."""
    data = dataset_class(items_per_worker * max(1, workers), cost_s)
    return loading.time_loader(DataLoader(data, batch_size=4, num_workers=workers))


most = 8
io_bound = {n: measure_loading(loading.IoBoundDataset, 0.040, n) for n in (0, 1, 2, 4)}
# <blank> load with `most` workers
# was: io_bound[most] = measure_loading(loading.IoBoundDataset, 0.040, 1)
io_bound[most] = measure_loading(loading.IoBoundDataset, 0.040, most)
# </blank>
cpu_bound = {n: measure_loading(loading.CpuBoundDataset, 0.005, n) for n in (0, 1, 2, 4, most)}
print(f"this process may use {cores:g} cores")
loading.worker_table({"I/O-bound": io_bound, "CPU-bound": cpu_bound})

# %% tags=["claim"]
display(L.reveal("kinds"))
L.claim(
    "eight workers load at least two I/O-bound items at the same time; "
    "the number of CPU-bound items that are loaded at the same time never exceeds the number of cores "
    "(10 % tolerance for noise)",
    io_bound[most].concurrency >= 2 and all(rate.concurrency <= 1.1 * cores for rate in cpu_bound.values()),
    before=cpu_bound[most].concurrency,
    after=io_bound[most].concurrency,
    unit="items at the same time",
    names=("CPU-bound", "I/O-bound"),
)

# %% [markdown]
# So I/O-bound items still gain at eight workers. For CPU-bound items, the number of cores is the limit. With two idle cores, as in the question, CPU-bound items reach a concurrency of at most two, however many workers there are. Other programs and shared physical cores lower this limit. Ask which resource is fully used: if it is the CPU, more workers only share it, and you must make each item cheaper.

# %% [markdown]
# ## Keep the pipeline steady
#
# ### 05.2 Prefetch factor for bursty batch times
#
# Often most batches are fast and a few are slow: a slow batch opens a new file, or contains a long audio clip. Here a batch takes 10 ms, but every sixteenth batch takes 110 ms. The average is 16 ms, and a training step takes 20 ms. On average, one worker is fast enough.
#
# The next cells do not run a DataLoader. They simulate it exactly, with PyTorch's prefetching policy and the costs above, without noise.

# %% tags=["predict"]
L.predict("burst")

# %% [markdown]
# Each worker keeps up to `prefetch_factor` batches ready; the default is two. Find the smallest prefetch factor with which only the first step waits.

# %% tags=["exercise"]
costs_ms = queue_model.bursty_costs(100, usual_ms=10, burst_ms=110, every=16)
simulate = queue_model.simulate_loader
print(f"no workers: {simulate(costs_ms, 20, workers=0).stalls} of 99 steps wait")
print(f"one worker, prefetch factor 2: {simulate(costs_ms, 20, workers=1, prefetch=2).stalls} of 99 steps wait")
display(L.reveal("burst"))
# <blank> the smallest prefetch factor with which no step after the first one waits, as a number
# was: prefetch = None
prefetch = 6
# </blank>
L.check("ahead", prefetch)

# %% tags=["claim"]
factors = range(1, 65)
stalls = {factor: simulate(costs_ms, 20, workers=1, prefetch=factor).stalls for factor in factors}
stalls_15_ms = {factor: simulate(costs_ms, 15, workers=1, prefetch=factor).stalls for factor in factors}
factor = next((number for number in factors if number == prefetch), 2)  # without a valid answer: PyTorch's default
L.claim(
    "the smallest sufficient prefetch factor removes every stall; if a step takes only 15 ms, stalls remain "
    "with every prefetch factor up to 64",
    stalls[factor] == 0 and all(stalls[smaller] for smaller in range(1, factor)) and min(stalls_15_ms.values()) > 0,
    before=stalls[2],
    after=stalls[factor],
    unit="stalls in 99 steps",
    source=gpulab.lessons.SIMULATED,
)


# %% [markdown]
# In your own program this is `DataLoader(..., prefetch_factor=...)`. The value applies to each worker, and all prefetched batches occupy memory. Prefetching hides slow batches; it does not make them faster. With steps of 15 ms, the average batch (16 ms) takes longer than a step, so only more workers or cheaper items help.
#
# ### 05.3 Persistent workers
#
# By default, a `DataLoader` ends its workers after each epoch and starts new ones for the next. Each new worker opens the dataset again, which takes 0.2 s here. Count the worker processes over three epochs, and measure how long each epoch takes to deliver its first batch.

# %% tags=["measure"]
def make_indexed_loader(**options):
    return DataLoader(loading.SlowOpenDataset(48, open_s=0.2), batch_size=8, num_workers=2, **options)


restarted = loading.time_epoch_gaps(make_indexed_loader(), 3)
# <blank> keep the workers alive: persistent_workers=True
# was: persistent = loading.time_epoch_gaps(make_indexed_loader(), 3)
persistent = loading.time_epoch_gaps(make_indexed_loader(persistent_workers=True), 3)
# </blank>
for name, epochs_result in (("restarted", restarted), ("persistent", persistent)):
    gaps_ms = ", ".join(f"{1000 * gap_s:.0f}" for gap_s in epochs_result.gaps_s)
    print(f"{name:10s} {epochs_result.processes} processes; ms to the first batch of each epoch: {gaps_ms}")

# %% tags=["claim"]
L.claim(
    "with persistent workers, three epochs need 2 processes, not 6, and later epochs start in less than half the time",
    (restarted.processes, persistent.processes) == (6, 2) and persistent.later_gap_s < 0.5 * restarted.later_gap_s,
    before=1000 * restarted.later_gap_s,
    after=1000 * persistent.later_gap_s,
    unit="ms before the first batch",
)

# %% [markdown]
# ## Load less, copy less
#
# ### 05.4 Caches: in memory, on disk, on a network
#
# The fastest read is the one you avoid. The caches in this experiment are real; the storage is simulated and needs 4 ms per read. Each item reports whether it was read from the storage, so you count reads instead of timing them. Each configuration runs two epochs. In each epoch, each of the 96 items is requested once. The *hit ratio* is the share of these requests in the second epoch that the cache answers.

# %% tags=["predict"]
L.predict("cache")


# %% tags=["claim"]
def count_reads(cache, **options):
    """Count the reads from storage in each of two epochs."""
    generator = torch.Generator().manual_seed(0)
    return caching.count_store_reads(
        DataLoader(caching.RemoteDataset(96, cache), batch_size=8, shuffle=True, generator=generator, **options), 2
    )


cache_folder = tempfile.mkdtemp(dir=folder)  # empty, also if you run this cell again
# <blank> a cache that the workers share: caching.DiskCache in cache_folder
# was: cache = caching.MemoryCache()
cache = caching.DiskCache(cache_folder)
# </blank>
reads = {
    "no cache": count_reads(None, num_workers=2),
    "memory, no workers": count_reads(caching.MemoryCache()),
    "memory, two workers": count_reads(caching.MemoryCache(), num_workers=2),
    "memory, two persistent workers": count_reads(caching.MemoryCache(), num_workers=2, persistent_workers=True),
    "disk, two workers": count_reads(cache, num_workers=2),
}
display(caching.cache_table(reads, items=96), L.reveal("cache"))
print("mean time of a read from a network cache, by hit ratio (modelled: a hit takes 1 ms, a miss 20 ms):")
print(", ".join(f"{hit:.0%}: {caching.mean_wait_ms(hit, 1, 20):.1f} ms" for hit in (0, 0.5, 0.9, 0.99)))
L.claim(
    "in the second epoch a disk cache serves every read; a memory cache in workers that restart serves none",
    reads["disk, two workers"] == [96, 0] and reads["memory, two workers"] == [96, 96],
    before=reads["memory, two workers"][1],
    after=reads["disk, two workers"][1],
    unit="reads from storage in epoch 2",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# A full cache does not prove that the cache helps. Check its hit ratio, and check which process's memory it fills. With a network cache, a few misses can account for most of the waiting time.

# %% [markdown]
# ### File formats: 2,000 files, a memory-mapped array, or a tar archive
#
# Another common piece of advice is to pack a dataset into a format such as TFRecord or WebDataset to make reading cheaper. Here the same 2,000 rows are stored in three ways: in 2,000 files, in one memory-mapped array (the operating system reads a page when you access it), and in a tar archive, the format of WebDataset. The test reads all three in the same random order, from a local disk, with all files in the page cache. It also reads the archive from start to end, as WebDataset does: that library mixes the samples afterwards, in a buffer (notebook [06](06_formats_and_preprocessing.ipynb)).

# %% tags=["predict"]
L.predict("formats")

# %% tags=["measure"]
rows, _ = synthetic.table(rows=2000, columns=256, seed=0)
storage_formats.write_layouts(folder, rows)
order = np.random.default_rng(0).permutation(len(rows))
files = storage_formats.time_reader(storage_formats.read_from_files, folder, order)
mapped = storage_formats.time_reader(storage_formats.read_from_memmap, folder, order)
# <blank> read the tar archive at random, storage_formats.read_from_tar, and from start to end, stream_tar
# was: tar = stream = storage_formats.time_reader(storage_formats.read_from_memmap, folder, order)
tar = storage_formats.time_reader(storage_formats.read_from_tar, folder, order)
stream = storage_formats.time_reader(storage_formats.stream_tar, folder, order)
# </blank>
readers = {"2,000 files": files, "memory map": mapped, "tar, at random": tar, "tar, start to end": stream}
storage_formats.reader_table(readers, per_open_s=0.010)

# %% tags=["claim"]
display(L.reveal("formats"), L.same(files.total, tar.total))
L.claim(
    "the tar archive needs 1 open instead of 2,000, but takes at least 1.3 times as long as the files on this disk; "
    "from start to end, it takes less time than at random",
    (files.opens, tar.opens, stream.opens) == (2000, 1, 1)
    and tar.wall_s >= 1.3 * files.wall_s
    and stream.wall_s < tar.wall_s,
    before=1000 * files.wall_s,
    after=1000 * tar.wall_s,
    unit="ms",
    names=("files", "tar archive"),
)


# %% [markdown]
# No format is fast or slow in itself: a tar file trades `open()` calls for a scan, or for a fixed order, and a memory map needs items of equal size. Count the opens, and measure what one open costs on your storage; the last column of the table above adds what the opens alone would cost on network storage. Reads take longer there, too: a memory map then reads every page over the network. (Each `np.load` of a memory map opens the file three times: to detect its format, to read its shape, and to map it.)

# %% [markdown]
# ## Exercise: five epochs with three file opens
#
# Write `epochs(folder, orders)`. `orders` holds five lists of 1,200 row numbers, one list per epoch. For each list, read these rows and add up all their values. Return the list of the five sums.
#
# `folder` holds the rows in three formats: one file per row (read them with `storage_formats.read_from_files`), `rows.npy` and `rows.tar`. Never hold more than 1 MB of data in memory, and open as few files as you can. **The target is three opens for all five epochs.** For a hint, run `L.hint("opens")` in a new cell; each further call gives the next hint.

# %% tags=["exercise"]
def epochs(folder, orders):
    # <blank> five epochs with at most three opens and 1 MB of memory
    # was: return [storage_formats.read_from_files(folder, order) for order in orders]
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return [sum(float(rows[index].sum()) for index in order) for order in orders]
    # </blank>


attempt = storage_formats.check_reader(epochs, folder, [order[first : first + 1200] for first in range(0, 801, 200)])
print(f"sums correct: {attempt.correct}; peak memory: {attempt.peak_mb} MB (1 MB is allowed)")
L.score("opens", attempt.opens if attempt.correct and attempt.peak_mb <= 1 else None)

# %% [markdown]
# ## How much can you gain?
#
# ### 05.5 Two upper bounds: model only and loader only
#
# Two short runs give two limits: *model only* tells how much a faster loader can gain, *loader only* how much a faster model can gain.
#
# - *Model only*: train on one batch in memory again and again. However fast data loading becomes, the loop cannot be faster than this (apart from noise).
# - *Loader only*: iterate over the loader without training. However fast the model becomes, the loop cannot be faster than this.
#
# With workers, loading and training overlap, so the rate of the real loop is close to the smaller of the two bounds. Without workers, the process that trains also loads, so the times of loading and training add up (on a GPU, kernels that are already queued run while it loads). Here each item waits 24 ms, and there are four workers.

# %% tags=["predict"]
L.predict("bounds")

# %% tags=["measure"]
slow_photos = loading.IoBoundDataset(length=96, wait_s=0.024)


def training_rate(batches, items=96):
    """Measure items per second through the model and the optimizer; the clock starts when the workers have started."""
    batches = iter(batches)
    start_s = time.perf_counter()
    train(batches)
    return items / (time.perf_counter() - start_s)


batch = next(iter(make_loader(workers=0, data=slow_photos)))
training_rate(repeat(batch, 4))  # warm-up
model_only = max(training_rate(repeat(batch, 12)) for _ in range(3))
loader_only = max(loading.time_loader(make_loader(workers=4, data=slow_photos)).per_s for _ in range(2))
real_loop = training_rate(
    # <blank> the real loop loads with four workers
    # was: make_loader(workers=0, data=slow_photos)
    make_loader(workers=4, data=slow_photos)
    # </blank>
)
smaller_bound = min(model_only, loader_only)
print(f"model only:    {model_only:7.0f} items/s")
print(f"loader only:   {loader_only:7.0f} items/s with four workers")
print(f"the real loop: {real_loop:7.0f} items/s with four workers")
many_photos = loading.IoBoundDataset(length=384, wait_s=0.024)
many_workers = training_rate(make_loader(workers=16, data=many_photos), items=384)
print(f"               {many_workers:7.0f} items/s with sixteen workers")

# %% tags=["claim"]
display(L.reveal("bounds", model_only / loader_only, "(the model-only rate divided by the loader-only rate)"))
L.claim(
    "with four workers, the loop reaches at least half of the smaller bound and does not exceed it "
    "(25 % tolerance for the noise of two short runs)",
    0.5 * smaller_bound <= real_loop <= 1.25 * smaller_bound,
    before=smaller_bound,
    after=real_loop,
    unit="items/s",
    names=("smaller bound", "real loop"),
)

# %% [markdown]
# Remember these two runs: they take a minute, and they tell you which half of the program to optimise. *Model only* is also the most that workers, prefetching and caches can reach together. Sixteen workers could load up to four times as many items per second as four; compare the last two lines of the output. If the loop gains less, the workers compete for the cores, or the run is too short to show their full rate. Once the loop reaches *model only*, only a faster model helps.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 05.6 Threads, processes and asynchronous I/O
#
# A worker is a process: it needs memory of its own, and each batch passes through shared memory. Are threads of one process enough? A single thread can also request many items at once and handle them as they arrive (*asynchronous I/O*); here it keeps 16 requests open.

# %% tags=["predict"]
L.predict("threads")

# %% tags=["measure"]
# <blank> four threads
# was: threads = 1
threads = 4
# </blank>
io_items, cpu_items = loading.IoBoundDataset(32, 0.08), loading.CpuBoundDataset(96, 0.005)
io_threads = loading.time_threads(io_items, threads)
cpu_threads = loading.time_threads(cpu_items, threads)
io_async = loading.time_async(io_items, at_once=16)
io_workers = loading.time_loader(DataLoader(io_items, batch_size=4, num_workers=4))
cpu_workers = loading.time_loader(DataLoader(cpu_items, batch_size=4, num_workers=4))
concurrency = {
    "four threads": (f"{io_threads.concurrency:.1f}", f"{cpu_threads.concurrency:.1f}"),
    "four processes": (f"{io_workers.concurrency:.1f}", f"{cpu_workers.concurrency:.1f}"),
    "one thread, 16 asynchronous requests": (f"{io_async.concurrency:.1f}", "-"),
}
pd.DataFrame(concurrency, index=["I/O-bound: concurrency", "CPU-bound: concurrency"]).T

# %% tags=["claim"]
display(L.reveal("threads"))
L.claim(
    "four threads load at least 1.5 I/O-bound items at the same time, but only one CPU-bound item, because of the GIL "
    "(10 % tolerance for noise)",
    io_threads.concurrency >= 1.5 and cpu_threads.concurrency <= 1.1,
    before=cpu_threads.concurrency,
    after=io_threads.concurrency,
    unit="items at the same time",
    names=("CPU-bound", "I/O-bound"),
)


# %% [markdown]
# For I/O-bound items, four threads do about as well as four processes. One thread with 16 open requests loads about four times as many items per second, because it waits for four times as many at a time. For CPU-bound items, four threads do not get beyond one item at a time; four processes can, if several cores are free for them. Threads also help with libraries that release the GIL while they compute: for example Pillow when it decodes a JPEG, and NumPy in large operations. The simplest use of a thread is *read-ahead*: it reads the next file while the main thread decodes the current one.

# %% [markdown]
# ### 05.7 More workers than cores, and the memory of each worker
#
# PyTorch warns if `num_workers` exceeds the number of cores that the process may use. Take the warning seriously if the workers compute. If the workers mostly wait, as in most cells here, ignore the warning; this notebook hides it. Workers that do not help still cost something. Each worker prefetches `prefetch_factor` batches. With the `fork` start method, each worker is also a copy of your process. A worker shares the memory pages of its parent until either of them writes to a page (*copy-on-write*). Reading a Python object changes its reference count, which is a write.
#
# Take a list of 100,000 file names, about 12 MB. How much of it does a worker copy just by reading it? And how much if the same names are packed into one NumPy array?

# %% tags=["measure"]
def pytorch_warns(workers):
    """Return whether PyTorch warns about this number of workers."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        DataLoader(photos, num_workers=workers)
    return any("max number of worker" in str(message.message) for message in messages)


def private_memory_growth_mb(names):
    """Measure by how much a worker's private memory grows while it reads every name."""
    options = {"multiprocessing_context": "fork"} if "fork" in torch.multiprocessing.get_all_start_methods() else {}
    gc.disable()  # a garbage collection in either process writes to every object, which would be counted as well
    try:
        private_bytes = [int(batch[0]) for batch in DataLoader(names, batch_size=5000, num_workers=1, **options)]
    finally:
        gc.enable()
    return (private_bytes[-1] - private_bytes[0]) / 1e6


list_mb = private_memory_growth_mb(loading.FileNameDataset(100_000, packed=False))
# <blank> the same names, packed into one array
# was: array_mb = private_memory_growth_mb(loading.FileNameDataset(100_000, packed=False))
array_mb = private_memory_growth_mb(loading.FileNameDataset(100_000, packed=True))
# </blank>
one_per_core = max(1, int(cores))
for count in (one_per_core, 4 * one_per_core):
    print(f"{count} workers: {2 * count} prefetched batches; PyTorch warns: {pytorch_warns(count)}")
print(f"a worker's private memory grows by {list_mb:.1f} MB with a list, by {array_mb:.1f} MB with an array")

# %% tags=["claim"]
L.claim(
    "a worker that reads a list of 100,000 names copies at least 6 MB; with a NumPy array it copies less than half",
    list_mb >= 6 and array_mb < 0.5 * list_mb,
    before=list_mb,
    after=array_mb,
    unit="MB per worker",
)


# %% [markdown]
# If a dataset keeps many Python objects, these copies are why memory grows during an epoch although nothing leaks, and why the growth is proportional to the number of workers.
#
# ### 05.8 Two GPUs: does each rank read the whole dataset?
#
# With two processes (*ranks*), each training on its own GPU, it is easy to make both read the whole dataset by mistake. Then both GPUs are busy, but an epoch takes as long as with one GPU. `DistributedSampler` gives each rank its own share of the dataset. The next cell creates the samplers of both ranks in a single process; they return the same indices as in two separate processes.

# %% tags=["claim"]
def indices_of_rank(rank, items=1000):
    """Return the indices that one of two ranks reads in an epoch."""
    # <blank> the share of this rank: DistributedSampler with two replicas, shuffled with seed 0
    # was: return list(range(items))
    return list(DistributedSampler(range(items), num_replicas=2, rank=rank, shuffle=True, seed=0))
    # </blank>


def duplicate_share(*ranks):
    """Return the share of all reads that repeat an index."""
    indices = [index for rank in ranks for index in rank]
    return 1 - len(set(indices)) / len(indices)


without_sampler = duplicate_share(range(1000), range(1000))
ranks = list(indices_of_rank(0)), list(indices_of_rank(1))
with_sampler = duplicate_share(*ranks)
reads_of_1001 = len(indices_of_rank(0, 1001)) + len(indices_of_rank(1, 1001))
print(f"two ranks make {reads_of_1001} reads of 1001 items")
L.claim(
    "without DistributedSampler two ranks waste half of all reads; with it they waste none, and read all 1000 items",
    without_sampler == 0.5 and with_sampler == 0 and {*ranks[0], *ranks[1]} == set(range(1000)),
    before=without_sampler,
    after=with_sampler,
    unit="%",
    source=gpulab.lessons.COUNTED,
)


# %% [markdown]
# If the number of items is odd, the sampler repeats one of them, so that both ranks get the same number: 1002 reads of 1001 items. Call `sampler.set_epoch(epoch)` before each epoch; otherwise every epoch uses the same order.

# %% [markdown]
# ## Transfer: is data loading the bottleneck here?
#
# Here is another program with an idle GPU. Are workers, pinned memory, prefetching and a cache enough to get above 90 % utilisation? This program trains a deep, narrow model, and its only batch is already in GPU memory, so data loading costs nothing. Run it, on your GPU or on a virtual one, and read the numbers that the cell prints.

# %% tags=["measure"]
def train_deep_model(width, depth=48, batch=32, steps=9):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(batch, width, device="cuda")
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


with L.gpu("other"):
    # <blank> layers of width 64
    # was: train_deep_model(width=4096, depth=16, batch=4096)
    train_deep_model(width=64)
    # </blank>
other = gpulab.runs["other"]
ledger = gpulab.diagnose(other).ledger
busy = sum(ledger.typical_frac(part.key) for part in ledger.parts if part.busy)
kernels = other.events.query("kind == 'kernel'")
print(f"source: {other.source}")
print(f"waiting for data: {ledger.typical_frac('loader'):.0%} of a step; GPU busy: {busy:.0%} of a step")
print(f"kernels: {len(kernels):,} recorded, half of them shorter than {kernels.dur_ns.median() / 1000:.1f} us")

# %% tags=["check"]
# <blank> the letter of your answer, for example "a"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% tags=["claim"]
L.claim(
    "the GPU is busy for less than half of each step although the loop never waits for data",
    busy < 0.5 and ledger.typical_frac("loader") == 0,
    after=busy,
    unit="%",
    source=other,
)

# %% [markdown]
# So no change to the loader can bring this program to 90 % utilisation. On a virtual GPU, kernel times are estimated from the shapes of the tensors, and launch times come from this CPU, so the share of each step in which the GPU is busy is an estimate. The conclusion holds as long as a launch takes longer than its kernel: many short kernels leave the GPU waiting for the CPU; notebook 12 shows why.

# %% [markdown]
# ## Summary
#
# - When a GPU is idle, check the time inside `next()` of the DataLoader iterator first.
# - For I/O-bound items, add workers: each worker waits for its own item, so more items load at the same time. For CPU-bound items, the number of cores is the limit.
# - Before you optimise the loader, measure the two bounds. If *model only* is no faster than your loop, continue with [07 Host to device](07_host_to_device.ipynb) or [12 Launches, fusion and graphs](12_launch_fusion_graphs.ipynb).

# %% tags=["card"]
L.card()
