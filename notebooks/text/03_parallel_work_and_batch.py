# %% [markdown]
# # 03 Parallel work and batch size: how much work should the GPU get at once?
#
# A GPU is fast when it can do many things in parallel. This notebook shows how to give it parallel work: larger batches, one operator instead of a loop, sequences of similar length, several models at once. It also shows where this stops helping, and which popular advice is wrong.
#
# The five experiments of the main part take about 45 minutes; four more are optional. Without a GPU, the CUDA cells run on a virtual H100: your code runs unchanged, and a model of that GPU estimates its times. Counts (operators, arithmetic, tokens, bytes) are exact on any machine. Each claim names the source of its numbers in brackets.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("03_parallel_work_and_batch")
L

# %% tags=["setup"]
import pandas as pd
import torch
from torch import nn

from gpulab import synthetic
from gpulab.lessons import COUNTED, SIMULATED
from gpulab.lessons.labs.data import padding
from gpulab.lessons.labs.kernels import batch_size, gradient_noise
from gpulab.lessons.labs.steps import throughput

torch.set_num_threads(1)  # the CPU computations here are too small to gain from a second core
STEPS = L.pick(tiny=11, lab=12, full=60)


def network(width=64, norm=nn.Identity):
    """Four convolutions and a classifier, always with the same weights; `norm(channels)` creates a layer."""
    torch.manual_seed(0)
    sizes = [(3, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
    layers = [
        layer
        for in_channels, out_channels, stride in sizes
        for layer in (
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1),
            norm(out_channels),
            nn.ReLU(),
        )
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


# %% [markdown]
# ## The symptom
#
# A team trains this network on small images, on a GPU that is rented by the hour. The batch size is 8. It was chosen long ago, for a laptop, and nobody has questioned it since. (`micro_batches` is for experiment 03.3: the number of batches per update of the weights.)

# %% tags=["given"]
def train(batch, micro_batches=1):
    """Train for some steps of `micro_batches` batches of this size each; return the peak memory in bytes."""
    torch.cuda.reset_peak_memory_stats()
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images = torch.rand(batch, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            loss = nn.functional.cross_entropy(net(images), labels)
            (loss / micro_batches).backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated()


# %% [markdown]
# ## Batch size
#
# ### 03.1 Batch sizes from 8 upwards
#
# Each layer of a network runs as one *kernel* or a few: a kernel is a function that runs on the GPU. The program on the *host*, which is the CPU, has to launch each of them.
#
# Before you measure, predict the result. You learn more from a measurement if you have made a guess.

# %% tags=["predict"]
L.predict("many")

# %% [markdown]
# First measure the loop as the team runs it. `--virtual auto` uses your GPU, or a virtual one if there is none.

# %% tags=["measure"]
# %%gpuprofile --virtual auto small
small_bytes = train(8)

# %% [markdown]
# Read the first sentence of the report, and the table *Where the step time goes*; this course calls that table the *ledger*. Two of its lines need an explanation. *Operator dispatch*: PyTorch on the host selects the kernels for an operator. *Launch calls*: the host sends these kernels to the GPU.
#
# Run the next cell to see the question, replace `None` with a letter, and run it again.

# %% tags=["check"]
# <blank> the letter of your answer, for example "a"
# was: answer = None
answer = "b"
# </blank>
L.check("idle", answer)

# %% [markdown]
# The fix that the report suggests comes in a later lesson: a CUDA graph makes launches cheaper ([notebook 12](12_launch_fusion_graphs.ipynb)). Its other advice is simpler: give each launch more work. So run the same loop at seven batch sizes.
#
# The table has a row for each batch size. A *sample* is an image, and *us per kernel* is the time of one kernel. *Filled* is an upper limit for the share of multiprocessors (the 132 units of an H100 that work in parallel) that have work while kernels run. The chart marks the *knee*: the smallest batch that reaches 90 % of the best rate. Below the knee, a larger batch processes more images per second; above it, a larger batch only needs more memory.

# %% tags=["measure"]
SIZES = (8, 32, 64, 128, 512, 2048, 8192)
memory_bytes = {}
for size in SIZES:
    with L.gpu(f"batch {size}"):
        memory_bytes[size] = train(size)

sweep = {size: throughput.step_throughput(gpulab.runs[f"batch {size}"], size) for size in SIZES}
more_columns = {
    "step, ms": [f"{result.step_ns / 1e6:.2f}" for result in sweep.values()],
    "memory, MiB": [f"{size_bytes / 2**20:,.0f}" for size_bytes in memory_bytes.values()],
}
display(throughput.throughput_table({f"{size}": result for size, result in sweep.items()}, **more_columns))
gpulab.charts.batch_sweep({size: gpulab.runs[f"batch {size}"] for size in SIZES})

# %% tags=["claim"]
rates = {size: result.per_s for size, result in sweep.items()}
display(L.reveal("many", rates[512] / rates[8], "times as many images per second"))
# <blank> the rates beyond the knee: of 2,048 and of 8,192 images
# was: before, after = rates[8], rates[128]
before, after = rates[2048], rates[8192]
# </blank>
L.claim(
    "8 times the batch size, from 8 to 64, gives at least 3 times the rate; 4 times, from 2048 to 8192, at most 15 % "
    "more",
    rates[64] >= 3 * rates[8] and after <= 1.15 * before,
    before=before,
    after=after,
    unit="images/s",
    source=gpulab.runs["batch 8192"],
)


# %% [markdown]
# Look at the number of kernels: a step with 8192 images has about as many as a step with 8. Together with the step time, it shows the cause. If arithmetic were the limit, 64 images would take eight times as long as 8. They take about as long, because the time goes into *launching* kernels, and the number of launches does not depend on the batch size. Only the memory keeps growing, by about one MiB per image.
#
# Is there a knee only on GPUs? The next cell measures one core of your CPU with a smaller network, in CPU time of this process. A core has no multiprocessors to fill, but each call has a fixed cost here too.

# %% tags=["measure"]
def cpu_rate(batch):
    """Measure how many images per second one core trains on, in batches of this size."""
    net, images, labels = network(width=8), torch.rand(batch, 3, 16, 16), torch.randint(10, (batch,))
    return batch / throughput.fastest_cpu_s(
        lambda: nn.functional.cross_entropy(net(images), labels).backward(), repeats=L.pick(tiny=9, lab=30)
    )


cpu_rates = {batch: cpu_rate(batch) for batch in (1, 4, 16, 64, 256)}
for batch, rate in cpu_rates.items():
    print(f"batch {batch:>3}: {rate:>7,.0f} images/s")

# %% tags=["claim"]
# <blank> the rate with 64 images
# was: batched_rate = cpu_rates[1]
batched_rate = cpu_rates[64]
# </blank>
L.claim(
    "one CPU core trains on at least twice as many images per second in batches of 64 as one by one",
    batched_rate >= 2 * cpu_rates[1],
    before=cpu_rates[1],
    after=batched_rate,
    unit="images/s",
)

# %% [markdown]
# ## Loops
#
# ### 03.2 One operator instead of a loop
#
# A batch helps only if the code processes it in one call. Two kinds of loop often prevent this: a loop over the images of a batch, and a loop over the time steps of a signal. This experiment counts the operators that PyTorch calls; each operator runs as one kernel or a few.

# %% tags=["predict"]
L.predict("loop")

# %% tags=["worked"]
signal = torch.rand(32, 1, 256)  # 32 recordings of 256 time steps
weights = torch.rand(1, 1, 8)
images, net = torch.rand(32, 3, 16, 16), network(width=8)


def loop_over_images(images):
    """Call the network once per image."""
    return torch.cat([net(image[None]) for image in images])


def loop_over_time(signal):
    """Compute a weighted sum over 8 time steps, one position after the other."""
    return torch.cat([(signal[..., t : t + 8] * weights).sum(-1, keepdim=True) for t in range(249)], dim=-1)


# <blank> two functions: all_images(images) calls the network once; convolution(signal) calls nn.functional.conv1d
# was: all_images, convolution = loop_over_images, loop_over_time
def all_images(images):
    """Call the network once for all images."""
    return net(images)


def convolution(signal):
    """Compute the same sums as one convolution."""
    return nn.functional.conv1d(signal, weights)


# </blank>
image_loop, image_batch = (
    batch_size.count_work(lambda function=function: function(images)) for function in (loop_over_images, all_images)
)
time_loop, time_batch = (
    batch_size.count_work(lambda function=function: function(signal)) for function in (loop_over_time, convolution)
)
print(f"32 images: {image_loop.ops} operators in a loop, {image_batch.ops} in one call")
print(f"249 time steps: {time_loop.ops} operators in a loop, {time_batch.ops} in one call")
L.same([loop_over_images(images), loop_over_time(signal)], [all_images(images), convolution(signal)])

# %% tags=["claim"]
images_64 = torch.cat([images, images])
batch_of_64 = batch_size.count_work(lambda: all_images(images_64))
display(L.reveal("loop", batch_of_64.ops / image_batch.ops, "times the operators"))
L.claim(
    "one call of the network needs as many operators for 64 images as for 32, and less than a tenth of those of a loop",
    batch_of_64.ops == image_batch.ops
    and image_batch.ops < image_loop.ops / 10
    and time_batch.ops < time_loop.ops / 10,
    before=image_loop.ops,
    after=image_batch.ops,
    unit="operators",
    source=COUNTED,
)

# %% [markdown]
# ## Simulating a larger batch
#
# ### 03.3 Gradient accumulation: 64 images at once, 8 times 8, or 8
#
# If a batch of 64 does not fit into memory, you can accumulate the gradients of eight batches of 8 before you update the weights. Guides often say that this keeps the GPU as busy as the large batch would. Test it. In the table, *8 x 8* stands for 8 batches of 8 images for each update.

# %% tags=["predict"]
L.predict("accumulate")

# %% tags=["measure"]
# <blank> accumulate 8 batches of 8 images
# was: batch, micro_batches = 64, 1
batch, micro_batches = 8, 8
# </blank>
with L.gpu("accumulated"):
    train(batch, micro_batches)

accumulated = throughput.step_throughput(gpulab.runs["accumulated"], batch * micro_batches)
variants = {"1 x 8": sweep[8], f"{micro_batches} x {batch}": accumulated, "1 x 64": sweep[64]}
display(throughput.throughput_table(variants))
L.reveal("accumulate", accumulated.per_s / sweep[8].per_s, "times the rate of a batch of 8")


# %% [markdown]
# An update now needs about nine times as many kernels: those of eight small batches, and those that add up the gradients. Each kernel is as short as before and fills as little of the GPU. Accumulation saves only the optimizer update, which runs once instead of eight times, and the gradient exchange if you train on several GPUs.
#
# Is it useless? No: its gradient *is* the gradient of the large batch. Verify that first. Then count the arithmetic of the largest single operator: if accumulation gave the GPU larger batches to work on, this operator would be as large as with 64 images.

# %% tags=["same"]
def gradients(net, images, labels, parts=1):
    """Compute the gradients of a batch in this many parts, and add them up."""
    net.zero_grad()
    for image_part, label_part in zip(images.chunk(parts), labels.chunk(parts), strict=True):
        share = len(label_part) / len(labels)  # the loss is a mean over its part
        (nn.functional.cross_entropy(net(image_part), label_part) * share).backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


torch.manual_seed(1)
images, labels = torch.rand(64, 3, 8, 8), torch.randint(10, (64,))
L.same(gradients(network(8), images, labels), gradients(network(8), images, labels, parts=8))

# %% tags=["claim"]
net = network(8)
of_8 = batch_size.count_work(lambda: gradients(net, images[:8], labels[:8]))
of_64 = batch_size.count_work(lambda: gradients(net, images, labels))
in_parts = batch_size.count_work(lambda: gradients(net, images, labels, parts=micro_batches))
L.claim(
    "8 batches of 8 do the same arithmetic as one batch of 64, but their largest operator is only an eighth of the "
    "size",
    in_parts.flops == of_64.flops and in_parts.largest_flops == of_8.largest_flops == of_64.largest_flops / 8,
    before=of_64.largest_flops,
    after=in_parts.largest_flops,
    unit="FLOP in the largest operator",
    source=COUNTED,
)


# %% [markdown]
# Guides divide each loss by the number of parts, which is right only if all parts have the same size. The last part of a dataset is often smaller, and so is a part with more padding: weight each loss by the number of samples (or tokens) that it averages over, divided by the number in the whole batch, as above. The next cell shows it with 64 images in parts of 10, and 4 at the end. Under `DistributedDataParallel`, also run all parts but the last within `model.no_sync()`; otherwise the ranks exchange gradients after each part.

# %% tags=["claim"]
def divided_by_parts(net, images, labels, parts):
    """The same, with each loss divided by the number of parts."""
    net.zero_grad()
    chunks = list(zip(images.chunk(parts), labels.chunk(parts), strict=True))
    for image_part, label_part in chunks:
        (nn.functional.cross_entropy(net(image_part), label_part) / len(chunks)).backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


def error(computed):
    """Return the largest difference from the gradient of the whole batch, relative to its largest value."""
    whole = torch.cat([gradient.flatten() for gradient in gradients(network(8), images, labels)])
    return float((torch.cat([gradient.flatten() for gradient in computed]) - whole).abs().max() / whole.abs().max())


divided_error = error(divided_by_parts(network(8), images, labels, 7))
# <blank> the same seven parts, with the function that weights each loss
# was: weighted_error = divided_error
weighted_error = error(gradients(network(8), images, labels, parts=7))
# </blank>
L.claim(
    "in parts of unequal size, dividing each loss by the number of parts changes the gradient by more than 1 % of its "
    "largest value; weighting by size does not",
    divided_error > 0.01 and weighted_error < 1e-4,
    before=divided_error,
    after=weighted_error,
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# ### 03.4 Micro-batches and BatchNorm
#
# For memory, accumulation is a real fix. A batch that is processed in small parts, *micro-batches*, stores the intermediate results (*activations*) of only one part for the backward pass.

# %% tags=["claim"]
# <blank> eight micro-batches
# was: parts = 1
parts = 8
# </blank>
batch_bytes = batch_size.peak_saved_bytes(lambda: gradients(net, images, labels))
parts_bytes = batch_size.peak_saved_bytes(lambda: gradients(net, images, labels, parts))
L.claim(
    "8 micro-batches store an eighth of the activations of the whole batch, to within 1 %",
    abs(8 * parts_bytes / batch_bytes - 1) < 0.01,
    before=batch_bytes,
    after=parts_bytes,
    unit="bytes",
    source=COUNTED,
)

# %% [markdown]
# The gradients were equal because this network processes each image independently. Many image networks contain a layer that does not: BatchNorm normalises each image by the mean and variance of its batch.

# %% tags=["predict"]
L.predict("norm")


# %% tags=["claim"]
def gradient_difference(norm):
    """Return how far the gradients of a batch and of its eight parts differ, relative to the largest value."""
    pairs = zip(
        gradients(network(8, norm), images, labels),
        gradients(network(8, norm), images, labels, parts=8),
        strict=True,
    )
    of_batch, of_parts = (torch.cat([gradient.flatten() for gradient in side]) for side in zip(*pairs, strict=True))
    return float((of_batch - of_parts).abs().max() / of_batch.abs().max())


def group_norm(channels):
    """GroupNorm: mean and variance of groups of channels, within one image."""
    return nn.GroupNorm(4, channels)


with_batch_norm = gradient_difference(nn.BatchNorm2d)
# <blank> a normalisation that uses the values of one image only; norm(channels) must return the layer
# was: norm = nn.BatchNorm2d
norm = group_norm
# </blank>
with_other_norm = gradient_difference(norm)
display(L.reveal("norm", with_batch_norm, "%"))
L.claim(
    "in 8 parts, gradients change by more than 2 % of the largest with BatchNorm, by less than 0.1 % with GroupNorm",
    with_batch_norm > 0.02 and with_other_norm < 0.001,
    before=with_batch_norm,
    after=with_other_norm,
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# A layer that normalises each image on its own, such as GroupNorm, does not have this problem.

# %% [markdown]
# ## Which batch size should you use?
#
# ### 03.5 Small, medium, large: a table from your own sweep
#
# Many articles list the advantages of small, medium and large batches. The next cell makes such a table with numbers. Rate and memory come from your sweep. The number of updates is simple arithmetic; each update is an opportunity to learn, so more is better. The gradient noise is arithmetic too: like the error of any average, it falls with the square root of the batch size.

# %% tags=["measure"]
sizes = {"small": 32, "medium": 128, "large": 2048}
table = {
    "images per second": {name: round(rates[size]) for name, size in sizes.items()},
    "updates per million images": {name: round(1e6 / size) for name, size in sizes.items()},
    "memory, MiB": {name: round(memory_bytes[size] / 2**20) for name, size in sizes.items()},
    "gradient noise, small = 1": {name: round((32 / size) ** 0.5, 2) for name, size in sizes.items()},
}
# <blank> all rows of the table: tuple(table)
# was: rows = ("images per second", "gradient noise, small = 1")
rows = tuple(table)
# </blank>
best = {}
for row in rows:
    more_is_better = row in ("images per second", "updates per million images")
    best[row] = (max if more_is_better else min)(sizes, key=table[row].get)
best_column = [best.get(row, "-") for row in table]
pd.DataFrame(table, dtype=object).T.map("{:,}".format).assign(best=best_column)

# %% tags=["claim"]
L.claim(
    "no size is best at everything: large batches win in rate and gradient noise, small ones in memory and updates",
    best_column == ["large", "small", "small", "large"],
    before=memory_bytes[32] / 2**20,
    after=memory_bytes[2048] / 2**20,
    unit="MiB",
    names=("memory, small", "memory, large"),
    source=gpulab.runs["batch 2048"],
)

# %% [markdown]
# Start with the row that matters most to you. Below the knee, increase the batch size: it costs memory, and you get more images per second. The number of updates falls, too, so adapt the learning rate, and compare the loss after the same time, not the images per second (notebook [04](04_large_batches.ipynb)). At the knee, stop, unless a larger batch helps learning.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text. Each of them needs only the first two code cells of this notebook.

# %% [markdown]
# ### 03.6 Padding, and a growing batch size
#
# Texts have different lengths, but a batch is rectangular: each text is padded to the longest one of its batch. The model also computes on the padding.

# %% tags=["predict"]
L.predict("padding")

# %% tags=["reveal"]
lengths = [len(text) for text in synthetic.texts(4096)]
BUDGET = 4096  # maximum number of tokens per batch, padding included

random_batches = padding.padding_cost(lengths, padding.random_batches(lengths, 32))
bucketed = padding.padding_cost(lengths, padding.bucketed_batches(lengths, 32))
for name, padded in (("random", random_batches), ("bucketed", bucketed)):
    print(f"{name:>10}: {padded}")
L.reveal("padding", random_batches.padding_frac, "%")


# %% [markdown]
# *Buckets* are batches of similar lengths: a pool of 512 random texts is sorted by length and cut into batches. This removes most of the padding. But the largest batch still has 32 rows of 512 tokens and needs the memory for them, while a batch of short texts uses little of the GPU.
#
# Your turn: fill each batch up to a *token budget* instead of a number of texts, so that it holds many short texts or a few long ones. (In training, you would then shuffle the batches.) The whole rectangle counts, padding included. The texts are sorted by length, so the current text is always the longest one of its batch. `L.hint("budget")`, in a new cell, gives a hint; each further call gives the next one.

# %% tags=["exercise"]
def token_budget_batches(lengths, budget):
    """Make batches of similar lengths, none with more tokens than the budget, padding included."""
    batches, batch = [], []
    for text in sorted(range(len(lengths)), key=lengths.__getitem__):
        # <blank> would this text make the batch exceed the budget, so that a new batch must start?
        # was: full = len(batch) == 32
        full = lengths[text] * (len(batch) + 1) > budget
        # </blank>
        if full:
            batches.append(batch)
            batch = []
        batch.append(text)
    return [*batches, batch]


batches = token_budget_batches(lengths, BUDGET)
budgeted = padding.padding_cost(lengths, batches)
print(f"yours: {budgeted}")
display(L.score("budget", budgeted.largest_tokens))
L.same(sorted(text for batch in batches for text in batch), list(range(len(lengths))))  # every text occurs once

# %% tags=["claim"]
L.claim(
    "token-budget batches stay within 4096 tokens, are fewer than 100 instead of 128, and have less than 5 % padding; "
    "random batches have more than 60 %",
    budgeted.largest_tokens <= BUDGET
    and budgeted.batches < 100
    and budgeted.padding_frac < 0.05
    and random_batches.padding_frac > 0.6,
    before=random_batches.padding_frac,
    after=budgeted.padding_frac,
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# Should the batch size stay the same throughout training? Early in training, the gradients of all samples point in similar directions, and a small batch finds the common direction. Later they contradict each other, and the gradient of a small batch is mostly noise. The *gradient noise scale* is the batch size at which the noise is as large as the gradient itself; here it is computed from the gradients of the individual samples.
#
# There are two common responses to a noisy gradient: halve the learning rate, or double the batch size. Here, each variant does this after every epoch that ends with a noise scale of at least twice the batch size, up to a factor of 16. Both start from the same weights and see the same samples.

# %% tags=["measure"]
data = synthetic.table(2048, 32)
halved_rate = gradient_noise.train_small_classifier(data, adapt="rate")
# <blank> double the batch instead of halving the learning rate
# was: doubled_batch = gradient_noise.train_small_classifier(data, adapt="rate")
doubled_batch = gradient_noise.train_small_classifier(data, adapt="batch")
# </blank>
batch_16 = gradient_noise.train_small_classifier(data, adapt="none")
batch_256 = gradient_noise.train_small_classifier(data, adapt="none", batch=256)
noise_scales = ", ".join(f"{noise:,.0f}" for noise in doubled_batch.noise_scales)
print("noise scale per epoch, with a doubling batch size:", noise_scales)
results = {"learning rate halved": halved_rate, "batch size doubled": doubled_batch}
gradient_noise.training_table({**results, "batch size 16": batch_16, "batch size 256": batch_256})

# %% tags=["claim"]
L.claim(
    "doubling the batch size reaches within 10 % of the loss of halving the learning rate, with at most half the "
    "updates",
    abs(doubled_batch.loss / halved_rate.loss - 1) < 0.1 and doubled_batch.updates <= halved_rate.updates / 2,
    before=halved_rate.updates,
    after=doubled_batch.updates,
    unit="updates",
    source=COUNTED,
)

# %% [markdown]
# Both responses average over more samples for the same progress. The growing batch does it in fewer, larger steps, which suits a GPU. There are two limits. A batch that is large from the start, at the same learning rate, reaches a far higher loss with the same number of samples. And on this easy problem, changing nothing reaches the lowest loss of all. A larger batch makes each sample cheaper to process; whether it helps learning is a separate question.

# %% [markdown]
# ### 03.7 Sizes of 257 and 8193
#
# A matrix product is divided into tiles of, say, 128 by 128 values of the result; one *block* of threads computes each tile. In the model used here, each of the 132 multiprocessors of an H100 processes one block at a time, so the blocks run in *waves*. A partial wave takes as long as a full one. The results below have 8192 columns, which is 64 tiles.

# %% tags=["predict"]
L.predict("one_more")

# %% tags=["claim"]
# <blank> one row more than full tiles: 257, and 8,193
# was: rows, many_rows = 256, 8192
rows, many_rows = 257, 8193
# </blank>
for size in (256, rows, 8192, many_rows):
    print(f"{size:>4} rows of 8192 columns: {batch_size.tile_matmul(size, 8192)}")
waves_256, waves_257 = batch_size.tile_matmul(256, 8192).waves, batch_size.tile_matmul(rows, 8192).waves
waves_8192, waves_8193 = batch_size.tile_matmul(8192, 8192).waves, batch_size.tile_matmul(many_rows, 8192).waves
display(L.reveal("one_more", waves_257 / waves_256, "times as many waves"))
L.claim(
    "257 rows need a second wave where 256 need one; 8193 rows need no more waves than 8192",
    waves_257 == 2 * waves_256 and waves_8193 == waves_8192 and many_rows > 8192,
    before=waves_256,
    after=waves_257,
    unit="waves",
    source=SIMULATED,
)


# %% [markdown]
# So an odd number of rows costs most for a small batch, and almost nothing for a large one. An odd *width* is different. The fastest kernels load 16 bytes at a time, from addresses that are multiples of 16. Most rows of 8193 two-byte numbers do not start at such an address, so a slower kernel has to do the work.
#
# The next cell measures both on your GPU. On a virtual GPU it only shows the cost model, so it illustrates the effect but does not prove it; the cost of odd widths comes from published traces of an H100.

# %% tags=["claim"]
def product_us(rows, columns):
    """Return the recorded kernel time of a bfloat16 product of this size, in microseconds."""
    with L.gpu(f"{rows} x {columns}"):
        left = torch.ones(rows, 8192, dtype=torch.bfloat16, device="cuda")
        right = torch.ones(8192, columns, dtype=torch.bfloat16, device="cuda")
        for _ in range(STEPS):
            left @ right
            gpulab.step()
    return throughput.step_throughput(gpulab.runs[f"{rows} x {columns}"], rows).kernel_ns / 1000


# <blank> one column more than 8,192
# was: columns = 8192
columns = 8193
# </blank>
odd_rows_us = product_us(8193, 8192)
even_us, odd_columns_us = product_us(8192, 8192), product_us(8192, columns)
print(f"8192 x 8192: {even_us:,.0f} us; 8193 rows: {odd_rows_us:,.0f} us; {columns} columns: {odd_columns_us:,.0f} us")
L.claim(
    "8193 rows take at most 15 % longer than 8192, and 8193 columns at least twice as long",
    odd_rows_us <= 1.15 * even_us and odd_columns_us >= 2 * even_us,
    before=even_us,
    after=odd_columns_us,
    unit="us",
    names=("8192 columns", f"{columns} columns"),
    source=gpulab.runs["8192 x 8192"],
)

# %% [markdown]
# ### 03.8 The largest batch: found automatically and by hand
#
# Guides often say: increase the batch size until the memory is full. `gpulab.virtual.max_batch` finds that size for any GPU, even if you do not have it: it runs single steps of increasing batch size on a virtual GPU, PyTorch's caching allocator included, until one runs out of memory.

# %% tags=["predict"]
L.predict("fullest")


# %% tags=["measure"]
def step(batch):
    """Build the network once, and return the function that runs one training step with a batch of any size."""
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def training_step(batch):
        images = torch.rand(batch, 3, 32, 32, device="cuda")
        labels = torch.randint(10, (batch,), device="cuda")
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return training_step


largest = gpulab.virtual.max_batch(step, "h100", start=2048)
attempts, estimate = largest.max_batch.estimates, f"virtual {largest.max_batch.spec.name}, estimated"
fullest = next(attempt for attempt in attempts if attempt.samples == largest.batch)
largest

# %% tags=["claim"]
display(L.reveal("fullest", fullest.per_s / attempts[0].per_s, "times as many images per second"))
# <blank> the largest element of attempts that uses less than 5 % of the memory: attempt.used_frac < 0.05
# was: small_batch = fullest
small_batch = [attempt for attempt in attempts if attempt.used_frac < 0.05][-1]
# </blank>
L.claim(
    "a batch that uses less than 5 % of the memory reaches at least 85 % of the rate of the largest batch that fits",
    small_batch.per_s >= 0.85 * fullest.per_s and small_batch.used_frac < 0.05,
    before=small_batch.per_s,
    after=fullest.per_s,
    unit="images/s",
    names=(f"batch {small_batch.samples}", f"batch {fullest.samples}"),
    source=estimate,
)

# %% [markdown]
# Full memory is not a goal: the rate stopped rising at the knee, long before the memory was full. (At 2,048 images the rate is a little lower than in 03.1, because these are single steps. In 03.1, the host already launched the kernels of the next step while the GPU was still running the current one.)
#
# You may need the largest batch anyway, for a loss that depends on the batch size, or to see the limits of a GPU. The usual search by hand doubles the batch size until a run fails, and can end far below the largest batch.
#
# Write a better search: **find the largest batch, exact to the image, in at most six tries.** `room.peak(batch)` simulates one run of the program. It returns the bytes in use or raises PyTorch's own out-of-memory error, and each call counts as a try; `fits(batch)` calls it and catches the error. `room.capacity_bytes` is the memory of the GPU. `L.hint("tries")` gives hints.

# %% tags=["exercise"]
room = batch_size.batch_memory(attempts)


def fits(batch):
    """Return whether a step with this batch fits into the memory."""
    try:
        room.peak(batch)
    except torch.OutOfMemoryError:
        return False
    return True


# <blank> the largest batch in at most six tries: what do two small batches tell you about a large one?
# was: batch = 64
# was: while fits(2 * batch):
# was:     batch *= 2
low, high = room.peak(64), room.peak(128)
batch = 64 + int(64 * (room.capacity_bytes - low) / (high - low))
while not fits(batch):
    batch -= 1
while fits(batch + 1):
    batch += 1
# </blank>
print(f"a batch of {batch:,}: {room.describe(batch)}")
L.score("tries", room.tries if room.is_largest(batch) else None)

# %% tags=["claim"]
L.claim(
    "the memory of a few smaller batches predicts the largest batch: it takes at most 6 tries, and the result is "
    "within 1 % of that of max_batch",
    room.is_largest(batch) and 2 <= room.tries <= 6 and abs(batch / largest.batch - 1) < 0.01,
    before=largest.batch,
    after=batch,
    unit="images",
    names=("max_batch", "your search"),
    source=estimate,
)

# %% [markdown]
# ### 03.9 Four small models: one by one or together
#
# Sometimes you cannot use a larger batch, because the model is small and there is little data. But often there are several such models: an ensemble, or a hyperparameter search. A GPU can run several kernels in parallel, so can it run all the models at once?
#
# `torch.func` offers one way. `weights, buffers = stack_module_state(models)` stacks the weights of four models into tensors with one more dimension, `functional_call(model, (weights, buffers), (rows,))` calls a model with other weights than its own, and `vmap` turns this function of one model into a function of all four. The other way is a *stream* for each model: a separate work queue, so that the GPU can run the four models in parallel.

# %% tags=["predict"]
L.predict("ensemble")

# %% tags=["measure"]
from torch.func import functional_call, stack_module_state, vmap


def classifier():
    """Return a small model."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def one_by_one(models, rows):
    """Return a function that runs one model after the other."""
    return lambda: torch.stack([model(rows) for model in models])


def in_streams(models, rows):
    """Return a function that runs each model in its own stream."""
    main_stream, streams = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in models]

    def forward():
        outputs = []
        for model, stream in zip(models, streams, strict=True):
            stream.wait_stream(main_stream)
            with torch.cuda.stream(stream):
                outputs.append(model(rows))
        for stream in streams:  # only now: inside the loop above, each model would wait for the one before it
            main_stream.wait_stream(stream)
        return torch.stack(outputs)

    return forward


# <blank> return a function that runs all models in one call: stack_module_state, functional_call, vmap
# was: stacked = one_by_one
def stacked(models, rows):
    """Return a function that runs all models in one call."""
    weights, buffers = stack_module_state(models)
    run_all = vmap(lambda weights, buffers: functional_call(models[0], (weights, buffers), (rows,)))
    return lambda: run_all(weights, buffers)


# </blank>
def four_models(method, device):
    """Build four models with different weights; return a function that runs them on a batch of 64 rows."""
    torch.manual_seed(0)
    return method([classifier().to(device) for _ in range(4)], torch.rand(64, 32, device=device))


ensembles = {}
for method in (one_by_one, in_streams, stacked):
    with L.gpu(method.__name__):
        forward = four_models(method, "cuda")
        for _ in range(STEPS):
            forward().square().mean().backward()
            gpulab.step()
    ensembles[method] = throughput.step_throughput(gpulab.runs[method.__name__], 4 * 64)
throughput.throughput_table(
    {"one by one": ensembles[one_by_one], "in streams": ensembles[in_streams], "stacked": ensembles[stacked]}
)


# %% [markdown]
# First check that the outputs are equal, and count the matrix products of one step, backward pass included.

# %% tags=["same"]
def work_per_step(method):
    """Count the work of one step with this method."""
    forward = four_models(method, "cpu")
    return batch_size.count_work(lambda: forward().square().mean().backward())


work = [work_per_step(method) for method in (one_by_one, stacked)]
products = [count.matrix_ops for count in work]
print("matrix products, one by one and stacked:", *products)
print("operators, one by one and stacked:", *(count.ops for count in work))
L.same(four_models(one_by_one, "cpu")(), four_models(stacked, "cpu")())

# %% tags=["claim"]
display(L.reveal("ensemble", products[1] / products[0], "%"))
L.claim(
    "stacked, four models need a quarter of the matrix products and less than 70 % of the operators",
    products[1] == products[0] / 4 and work[1].ops < 0.7 * work[0].ops,
    before=work[0].ops,
    after=work[1].ops,
    unit="operators per step",
    source=COUNTED,
)

# %% [markdown]
# Streams save no kernels, as the table shows, and do not help here, for the reason shown in 03.1: the GPU was not the bottleneck. The same Python code still launches the kernels of all streams one by one. Streams help when kernels run long but fill little of the GPU.

# %% [markdown]
# ## Transfer
#
# Here is one more case, from an invented report, to see whether you can apply this reasoning. A language model trains on four texts of 2048 tokens at a time. The GPU is busy for 97 % of each step. A kernel takes 900 us on average and has 4,000 blocks of threads. Half of the memory is free. A colleague wants to double the batch size to train faster.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
