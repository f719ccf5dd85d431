# %% [markdown]
# # 06 Formats and preprocessing: which work does every epoch repeat?
#
# Notebook [05](05_data_loading.ipynb) added workers until the loader kept up. Here the workers are busy, or wait for storage, and more of them do not help. So you change the work itself: which stage is slow, what can be done once instead of in every epoch, in which format the samples are stored, and how they are shuffled. In each experiment you write the important line, and count or measure what it saves.
#
# It takes 55 minutes and needs no GPU. Opens, reads, bytes and labels are *counted*, times are measured on your CPU, and the remote store has real files and a simulated clock. A virtual GPU stands in for a real one where batches are copied or augmented on it.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("06_formats_and_preprocessing")
L

# %% tags=["setup"]
import random
import struct
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from gpulab import synthetic
from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.copies import copying
from gpulab.lessons.labs.data import augmentation, broken_files, image_pipeline, jpeg_decoding, loading, page_photos
from gpulab.lessons.labs.data.formats import record_files, sample_formats, shard_epochs, sorted_rows, stream_order
from gpulab.lessons.labs.data.formats.counted_store import CountedStore
from gpulab.lessons.labs.steps import throughput
from gpulab.views.charts.drawing import plots

torch.set_num_threads(1)
scratch = tempfile.TemporaryDirectory()  # deleted when the kernel ends
folder = Path(scratch.name)

# %% [markdown]
# ## The symptom
#
# A model trains on random crops of 64 x 64 pixels, flipped at random. Its photographs are JPEG files of 512 x 512 pixels. Every epoch reads each file, decodes it, resizes it to 80 x 80, and cuts a crop out of it. Count the pixels.

# %% tags=["given"]
SIDE, CROP = page_photos.SIDE, page_photos.CROP  # 80 and 64 pixels
MEAN, STD = page_photos.MEAN, page_photos.STD  # of the values, to normalise them
files = synthetic.images(count=L.pick(tiny=64, lab=256), side=512)
with Image.open(files[0]) as image:
    decoded_pixels, used_pixels = image.width * image.height, CROP * CROP
print(f"each epoch decodes {decoded_pixels:,} pixels of a photograph; the model gets {used_pixels:,} of them")

# %% [markdown]
# ## Which stage is slow?
#
# ### 06.1 Time the stages of a pipeline
#
# This loader has four stages: read, decode (with the resize), augment, collate. Before you change anything, find out which one takes the time.

# %% tags=["predict"]
L.predict("stage")

# %% tags=["measure"]
seconds = {name: [] for name in ("read", "decode", "augment", "collate")}  # the durations of each stage


@contextmanager
def stage(name):
    """Append the time of a block to its list in `seconds`."""
    # <blank> time.perf_counter() before and after `yield`, which runs the block; append the difference to seconds[name]
    # was: yield
    start = time.perf_counter()
    yield
    seconds[name].append(time.perf_counter() - start)
    # </blank>


def load_batch(batch_files, generator):
    views = []
    for file in batch_files:
        with stage("read"):
            data = file.read_bytes()
        with stage("decode"):
            pixels = image_pipeline.decode_resized(data)
        with stage("augment"):
            views.append(image_pipeline.random_view(pixels, generator))
    with stage("collate"):
        return torch.stack(views)


for file in files:
    file.read_bytes()  # into the page cache
for start in range(0, len(files), 16):
    load_batch(files[start : start + 16], np.random.default_rng(start))
photos_per_call = {"read": 1, "decode": 1, "augment": 1, "collate": 16}
typical_s = {name: median(times or [0.0]) / photos_per_call[name] for name, times in seconds.items()}
slowest = max(typical_s, key=typical_s.get)
plots.bar_plot(
    f"The slowest stage: {slowest}",
    {name: 1000 * duration for name, duration in typical_s.items()},
    x="ms per photograph (median)",
    source=MEASURED,
)

# %% tags=["claim"]
decode_share = typical_s["decode"] / (sum(typical_s.values()) or 1)
display(L.reveal("stage"))
L.claim(
    "decoding and resizing take at least three quarters of the loading time",
    decode_share >= 0.75,
    after=decode_share,
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# So even if the other three stages took no time, loading would take at least three quarters as long as before. In a program that you profile, mark the stages by `with torch.profiler.record_function("decode"):`, or for Nsight Systems by `torch.cuda.nvtx.range("decode")`. PyTorch's profiler does not see into DataLoader workers, which are other processes: time the stages with `num_workers=0`.

# %% [markdown]
# ## Do it once
#
# ### 06.2 Decode and resize offline, keep the randomness online
#
# The result of decoding and resizing is the same in every epoch. So decode and resize once, and store the small images. The random part must stay in the loop: a crop that is stored is the same crop in every epoch.

# %% tags=["predict"]
L.predict("offline")

# %% tags=["measure"]
small_file = folder / "small.npy"
if not small_file.exists():
    np.save(small_file, np.stack([image_pipeline.decode_resized(file.read_bytes()) for file in files]))
small = np.load(small_file, mmap_mode="r")  # (files, 80, 80, 3) in uint8


def online(index, generator):
    return image_pipeline.random_view(image_pipeline.decode_resized(files[index].read_bytes()), generator)


def offline(index, generator):
    # <blank> a random view of the stored image: image_pipeline.random_view
    # was: return online(index, generator)
    return image_pipeline.random_view(small[index], generator)
    # </blank>


stored_views = [online(index, np.random.default_rng(index)) for index in range(len(files))]
LOADERS = {"online": online, "offline": offline, "crops stored, too": lambda index, generator: stored_views[index]}


def load_epoch(load, epoch):
    """Load a view of every photograph; the random choices depend on the epoch, too."""
    return [load(index, np.random.default_rng((epoch, index))) for index in range(len(files))]


cpu_ms, repeated = {}, {}
for name, load in LOADERS.items():
    cpu_ms[name] = 1000 * throughput.fastest_cpu_s(partial(load_epoch, load, 0), repeats=3) / len(files)
    first, second = load_epoch(load, 0), load_epoch(load, 1)
    repeated[name] = sum(torch.equal(one, other) for one, other in zip(first, second, strict=True)) / len(files)
stored_kb = {
    "online": sum(file.stat().st_size for file in files) / len(files) / 1000,
    "offline": small[0].nbytes / 1000,
    "crops stored, too": stored_views[0].nbytes / 1000,
}
tables.table_view(
    ("random view", "CPU ms per view", "kB stored", "views that repeat in epoch 2"),
    [(name, f"{cpu_ms[name]:.2f}", f"{stored_kb[name]:.0f}", f"{repeated[name]:.0%}") for name in LOADERS],
    below="CPU time measured here; repeated views counted.",
)

# %% tags=["same"]
L.same(load_epoch(online, 0), load_epoch(offline, 0))

# %% tags=["claim"]
display(L.reveal("offline"))
L.claim(
    "decoding and resizing once reduces the CPU time of a view to less than a fifth, and at most 5 % of the views "
    "repeat in the next epoch",
    cpu_ms["offline"] < 0.2 * cpu_ms["online"] and repeated["offline"] <= 0.05,
    before=cpu_ms["online"],
    after=cpu_ms["offline"],
    unit="ms of CPU time",
    source=MEASURED,
)

# %% [markdown]
# This has two costs. Decoded pixels take more bytes than JPEG: at 512 x 512 these images would take 786 kB each, seven times as much as their files. Here they take less, because they are small. And augmentations that zoom in, such as `RandomResizedCrop`, lose detail if the stored image is small: store it larger than the model's input.
#
# Check that the *seed* changes from epoch to epoch. A generator that is seeded with the index only gives the same views in every epoch, at full cost.

# %% [markdown]
# ## Formats
#
# ### 06.3 2,000 samples in five formats
#
# 2,000 samples of 1 KiB (256 numbers in float32) are stored as a file each, as a memory map, as eight tar shards (the format of WebDataset), as eight TFRecord shards, and as a Parquet file. Notebook 05 also read a tar archive in random order, for which the format is not made. Here all are read from start to end. (HDF5 is another such format; it needs `h5py`, and like Parquet it is one file that is read in chunks.)

# %% tags=["predict"]
L.predict("formats")

# %% [markdown]
# TFRecord is simple enough to write by hand. A frame has four parts: the length of the payload, a checksum of the length, the payload, and a checksum of the payload. The checksum is a *masked* CRC-32C; `record_files.masked_crc(data)` returns it as a number. Write the frame of one payload. The first line of the cell tests the CRC: its published value for the bytes `123456789` is `0xe3069283`.

# %% tags=["measure"]
print(hex(record_files.castagnoli_crc(b"123456789")))


def frame(payload):
    """Return a TFRecord frame: uint64 length, uint32 CRC of the length, payload, uint32 CRC of the payload."""
    length = struct.pack("<Q", len(payload))
    # <blank> join: length, its checksum as struct.pack("<I", masked_crc(length)), payload, its checksum in the same way
    # was: return payload
    checksums = [struct.pack("<I", record_files.masked_crc(data)) for data in (length, payload)]
    return length + checksums[0] + payload + checksums[1]
    # </blank>


rows = sorted_rows.labelled_rows(2000)  # (2000, 256) in float32: a label and 255 features
sample_formats.write_row_files(folder / "files", rows)
sample_formats.write_memory_map(folder / "memory map", rows)
sample_formats.write_tar_shards(folder / "tar shards", rows, shards=8)
sample_formats.write_record_shards(folder / "TFRecord shards", rows, shards=8, frame=frame)
sample_formats.write_parquet(folder / "Parquet", rows, groups=8)
costs = {name: sample_formats.read_cost(name, folder / name) for name in sample_formats.READERS}
sample_formats.format_table(costs)

# %% tags=["same"]
L.same(rows, costs["TFRecord shards"].rows)

# %% tags=["claim"]
plain_s, tar_s, record_s = (costs[name].wall_s for name in ("files", "tar shards", "TFRecord shards"))
display(L.reveal("formats"))
L.claim(
    "tar and TFRecord shards need 8 opens instead of 2,000; on this disk, tar is still not twice as fast as the files, "
    "and TFRecord is at least twice as fast as tar",
    [costs[name].opens for name in ("files", "tar shards", "TFRecord shards")] == [2000, 8, 8]
    and tar_s > 0.5 * plain_s
    and record_s <= 0.5 * tar_s,
    before=1000 * tar_s,
    after=1000 * record_s,
    unit="ms",
    names=("tar shards", "TFRecord shards"),
    source=MEASURED,
)

# %% [markdown]
# On a warm local disk, opening, reading and closing a small file takes about 20 µs, so fewer opens save little. What differs is the *parser*: Python's `tarfile`, which WebDataset uses as well, needs about as much time to parse the header of a member as the system needs to open, read and close a small file. A TFRecord frame adds 16 bytes, Parquet is decoded in C++, a row group at a time, and a memory map is not parsed at all. The order changes with the size of the samples: with 100 KB, we measured 3.1 GB/s for files, 1.7 for tar, 6.4 for TFRecord and 0.7 for Parquet. And compare all of it with 06.1: a few dozen microseconds per sample, where decoding takes milliseconds. For photographs on a local SSD, the format hardly matters. On a remote store it does (06.5).
#
# One thing costs more than the format: checksums. The reader above checks only those of the lengths. In pure Python, a CRC takes about 100 ns per byte, so checking the payloads would take many times longer than reading them. Libraries use a CPU instruction for it.
#
# ### 06.4 Shuffle what can only be read in order
#
# Shards are read from start to end, so the samples cannot be drawn in a fully random order. WebDataset, `tf.data` and Hugging Face's `IterableDataset` use a *shuffle buffer* instead: keep `size` samples. For each new sample, yield a random one of the buffer, and put the new one in its place. Write this generator. (Its samples are the `rows` of 06.3: after a restart of the kernel, run 06.3 first.)

# %% tags=["predict"]
L.predict("buffer")


# %% tags=["measure"]
def shuffle_buffer(stream, size, seed=0):
    """Yield the samples of a stream, mixed by a buffer of `size` samples."""
    generator = random.Random(seed)
    buffer = []
    # <blank> fill the buffer; then yield a random sample for each new one; at the end, yield the rest in random order
    # was: yield from stream
    for sample in stream:
        if len(buffer) < size:
            buffer.append(sample)
            continue
        place = generator.randrange(size)
        yield buffer[place]
        buffer[place] = sample
    generator.shuffle(buffer)
    yield from buffer
    # </blank>


labels = rows[:, 0].astype(int)  # the samples are sorted by label: 200 of each of ten
full = random.Random(0).sample(range(2000), 2000)
SIZES = (32, 100, 200, 500, 1000, 2000)
orders = {size: list(shuffle_buffer(range(2000), size)) for size in SIZES}
MEASURES = {
    "runs of equal labels": lambda order: stream_order.label_runs(labels[order]),
    "labels in a batch of 32": lambda order: stream_order.labels_per_batch(labels[order]),
    "accuracy after training": lambda order: sorted_rows.accuracy_after(rows, order),
}
mixing = {name: {size: measure(order) for size, order in orders.items()} for name, measure in MEASURES.items()}
of_full = {name: measure(full) for name, measure in MEASURES.items()}
LABELS = "labels in a batch of 32"
enough = next((size for size in SIZES if mixing[LABELS][size] >= 8), None)


def share(size, name):
    """Return a measure at this buffer size, in % of a full shuffle."""
    return 100 * mixing[name][size] / of_full[name]


plots.line_plot(
    f"500 samples: {share(500, 'runs of equal labels'):.0f} % of the runs, {share(500, LABELS):.0f} % of the labels",
    {name: {size: share(size, name) for size in SIZES} for name in MEASURES},
    x="buffer, samples of 2,000",
    y="% of a full shuffle",
    source=MEASURED,
    log_x=True,
)

# %% tags=["claim"]
accuracy = mixing["accuracy after training"]
display(L.reveal("buffer", enough, "samples"))
L.claim(
    "for data sorted by label, a buffer of a quarter of the data gives at least 80 % of the label runs of a full "
    "shuffle, but an accuracy that is at least 20 points lower; with half of the data, it is at most 5 points lower",
    mixing["runs of equal labels"][500] >= 0.8 * of_full["runs of equal labels"]
    and accuracy[500] <= of_full["accuracy after training"] - 0.2
    and accuracy[1000] >= of_full["accuracy after training"] - 0.05,
    before=accuracy[500],
    after=accuracy[1000],
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# The count of label runs is misleading: neighbours differ even with a small buffer, but each batch still comes from a window that moves over the stored order. With a buffer of 500, a batch has 6 of the 10 labels on average, and after training the network recognises the last labels (97 % and more of the last two in our run), but few samples of the first ones (5 to 38 % of the first four). Half of a large dataset does not fit into memory, so mix the stream before the buffer sees it. There are two ways: read the shards in random order (`WebDataset(urls, shardshuffle=100).shuffle(1000)` does this, and adds a buffer), and shuffle the samples *once, before you write the shards*. Compare them at a buffer of 500.

# %% tags=["worked"]
shards = np.arange(2000).reshape(20, 100)  # 20 shards of 100 samples
written_mixed = np.random.default_rng(0).permutation(2000).reshape(20, 100)
in_random_order = np.random.default_rng(1).permutation(20)
STREAMS = {
    "sorted": shards,
    "sorted, shards in random order": shards[in_random_order],
    "shuffled once, shards in random order": written_mixed[in_random_order],
}
for name, stream in STREAMS.items():
    order = list(shuffle_buffer(stream.ravel().tolist(), 500))
    print(f"{name:38} {stream_order.labels_per_batch(labels[order]):4.1f} labels in a batch")

# %% [markdown]
# ### 06.5 A remote store: round trips
#
# Now the same 2,000 files are in a remote store. Each request takes 20 ms until the first byte arrives, and bytes arrive at 100 MB/s. The files are real, the clock is simulated: it adds 20 ms for each open and each read, and the transfer time of the bytes. (Object stores such as S3 have no open; many clients ask for the size of the object first, which is a request as well.)

# %% tags=["predict"]
L.predict("store")


# %% [markdown]
# Compact the files: collect them into shards of at least `shard_bytes`. Write how the files are grouped; the cell then joins the files of each list into one shard, and reads all shards through the simulated store.

# %% tags=["measure"]
def group_files(sizes, shard_bytes):
    """Return lists of file names; the files of each list, except the last, have at least `shard_bytes` together."""
    # <blank> start a new list as soon as the current one has shard_bytes
    # was: return [[name] for name in sizes]
    groups, filled = [[]], 0
    for name, size in sizes.items():
        if filled >= shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups
    # </blank>


def read_remote(files_folder, piece_bytes=None):
    """Read all files of a folder from the simulated store, one after the other: as a whole, or in pieces."""
    store = CountedStore(files_folder, latency_s=0.020, bytes_per_s=100e6)
    for path in sorted(files_folder.iterdir()):
        with store.open(path.name, piece_bytes or 1 << 20) as file:
            while piece_bytes and file.read(piece_bytes):
                pass
            file.read()
    return store


single = read_remote(folder / "files")
sizes = {path.name: path.stat().st_size for path in sorted((folder / "files").iterdir())}
compacted = {}
for kib in (4, 16, 64, 256, 1024):
    target = Path(tempfile.mkdtemp(dir=folder))
    for index, names in enumerate(group_files(sizes, kib * 1024)):
        (target / f"{index:06d}.f32").write_bytes(b"".join((folder / "files" / name).read_bytes() for name in names))
    compacted[kib] = read_remote(target)
in_pieces = read_remote(target, piece_bytes=8192)
for name, store in {"single files": single, "1 MiB shards": compacted[1024], "in 8 KiB pieces": in_pieces}.items():
    print(f"{name:16} {store.requests:5,} requests, {store.clock_s:6.2f} s")
print(f"single files, 32 requests at a time: {single.waiting_s / 32 + single.transfer_s:6.2f} s")
plots.line_plot(
    f"Up to 1 MiB per file, an epoch mostly waits: {compacted[1024].waiting_s:.2g} of {compacted[1024].clock_s:.2g} s",
    {
        "waiting for round trips": {1: single.waiting_s} | {kib: store.waiting_s for kib, store in compacted.items()},
        "receiving bytes": {1: single.transfer_s} | {kib: store.transfer_s for kib, store in compacted.items()},
    },
    x="KiB per file",
    y="seconds per epoch",
    source=SIMULATED,
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
display(L.reveal("store", single.clock_s, "s"))
L.claim(
    "with round trips of 20 ms, 2,000 files of 1 KiB take 80 s, and less than 0.1 % of it is transfer; in shards of "
    "1 MiB, the same bytes take less than 0.2 s",
    80 <= single.clock_s < 81
    and single.transfer_s < 0.001 * single.clock_s
    and compacted[1024].clock_s < 0.2
    and len({round(store.transfer_s, 6) for store in compacted.values()}) == 1,  # all bytes are still there
    before=single.clock_s,
    after=compacted[1024].clock_s,
    unit="s",
    source=SIMULATED,
)

# %% [markdown]
# A file should be so large that its transfer takes longer than its round trips: more than 2 x 20 ms x 100 MB/s = 4 MB here. Shards of WebDataset often have 1 GB. Look at the third line of the output, too: read in pieces of 8 KiB, the same shards take about 50 times as long, so check the buffer or block size of your client. The last line is for single files with 32 requests at a time (by workers, threads or asynchronous I/O, see notebook 05): it divides the waiting time by 32. That hides latency as well, but the store still answers 4,000 requests, and object stores charge for each.

# %% [markdown]
# ## Exercise: a shuffled epoch in few requests
#
# The samples are in 20 tar shards in the same remote store, sorted by label. Write `read_epoch(store, epoch)`, a generator that yields each sample of an epoch once, in another order in each epoch. `store.names` are the shards; `store.shard(name)` fetches all samples of a shard by two requests, an open and a read; `store.sample(index)` fetches one sample, by two requests as well. At most 512 samples may be in memory, and a batch of 32 must have at least 6.5 labels on average. **The target is 40 requests.**

# %% tags=["exercise"]
sample_formats.write_tar_shards(folder / "remote", rows, shards=20)
remote = shard_epochs.ShardStore(folder / "remote")


def read_epoch(store, epoch):
    # <blank> fetch the shards in random order, and pass their samples through shuffle_buffer
    # was: for index in random.Random(epoch).sample(range(store.count), store.count):
    # was:     yield store.sample(index)
    names = random.Random(epoch).sample(store.names, len(store.names))
    samples = (sample for name in names for sample in store.shard(name))
    yield from shuffle_buffer(samples, 400, seed=epoch)
    # </blank>


outcome = shard_epochs.check_epochs(read_epoch, remote)
print(f"{outcome.most_samples} samples in memory at most, {outcome.labels:.1f} labels in a batch")
print(outcome.problem or "both epochs are complete, mixed and different")
L.score("requests", outcome.score)

# %% tags=["claim"]
L.claim(
    "a well-mixed epoch of 2,000 samples needs 40 requests instead of 4,000, and at most 512 samples in memory",
    outcome.score == 40,
    before=4000,
    after=outcome.requests,
    unit="requests",
    source=COUNTED,
)

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 06.6 Augment image by image or in batches, on the CPU or on the GPU
#
# After 06.2, the CPU still has to compute the random views. "Augment in batches" is common advice. Write it with tensor operations on the whole batch, where each image still gets its own crop, flip and brightness. `pixels.unfold(2, crop, 1).unfold(3, crop, 1)` is a view of all possible crops: its shape is (images, 3, top, left, crop, crop), and nothing is copied until you index it.

# %% tags=["predict"]
L.predict("batched")


# %% tags=["measure"]
def augment(pixels, choices, crop):
    """Crop, flip, brighten and normalise a batch; every image has its own choices.

    `choices.top`, `.left`: where each crop begins. `.flip`: booleans. `.gain`: factors. Scale to 0-1 first: / 255.
    """
    # <blank> select the crops by index, flip some by torch.where, then multiply by the gain and normalise
    # was: return augmentation.augment_one_by_one(pixels, choices, crop)
    every_crop = pixels.unfold(2, crop, 1).unfold(3, crop, 1)
    crops = every_crop[torch.arange(len(pixels), device=pixels.device), :, choices.top, choices.left]
    crops = torch.where(choices.flip[:, None, None, None], crops.flip(3), crops)
    return (crops.float() / 255 * choices.gain[:, None, None, None] - MEAN) / STD
    # </blank>


one_by_one_ms, batched_ms = {}, {}
for crop in (8, 16, 32, 64, 128):
    pixels = augmentation.random_pixels(128, crop * 5 // 4)
    choices = augmentation.draw_choices(128, crop * 5 // 4, crop)
    for results, function in ((one_by_one_ms, augmentation.augment_one_by_one), (batched_ms, augment)):
        results[crop] = 1000 * throughput.fastest_cpu_s(partial(function, pixels, choices, crop), repeats=5)


def ratio(crop):
    """Return how many times as fast the batch is."""
    return one_by_one_ms[crop] / batched_ms[crop]


plots.line_plot(
    f"Batched: {ratio(8):.1f} times as fast at 8 pixels, {ratio(128):.1f} times at 128",
    {"one by one": one_by_one_ms, "batched": batched_ms},
    x="pixels per side",
    y="CPU ms per batch of 128",
    source=MEASURED,
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
one_by_one = augmentation.augment_one_by_one(pixels, choices, 128)
display(L.reveal("batched"), L.same(one_by_one, augment(pixels, choices, 128)))
L.claim(
    "on this CPU, batched operations augment images of 8 x 8 pixels at least four times as fast as one by one, and "
    "images of 128 x 128 pixels at most 1.3 times as fast",
    ratio(8) >= 4 and ratio(128) <= 1.3,
    before=ratio(8),
    after=ratio(128),
    unit="times as fast",
    names=("8 x 8", "128 x 128"),
    source=MEASURED,
)

# %% [markdown]
# For small images, most of the time goes into calling operators, and a batch needs few calls. For large images this no longer counts, and the batch has two disadvantages. One image stays in the CPU's cache from one operation to the next; a batch of 25 MB does not. And each operation writes a new tensor of 25 MB, for which the allocator often gets new memory from the operating system, one page fault for every 4 KiB: half of the CPU time in our runs. In-place operations (`div_`, `mul_`, `sub_`) avoid that: 16 instead of 46 ms per batch, and still not faster than one by one. On a GPU, the number of kernels counts: one by one, each image needs kernels of its own. The next cell counts them. Then it asks where to augment: in two workers on the CPU, or on the GPU. Workers and GPU work at the same time, so the slower side sets the step. Write that model.

# %% tags=["predict"]
L.predict("place")


# %% tags=["measure"]
def step_ms(cpu_ms, gpu_ms, workers):
    """Return the time of a step: workers prepare the next batches while the GPU trains on the current one."""
    # <blank> the longer of the GPU's time and of the CPU time divided by the workers
    # was: return 0.0
    return max(cpu_ms / workers, gpu_ms)
    # </blank>


BATCH, VIEW, STORED = 128, 128, 160
pixels, choices = augmentation.random_pixels(BATCH, STORED), augmentation.draw_choices(BATCH, STORED, VIEW)
MODELS = {
    "small model": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    ),
    "large model": lambda: page_photos.image_search_network(128),
}


def record_training(name, make_model, on_gpu):
    """Record training steps on batches in GPU memory, augmented there or not; return ms per step."""
    with L.gpu(name):
        model, targets = make_model().to("cuda"), torch.zeros(BATCH, dtype=torch.long, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        stored, gpu_choices = pixels.to("cuda"), choices.to("cuda")
        ready = torch.zeros(BATCH, 3, VIEW, VIEW, device="cuda")
        for _ in range(8):
            views = augment(stored, gpu_choices, VIEW) if on_gpu else ready
            loss = functional.cross_entropy(model(views), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return throughput.step_ms(gpulab.runs[name])


kernels = {}
for name, function in {"one by one": augmentation.augment_one_by_one, "batched": augment}.items():
    with L.gpu(name):
        function(pixels.to("cuda"), choices.to("cuda"), VIEW)
    kernels[name] = len(gpulab.runs[name].events.query("kind == 'kernel'"))
print(f"kernels for {BATCH} images: one by one {kernels['one by one']:,}, batched {kernels['batched']:,}")

augment_cpu_ms = 1000 * throughput.fastest_cpu_s(
    partial(augmentation.augment_one_by_one, pixels, choices, VIEW), repeats=3
)
steps = {}
for name, make_model in MODELS.items():
    train_ms = record_training(f"{name}, views ready", make_model, on_gpu=False)
    both_ms = record_training(f"{name}, augmented", make_model, on_gpu=True)
    steps[name] = step_ms(augment_cpu_ms, train_ms, workers=2), step_ms(0, both_ms, workers=2)
tables.table_view(
    ("ms per step", "augmented in two workers", "augmented on the GPU"),
    [(name, f"{cpu:.1f}", f"{gpu:.1f}") for name, (cpu, gpu) in steps.items()],
    below=f"By the model, from CPU times measured here and GPU times: {gpulab.runs['batched'].source}.",
)

# %% tags=["claim"]
(small_cpu, small_gpu), (large_cpu, large_gpu) = steps["small model"], steps["large model"]
display(L.reveal("place"))
L.claim(
    "augmenting on the GPU makes a step at least twice as fast if the CPU is the bottleneck, and less than 5 % longer "
    "if the GPU is",
    0 < small_gpu < 0.5 * small_cpu and large_gpu < 1.05 * large_cpu and step_ms(8, 5, 2) == 5,
    before=small_cpu,
    after=small_gpu,
    unit="ms per step of the small model",
    source=SIMULATED,
)

# %% [markdown]
# You will read both pieces of advice: augment on the CPU to relieve the GPU, and augment on the GPU to relieve the CPU. Which one is right depends on which of them is idle, but the two cases are not symmetric. Crop, flip and brightness are a few passes over the batch, and a GPU has far more memory bandwidth than a CPU core. So a busy GPU loses little, and busy workers gain a lot. For decoding this need not hold: it is much more work, so measure it.
#
# In libraries: `torchvision.transforms.v2` accepts batches on a GPU, but draws *one* crop for the whole batch. `kornia.augmentation` draws one for each image, unless you set `same_on_batch=True`. NVIDIA DALI runs the whole pipeline: `fn.decoders.image(jpegs, device="mixed")` decodes on the GPU, and `fn.crop_mirror_normalize` crops, flips and normalises.
#
# ### 06.7 Copy uint8, normalise on the device
#
# A decoded image has one byte per value. Many loaders normalise it to float32 in the worker, and copy the floats to the GPU. Copy the bytes instead, and normalise on the GPU. (The batch `pixels` is that of 06.6: after a restart of the kernel, run 06.6 first.)

# %% tags=["measure"]
pixels = augmentation.random_pixels(128, 160)


def normalise(pixels):
    return (pixels.float() / 255 - MEAN) / STD


def to_device(pixels, device="cuda"):
    """Return the normalised batch on the device."""
    # <blank> first copy the bytes to the device, then normalise there
    # was: return normalise(pixels).to(device)
    return normalise(pixels.to(device))
    # </blank>


for name, move in {"float32": lambda batch: normalise(batch).to("cuda"), "uint8": to_device}.items():
    with L.gpu(name):
        move(pixels)
copied = {
    name: sum(copy.bytes for copy in copying.host_device_copies(gpulab.runs[name])) for name in ("float32", "uint8")
}
print(f"copied to the GPU: {copied['float32']:,} bytes in float32, {copied['uint8']:,} bytes in uint8")

# %% tags=["claim"]
display(L.same(normalise(pixels), to_device(pixels, "cpu")))
L.claim(
    "a batch in uint8 copies exactly a quarter of the bytes of the batch in float32",
    copied["float32"] == 4 * copied["uint8"],
    before=copied["float32"] / 1e6,
    after=copied["uint8"] / 1e6,
    unit="MB",
    source=gpulab.runs["uint8"],
)

# %% [markdown]
# Nothing is lost: float32 adds no information to 8 bits, and the device does the same arithmetic (up to rounding). Workers gain as well: they compute less, and pass a quarter of the bytes through shared memory.
#
# ### 06.8 Class indices instead of one-hot vectors
#
# A one-hot vector has a number for each class, and all but one are zero. The loss and the first layer of a model can use the index instead.

# %% tags=["measure"]
CLASSES, WIDTH, SAMPLES = 1000, 64, 256
torch.manual_seed(0)
targets, scores = torch.randint(0, CLASSES, (SAMPLES,)), torch.randn(SAMPLES, CLASSES)
weights = torch.randn(CLASSES, WIDTH)


def one_hot(indices):
    return functional.one_hot(indices, CLASSES).float()


def make_target(indices):
    """Return the target for functional.cross_entropy."""
    # <blank> cross_entropy takes indices
    # was: return one_hot(indices)
    return indices
    # </blank>


def look_up(indices):
    """Return the row of `weights` for each index."""
    # <blank> functional.embedding(indices, weights)
    # was: return one_hot(indices) @ weights
    return functional.embedding(indices, weights)
    # </blank>


flops = {}
for name, function in {"one-hot": lambda: one_hot(targets) @ weights, "indices": lambda: look_up(targets)}.items():
    with FlopCounterMode(display=False) as counter:
        function()
    flops[name] = counter.get_total_flops()
target_bytes = {"one-hot": one_hot(targets).nbytes // SAMPLES, "indices": make_target(targets).nbytes // SAMPLES}
tables.table_view(
    ("labels as", "bytes per sample", "FLOP of the first layer"),
    [(name, f"{target_bytes[name]:,}", f"{flops[name]:,}") for name in flops],
    below="Counted here.",
)

# %% tags=["claim"]
display(
    L.same(
        (functional.cross_entropy(scores, one_hot(targets)), one_hot(targets) @ weights),
        (functional.cross_entropy(scores, make_target(targets)), look_up(targets)),
    )
)
L.claim(
    "for 1,000 classes, an index has 8 bytes instead of 4,000, gives the same loss, and selects the row of a layer "
    "without arithmetic",
    target_bytes == {"one-hot": 4000, "indices": 8} and flops["indices"] == 0 < flops["one-hot"],
    before=target_bytes["one-hot"],
    after=target_bytes["indices"],
    unit="bytes per sample",
    source=COUNTED,
)

# %% [markdown]
# On disk, an index up to 255 needs one byte; convert it to int64 on the device (`cross_entropy` also takes uint8, but `embedding` does not). Vectors of probabilities remain necessary where a sample mixes several labels, as with Mixup. Label smoothing does not need them: `cross_entropy(..., label_smoothing=0.1)` takes indices.
#
# ### 06.9 Broken files: find them once
#
# Large collections contain files that cannot be decoded. Many dataset classes catch the error and return the next sample instead, in every epoch again. Here one file in ten is damaged: half of these are truncated, the others have no JPEG header. Write the check that builds an index of good files.

# %% tags=["predict"]
L.predict("broken")

# %% tags=["measure"]
collection = broken_files.write_damaged_copies(synthetic.images(count=60, side=256), folder / "collection")


def is_good(file):
    """Return whether a file can be decoded."""
    # <blank> try Image.open(file) and image.load(), which decodes all of it; both raise OSError
    # was: return True
    try:
        with Image.open(file) as image:
            image.load()
    except OSError:
        return False
    return True
    # </blank>


def passes_verify(file):
    try:
        with Image.open(file) as image:
            image.verify()
    except OSError:
        return False
    return True


index = [file for file in collection if is_good(file)]  # store it as a file next to the data
verified = [file for file in collection if passes_verify(file)]
epochs = {
    name: [broken_files.read_epoch_of_files(selection) for _ in range(2)]
    for name, selection in {"no index": collection, "verify()": verified, "index": index}.items()
}
tables.table_view(
    ("files", "files listed", "failed decodes in epoch 1", "in epoch 2", "samples that come twice"),
    [
        (name, len(selection), first.failures, second.failures, second.repeats)
        for (name, (first, second)), selection in zip(epochs.items(), (collection, verified, index), strict=True)
    ],
    below="Counted here.",
)

# %% tags=["claim"]
failures = {name: second.failures for name, (_, second) in epochs.items()}
display(L.reveal("broken"))
L.claim(
    "an index of the files that can be decoded leaves no failed decode in later epochs; Image.verify() does not find "
    "the truncated files",
    failures == {"no index": 6, "verify()": 3, "index": 0} and len(index) == 54,
    before=failures["no index"],
    after=failures["index"],
    unit="failed decodes per epoch",
    source=COUNTED,
)

# %% [markdown]
# The last column shows a second problem: in every epoch, the model trains twice on the file after each damaged one. And a caught exception hides how many samples are lost; the index shows it.
#
# ### 06.10 JPEG: threads, processes, and fewer pixels
#
# Suppose you must decode online. Python threads share a lock, the GIL, but C code can release it while it computes. Does Pillow? The next cell counts how often another thread gets the lock while a function runs. (Normally, a thread that waits for the lock asks for it after 5 ms, and the running thread gives it up. The cell switches this off while it counts.) Then load the files with two threads.

# %% tags=["predict"]
L.predict("threads")


# %% tags=["measure"]
def load_all(data, threads):
    """Load all items of a dataset with this number of threads, in order."""
    # <blank> map data.__getitem__ over range(len(data)) by a ThreadPoolExecutor
    # was: return [data[index] for index in range(len(data))]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(data.__getitem__, range(len(data))))
    # </blank>


decode_only, with_python = (jpeg_decoding.DecodedFiles(files, python_s=cost_s) for cost_s in (0.0, 0.004))
turns = {
    "Pillow decodes a file": jpeg_decoding.count_gil_turns(lambda: decode_only[0]),
    "Python computes for 4 ms": jpeg_decoding.count_gil_turns(lambda: loading.burn_cpu(0.004)),
}
for name, count in turns.items():
    print(f"{name:26} another thread gets the GIL {count} times")
in_threads = jpeg_decoding.DecodedFiles(files)
loaded = load_all(in_threads, threads=2)
rates = {
    name: [
        jpeg_decoding.files_per_s(partial(load_all, data, 1), len(files)),
        jpeg_decoding.files_per_s(partial(load_all, data, 2), len(files)),
        max(jpeg_decoding.loader_files_per_s(DataLoader(data, batch_size=4, num_workers=2)) for _ in range(2)),
    ]
    for name, data in {"decode only": decode_only, "decode, and 4 ms of Python": with_python}.items()
}
tables.table_view(
    ("files per second", "one thread", "two threads", "two processes"),
    [(name, *(f"{rate:.0f}" for rate in line)) for name, line in rates.items()],
    below="Measured here; compare them only if two cores are idle.",
)

# %% tags=["same"]
L.same([decode_only[index] for index in range(len(files))], loaded)

# %% tags=["claim"]
display(L.reveal("threads"))
L.claim(
    "two threads decode the files; another thread gets the GIL while Pillow decodes, and never while Python computes",
    len(in_threads.threads) == 2 and turns["Pillow decodes a file"] > 0 and turns["Python computes for 4 ms"] == 0,
    before=turns["Python computes for 4 ms"],
    after=turns["Pillow decodes a file"],
    unit="turns",
    names=("Python", "Pillow"),
    source=COUNTED,
)


# %% [markdown]
# The rates depend on how busy the cores are. In all our runs, two threads decoded more files per second than two processes, which also have to send their results to the main process. With 4 ms of Python code per file, processes were faster, because only one thread at a time runs Python. So use threads if loading an item is C code that releases the GIL, and processes (the workers of a `DataLoader`) if it runs Python code of your own.
#
# Less work is better than more workers. JPEG stores DCT coefficients (spatial frequencies) of blocks of 8 x 8 pixels. From these, a decoder can compute an image of 1/2, 1/4 or 1/8 of the width and height directly. `image.draft(mode, size)` selects the smallest of these that is at least as large as `size`; `resize` does the rest.

# %% tags=["measure"]
def decode_reduced(file):
    """Decode a file to 80 x 80 pixels."""
    with Image.open(file) as image:
        # <blank> let the decoder reduce the image: image.draft("RGB", (SIDE, SIDE))
        # was: pass
        image.draft("RGB", (SIDE, SIDE))
        # </blank>
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE)))


full_ms, reduced_ms = (
    1000 * throughput.fastest_cpu_s(lambda decode=decode: [decode(file) for file in files], repeats=5) / len(files)
    for decode in (page_photos.decode_image, decode_reduced)
)
differences = [
    np.abs(page_photos.decode_image(file).astype(float) - decode_reduced(file)).mean() for file in files[:16]
]
print(f"{full_ms:.2f} ms of CPU time per file at full size, {reduced_ms:.2f} ms reduced")
print(f"the pixels differ by {np.mean(differences):.1f} of 255 on average")

# %% tags=["claim"]
L.claim(
    "decoding a JPEG of 512 x 512 pixels at a quarter of its width and height takes less than 70 % of the CPU time, "
    "and changes a pixel by less than 2 of 255 on average",
    reduced_ms < 0.7 * full_ms and np.mean(differences) < 2,
    before=full_ms,
    after=reduced_ms,
    unit="ms of CPU time",
    source=MEASURED,
)

# %% [markdown]
# A quarter of the width and height is a sixteenth of the pixels, but decoding is not sixteen times as fast: all compressed bytes must still be read and decoded (Huffman coding). `image.thumbnail(size)` calls `draft` for you.
#
# A GPU can decode JPEG with NVIDIA's nvJPEG library: through DALI (06.6), or by `decode_jpeg(data, device="cuda")` from `torchcodec.decoders` (0.16 or later), which replaces the function of the same name in `torchvision.io` (deprecated since torchvision 0.29). If you decode once (06.2), you do not need it.

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# Time the stages first; the slowest one sets the rate. What gives the same result in every epoch is done once: decode, resize, convert, check. What is random stays online, with a seed that changes. Choose the format for the storage: on a local disk the parser decides, on a remote store the number of requests. Mix the samples before you write shards, then read shards in random order through a buffer. And copy to the GPU ([07](07_host_to_device.ipynb)) what is stored: bytes and indices.

# %% tags=["card"]
L.card()
