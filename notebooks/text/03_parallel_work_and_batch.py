# %% [markdown]
# # 03 Parallel work and batch size: how much should the GPU get at once?
#
# A GPU is fast at doing many things at a time and slow at doing one. This notebook shows what gives it many: larger batches, one operator in place of a loop, like-sized sequences, several models at once. It also shows where that stops paying, and which popular advice about it does not hold.
#
# Forty-five minutes, in nine short experiments. Without a GPU, whatever needs one runs on a virtual H100: your CUDA code is taken as it is and priced by a model of that GPU. Counts (operators, arithmetic, tokens, bytes) are exact on any machine. Each claim says in brackets which of these its numbers are.

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
from gpulab.lessons.labs.kernels import batch_size, gradient_noise
from gpulab.lessons.labs.data import padding
from gpulab.lessons.labs.steps import throughput

torch.set_num_threads(1)  # what the CPU computes here is small: a second core would only be waited for
STEPS = L.pick(tiny=11, lab=12, full=60)


def network(width=64, norm=nn.Identity):
    """Four convolutions and a classifier, always with the same weights; `norm` makes a layer for so many channels."""
    torch.manual_seed(0)
    sizes = [(3, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
    layers = [
        layer
        for before, after, stride in sizes
        for layer in (nn.Conv2d(before, after, 3, stride=stride, padding=1), norm(after), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


# %% [markdown]
# ## The symptom
#
# A team trains this network on small images, on a GPU that is rented by the hour. The batch is eight; that was chosen long ago, for a laptop, and nobody has asked since. (`times` is for experiment 03.3: how many batches go into one update of the weights.)

# %% tags=["given"]
def train(batch, times=1):
    """Some steps of training with batches of this size, `times` of them a step; the bytes in use at most."""
    torch.cuda.reset_peak_memory_stats()
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images = torch.rand(batch, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(times):
            loss = nn.functional.cross_entropy(net(images), labels)
            (loss / times).backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated()


# %% [markdown]
# ## Batch size
#
# ### 03.1 From a batch of 8 upwards
#
# Every layer of a network becomes one *kernel* on the GPU, or a few: a kernel is one function that runs there. The program on the *host*, which is the CPU, has to call each of them.
#
# Before you measure anything, say what you expect. A guess you have made is one you can learn from.

# %% tags=["predict"]
L.predict("many")

# %% [markdown]
# First the loop as the team runs it. `--virtual auto` takes the GPU that is here, or a virtual one.

# %% tags=["measure"]
# %%gpuprofile --virtual auto small
small_bytes = train(8)

# %% [markdown]
# Read the first sentence of the report, and its table *Where a step goes*; the course calls that table the *ledger*. Two of its lines need a word. *Operator dispatch* is PyTorch on the host working out which kernels are meant. *Launch calls* hand them to the GPU.
#
# Run the next cell to see the question, put a letter in place of `None`, and run it again.

# %% tags=["check"]
# <blank> the letter of your answer, as "a"
# was: answer = None
answer = "b"
# </blank>
L.check("idle", answer)

# %% [markdown]
# The report's own fix is for another day: a CUDA graph makes the calls cheaper ([notebook 12](12_launch_fusion_graphs.ipynb)). Its other advice is simpler: give each call more to do. So here is the same loop at seven batch sizes.
#
# In the table, a *sample* is an image, and *us each* is what one kernel takes. *Filled* is how many of the GPU's multiprocessors (the 132 units of an H100 that work side by side) have something to do while kernels run, at most. The chart marks the *knee*: the smallest batch with nine tenths of the best rate. Below it a larger batch gives more images a second; beyond it, it only needs more memory.

# %% tags=["measure"]
SIZES = (8, 32, 64, 128, 512, 2048, 8192)
memory_bytes = {}
for size in SIZES:
    with L.gpu(f"batch {size}"):
        memory_bytes[size] = train(size)

sweep = {size: throughput.seen(gpulab.runs[f"batch {size}"], size) for size in SIZES}
MiB = [f"{each / 2**20:,.0f}" for each in memory_bytes.values()]
display(throughput.table({f"batch {size}": each for size, each in sweep.items()}, MiB=MiB))
gpulab.charts.batch_sweep({size: gpulab.runs[f"batch {size}"] for size in SIZES})

# %% tags=["claim"]
rates = {size: each.per_s for size, each in sweep.items()}
display(L.reveal("many", rates[512] / rates[8], "times as many images a second"))
# <fix>
# was: before, after = rates[8], rates[128]
before, after = rates[2048], rates[8192]
# </fix>
L.claim(
    "8 times the images, from 8 to 64, give at least 3 times the rate; 4 times, from 2048 to 8192, at most 15 % more",
    rates[64] >= 3 * rates[8] and after <= 1.15 * before,
    before=before,
    after=after,
    unit="images/s",
    source=gpulab.runs["batch 8192"],
)


# %% [markdown]
# Look at the column of kernels: a step has about as many at 8192 images as at 8. That is the counter that decides. Were the GPU slow because of its arithmetic, 64 images would take eight times as long as 8. They take about as long, because the time goes to *calling* kernels, and the number of calls does not depend on the batch. Only the memory grows all the way, by about one MiB an image.
#
# Do only GPUs have a knee? Here is one core of your CPU with a smaller network, by the time that the core spends on this program. It has no multiprocessors to fill, but it too pays for each call.

# %% tags=["measure"]
def on_the_cpu(batch):
    """Images a second that one core trains on, in batches of this size."""
    net, images, labels = network(width=8), torch.rand(batch, 3, 16, 16), torch.randint(10, (batch,))
    return batch / throughput.fastest_s(
        lambda: nn.functional.cross_entropy(net(images), labels).backward(), repeats=L.pick(tiny=9, lab=30)
    )


cpu_rates = {batch: on_the_cpu(batch) for batch in (1, 4, 16, 64, 256)}
for batch, rate in cpu_rates.items():
    print(f"batch {batch:>3}: {rate:>7,.0f} images/s")

# %% tags=["claim"]
# <fix>
# was: together = cpu_rates[1]
together = cpu_rates[64]
# </fix>
L.claim(
    "one CPU core trains on at least twice as many images a second in batches of 64 as one by one",
    together >= 2 * cpu_rates[1],
    before=cpu_rates[1],
    after=together,
    unit="images/s",
)

# %% [markdown]
# ## Loops
#
# ### 03.2 One operator in place of a loop
#
# A batch helps only where the code hands it over in one piece. Two loops that do not are common: over the images of a batch, and over the time steps of a signal. What PyTorch hands to the device is counted here, operator by operator; each operator becomes a kernel or a few.

# %% tags=["predict"]
L.predict("loop")

# %% tags=["worked"]
signal = torch.rand(32, 1, 256)  # 32 recordings of 256 time steps
weights = torch.rand(1, 1, 8)
images, net = torch.rand(32, 3, 16, 16), network(width=8)


def by_sample(images):
    """The network called for each image."""
    return torch.cat([net(image[None]) for image in images])


def by_time(signal):
    """A weighted sum over 8 time steps, one place after the other."""
    return torch.cat([(signal[..., at : at + 8] * weights).sum(-1, keepdim=True) for at in range(249)], dim=-1)


# <fix>
# was: at_once, filtered = by_sample, by_time
def at_once(images):
    """The network called for all images."""
    return net(images)


def filtered(signal):
    """The same sums as a convolution, which is what they are."""
    return nn.functional.conv1d(signal, weights)


# </fix>
loop, one = (batch_size.work_of(lambda way=way: way(images)) for way in (by_sample, at_once))
places, filtering = (batch_size.work_of(lambda way=way: way(signal)) for way in (by_time, filtered))
print(f"32 images: {loop.ops} operators in a loop, {one.ops} at once")
print(f"249 places in time: {places.ops} operators in a loop, {filtering.ops} at once")
L.same([by_sample(images), by_time(signal)], [at_once(images), filtered(signal)])

# %% tags=["claim"]
twice = torch.cat([images, images])
doubled = batch_size.work_of(lambda: at_once(twice))
display(L.reveal("loop", doubled.ops / one.ops, "times the operators"))
L.claim(
    "called once, the network hands out as many operators for 64 images as for 32, and less than a tenth of the loop's",
    doubled.ops == one.ops and one.ops < loop.ops / 10 and filtering.ops < places.ops / 10,
    before=loop.ops,
    after=one.ops,
    unit="operators",
    source=COUNTED,
)

# %% [markdown]
# ## Pretending to have a larger batch
#
# ### 03.3 Accumulation: 64 images at once, 8 times 8, or 8
#
# When memory does not allow a batch of 64, gradients of eight batches of 8 can be added up before the weights are updated. Guides often say that the GPU then has as much to do as with the large batch. You can test that.

# %% tags=["predict"]
L.predict("accumulate")

# %% tags=["measure"]
# <fix>
# was: batch, times = 64, 1
batch, times = 8, 8
# </fix>
with L.gpu("accumulated"):
    train(batch, times)

accumulated = throughput.seen(gpulab.runs["accumulated"], batch * times)
display(throughput.table({"8": sweep[8], "8 times 8": accumulated, "64": sweep[64]}))
L.reveal("accumulate", accumulated.per_s / sweep[8].per_s, "times the rate of a batch of 8")


# %% [markdown]
# An update now has about nine times the kernels: those of eight small batches, and the adding up. Each is as short as before, and fills as little of the GPU. What accumulation saves is the update itself, once instead of eight times, and between several GPUs the exchange of gradients.
#
# So is it useless? No: its gradient *is* that of the large batch. First see that it is. Then count the arithmetic of the largest single operator: if accumulation gave the GPU a larger batch to work on, it would be that of 64 images.

# %% tags=["same"]
def gradients(net, images, labels, parts=1):
    """The gradients of a batch, computed in so many parts and added up."""
    net.zero_grad()
    for some, told in zip(images.chunk(parts), labels.chunk(parts), strict=True):
        (nn.functional.cross_entropy(net(some), told) / parts).backward()
    return [each.grad.clone() for each in net.parameters()]


torch.manual_seed(1)
images, labels = torch.rand(64, 3, 8, 8), torch.randint(10, (64,))
L.same(gradients(network(8), images, labels), gradients(network(8), images, labels, parts=8))

# %% tags=["claim"]
net = network(8)
of_8 = batch_size.work_of(lambda: gradients(net, images[:8], labels[:8]))
of_64 = batch_size.work_of(lambda: gradients(net, images, labels))
in_parts = batch_size.work_of(lambda: gradients(net, images, labels, parts=times))
L.claim(
    "8 batches of 8 do the arithmetic of 64 images in operators no larger than those of 8: an eighth of those of 64",
    in_parts.flops == of_64.flops and in_parts.largest_flops == of_8.largest_flops == of_64.largest_flops / 8,
    before=of_64.largest_flops,
    after=in_parts.largest_flops,
    unit="FLOP in the largest",
    source=COUNTED,
)

# %% [markdown]
# ### 03.4 Micro-batches, and the layer that notices
#
# Seen from the memory, accumulation is a fix. A batch that is worked off in small parts, *micro-batches*, keeps only the intermediate results (*activations*) of one part for the backward pass.

# %% tags=["claim"]
# <fix>
# was: parts = 1
parts = 8
# </fix>
whole_bytes = batch_size.most_kept_bytes(lambda: gradients(net, images, labels))
parts_bytes = batch_size.most_kept_bytes(lambda: gradients(net, images, labels, parts))
L.claim(
    "8 micro-batches keep an eighth of the activations that the whole batch keeps, within 1 %",
    abs(8 * parts_bytes / whole_bytes - 1) < 0.01,
    before=whole_bytes,
    after=parts_bytes,
    unit="bytes",
    source=COUNTED,
)

# %% [markdown]
# The gradients were equal because this network treats each image by itself. Many image networks have a layer that does not: BatchNorm scales each image by the mean and the spread of its batch.

# %% tags=["predict"]
L.predict("norm")


# %% tags=["claim"]
def apart(norm):
    """How far the gradients of one batch and of its eight parts are apart, as a share of the largest number."""
    pairs = zip(
        gradients(network(8, norm), images, labels),
        gradients(network(8, norm), images, labels, parts=8),
        strict=True,
    )
    whole, split = (torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True))
    return float((whole - split).abs().max() / whole.abs().max())


def groups(channels):
    """GroupNorm: mean and spread of groups of channels, of one image at a time."""
    return nn.GroupNorm(4, channels)


with_batch_norm = apart(nn.BatchNorm2d)
# <fix>
# was: norm = nn.BatchNorm2d
norm = groups
# </fix>
with_other_norm = apart(norm)
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
# A norm that looks at one image at a time, such as GroupNorm, has no such trap.
#
# ## Batches of many lengths, and batches that grow
#
# ### 03.5 Padding, and a batch that grows
#
# Texts have many lengths, and a batch is a rectangle: each text is filled up to the longest of its batch. The model computes on the filling as well.

# %% tags=["predict"]
L.predict("padding")

# %% tags=["reveal"]
lengths = [len(each) for each in synthetic.texts(4096)]
BUDGET = 4096  # tokens that a batch may have, padding included

random_batches = padding.padded(lengths, padding.at_random(lengths, 32))
buckets = padding.padded(lengths, padding.bucketed(lengths, 32))
for what, each in (("at random", random_batches), ("in buckets", buckets)):
    print(f"{what:>10}: {each}")
L.reveal("padding", random_batches.padding_frac, "%")


# %% [markdown]
# *Buckets* are batches of like lengths: texts are drawn at random, sorted within a pool of 512, and cut into batches. Most of the padding is gone. Something else is not: the largest batch still has 32 texts of full length, and the memory must have room for it, while a batch of short texts fills little of the GPU.
#
# Your turn. Fill a batch up to a *budget of tokens* instead of a number of texts: many short texts, or few long ones. (In training, the finished batches would be shuffled.) What counts is the whole rectangle, padding included. The texts come in order of length, so the one at hand is the longest of its batch. `L.hint("budget")`, in a cell of your own, gives a hint, and another one each time.

# %% tags=["exercise"]
def by_tokens(lengths, budget):
    """Batches of like lengths, none of which has more tokens than the budget, padding included."""
    batches, batch = [], []
    for text in sorted(range(len(lengths)), key=lengths.__getitem__):
        # <blank> would this text make the batch larger than the budget, so that it must begin another one?
        # was: full = len(batch) == 32
        full = lengths[text] * (len(batch) + 1) > budget
        # </blank>
        if full:
            batches.append(batch)
            batch = []
        batch.append(text)
    return [*batches, batch]


batches = by_tokens(lengths, BUDGET)
budgeted = padding.padded(lengths, batches)
print(f"yours: {budgeted}")
display(L.score("budget", budgeted.largest_tokens))
L.same(sorted(text for batch in batches for text in batch), list(range(len(lengths))))  # each text once

# %% tags=["claim"]
L.claim(
    "batches by tokens keep to a budget of 4096, are fewer than 100 in place of 128, and have less than 5 % padding; "
    "random ones have more than 60 %",
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
# Should the batch keep its size throughout training? Early on, the gradients of all samples point in much the same direction, and a small batch finds it. Later they contradict one another, and the gradient of a small batch is mostly chance. The *noise scale* is the batch size at which that chance is as large as the gradient itself; it is computed here from the gradient of each sample.
#
# Where it is twice the batch or more, there are two usual answers: halve the learning rate, or double the batch. Both start from the same weights here, and see the same samples.

# %% tags=["measure"]
data = synthetic.table(2048, 32)
halved = gradient_noise.train(data, answer="rate")
# <fix>
# was: grown = noise.train(data, answer="rate")
grown = gradient_noise.train(data, answer="batch")
# </fix>
steady = gradient_noise.train(data, answer="none")
large = gradient_noise.train(data, answer="none", batch=256)
print("noise scale by epoch, where the batch grows:", ", ".join(f"{each:,.0f}" for each in grown.noises))
gradient_noise.table({"learning rate halved": halved, "batch doubled": grown, "batch 16": steady, "batch 256": large})

# %% tags=["claim"]
L.claim(
    "doubling the batch ends within 10 % of the loss that halving the rate gives, with at most half of the updates",
    abs(grown.loss / halved.loss - 1) < 0.1 and grown.updates <= halved.updates / 2,
    before=halved.updates,
    after=grown.updates,
    unit="updates",
    source=COUNTED,
)

# %% [markdown]
# Both answers average over more samples for each bit of progress. The growing batch does so in fewer, larger steps, which suits a GPU. Two limits: a batch that is large from the start ends far behind after the same samples, and on this easy problem leaving everything as it was ends lowest of all. A larger batch makes samples cheaper; what it does to learning is a question of its own.

# %% [markdown]
# ## Sizes
#
# ### 03.6 257, and 8193
#
# A matrix product is cut into tiles, say 128 by 128 numbers of the result; one *block* of threads computes each. In the model used here, each of the 132 multiprocessors of an H100 takes one block at a time, so the blocks are worked off in *waves*. A wave that is not full takes as long as a full one. The results below have 8192 columns, which is 64 tiles side by side.

# %% tags=["predict"]
L.predict("one_more")

# %% tags=["claim"]
# <fix>
# was: rows, many_rows = 256, 8192
rows, many_rows = 257, 8193
# </fix>
for size in (256, rows, 8192, many_rows):
    print(f"{size:>4} rows of 8192 columns: {batch_size.tiled(size, 8192)}")
waves, more_waves = batch_size.tiled(256, 8192).waves, batch_size.tiled(rows, 8192).waves
many_waves, many_more = batch_size.tiled(8192, 8192).waves, batch_size.tiled(many_rows, 8192).waves
display(L.reveal("one_more", more_waves / waves, "times the waves"))
L.claim(
    "one row more than 256 takes a second wave; one row more than 8192 takes no wave more",
    more_waves == 2 * waves and many_more == many_waves and many_rows > 8192,
    before=waves,
    after=more_waves,
    source=SIMULATED,
)


# %% [markdown]
# So an odd batch costs most where it is small, and next to nothing where it is large. An odd *width* is another matter. The tensor cores load 16 bytes at a time; rows of 8193 numbers of two bytes do not begin at such places, and an older, slower kernel has to do the work.
#
# The next cell prices both. On a virtual GPU it shows what the price model holds, so it illustrates and does not prove; the price of odd widths is from published traces of an H100. On a GPU of yours, it measures.

# %% tags=["claim"]
def product_us(rows, columns):
    """Microseconds of kernels in a product of this size, in bfloat16, as recorded."""
    with L.gpu(f"{rows} x {columns}"):
        left = torch.ones(rows, 8192, dtype=torch.bfloat16, device="cuda")
        right = torch.ones(8192, columns, dtype=torch.bfloat16, device="cuda")
        for _ in range(STEPS):
            left @ right
            gpulab.step()
    return throughput.seen(gpulab.runs[f"{rows} x {columns}"], rows).kernel_ns / 1000


# <fix>
# was: columns = 8192
columns = 8193
# </fix>
one_row_more = product_us(8193, 8192)
even, odd = product_us(8192, 8192), product_us(8192, columns)
L.claim(
    "8193 rows take at most 15 % longer than 8192, and 8193 columns at least twice as long",
    one_row_more <= 1.15 * even and odd >= 2 * even,
    before=even,
    after=odd,
    unit="us",
    source=gpulab.runs["8192 x 8192"],
)

# %% [markdown]
# ### 03.7 The largest batch, by hand and by itself
#
# Guides often say: raise the batch until the memory is full. `gpulab.virtual.max_batch` finds that size on a GPU that need not be there: it plays single steps of growing size on a virtual one, PyTorch's allocator included, until one runs out of memory.

# %% tags=["predict"]
L.predict("fullest")


# %% tags=["measure"]
def step(batch):
    """Builds the network once, and gives the function that trains it once on a batch of any size."""
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def once(batch):
        images = torch.rand(batch, 3, 32, 32, device="cuda")
        labels = torch.randint(10, (batch,), device="cuda")
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return once


largest = gpulab.virtual.max_batch(step, "h100", start=512)
tried, estimate = largest.found.tried, f"virtual {largest.found.spec.name}, estimated"
fullest = next(each for each in tried if each.work == largest.batch)
largest

# %% tags=["claim"]
display(L.reveal("fullest", fullest.per_s / tried[0].per_s, "times as many images a second"))
# <fix>
# was: fits_in_part = fullest
fits_in_part = [each for each in tried if each.used_frac < 0.05][-1]
# </fix>
L.claim(
    "a batch that takes less than a twentieth of the memory gives at least 85 % of the rate of the largest that fits",
    fits_in_part.per_s >= 0.85 * fullest.per_s and fits_in_part.used_frac < 0.05,
    before=fits_in_part.per_s,
    after=fullest.per_s,
    unit="images/s",
    source=estimate,
)

# %% [markdown]
# Full memory is no goal: the rate stopped rising at the knee, long before. (The rates are a little lower than in 03.1. Here a step stands alone; there the host already calls the kernels of the next step while the GPU still works on this one.)
#
# You may need the largest batch all the same, for a layer that learns from it, or to see how far a GPU reaches. The usual search by hand doubles the batch until it fails, and may end far below the largest.
#
# Write a better one: **the largest batch, to the image, in at most six tries.** `room.peak(batch)` stands for one start of the program. It gives the bytes in use, or raises PyTorch's own out-of-memory error, and it counts as a try; `fits(batch)` calls it and catches the error. `room.capacity_bytes` is what the GPU has. `L.hint("tries")` helps.

# %% tags=["exercise"]
room = batch_size.room_of(tried)


def fits(batch):
    """Whether a step with this batch has room."""
    try:
        room.peak(batch)
    except torch.OutOfMemoryError:
        return False
    return True


# <blank> the largest batch in at most six tries: what do two small batches tell about a large one?
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
print(f"a batch of {batch:,}: {room.judged(batch)}")
L.score("tries", room.tries if room.is_largest(batch) else None)

# %% tags=["claim"]
L.claim(
    "a line through two small batches leads to the largest batch that has room, and within 1 % of what max_batch found",
    room.is_largest(batch) and abs(batch / largest.batch - 1) < 0.01,
    before=largest.batch,
    after=batch,
    unit="images",
    source=estimate,
)

# %% [markdown]
# ## Several models
#
# ### 03.8 Four small models, in turn or together
#
# Sometimes there is no larger batch to be had: the model is small and the data few. But often there are several such models, for an ensemble or a search over settings. A GPU can do several things beside one another, so why not all of them?
#
# `torch.func` offers one way: `stack_module_state` puts the weights of four models into tensors with one dimension more, and `vmap` turns the function of one model into a function of all four. The other idea is a *stream* for each model, a queue of work of its own, so that the GPU may run the four side by side.

# %% tags=["predict"]
L.predict("ensemble")

# %% tags=["measure"]
from torch.func import functional_call, stack_module_state, vmap


def classifier():
    """A small model."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def in_turn(models, rows):
    """One model after the other."""
    return lambda: torch.stack([model(rows) for model in models])


def in_streams(models, rows):
    """Each model in a stream of its own."""
    here, streams = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in models]

    def answer():
        outputs = []
        for model, stream in zip(models, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                outputs.append(model(rows))
            here.wait_stream(stream)
        return torch.stack(outputs)

    return answer


# <fix>
# was: together = in_turn
def together(models, rows):
    """All of them at once."""
    weights, buffers = stack_module_state(models)
    one = vmap(lambda weights, buffers: functional_call(models[0], (weights, buffers), (rows,)))
    return lambda: one(weights, buffers)


# </fix>
def four(way, device):
    """Four models, each with other weights, asked in one of these ways about a batch of 64 rows."""
    torch.manual_seed(0)
    return way([classifier().to(device) for _ in range(4)], torch.rand(64, 32, device=device))


ensembles = {}
for way in (in_turn, in_streams, together):
    with L.gpu(way.__name__):
        answer = four(way, "cuda")
        for _ in range(STEPS):
            answer().square().mean().backward()
            gpulab.step()
    ensembles[way] = throughput.seen(gpulab.runs[way.__name__], 4 * 64)
throughput.table({"in turn": ensembles[in_turn], "in streams": ensembles[in_streams], "together": ensembles[together]})


# %% [markdown]
# Equal answers first, and the count of matrix products in one step, backward included.

# %% tags=["same"]
def step_of(way):
    """The work of one step in this way."""
    answer = four(way, "cpu")
    return batch_size.work_of(lambda: answer().square().mean().backward())


products = [step_of(way).products for way in (in_turn, together)]
print("matrix products, in turn and together:", *products)
L.same(four(in_turn, "cpu")(), four(together, "cpu")())

# %% tags=["claim"]
display(L.reveal("ensemble", products[1] / products[0], "%"))
kernels = {way: each.kernels for way, each in ensembles.items()}
L.claim(
    "together, four models take a quarter of the products and at most half of the kernels; streams save no kernel",
    products[1] == products[0] / 4
    and kernels[together] <= kernels[in_turn] / 2
    and abs(kernels[in_streams] / kernels[in_turn] - 1) < 0.05,
    before=kernels[in_turn],
    after=kernels[together],
    unit="kernels a step",
    source=gpulab.runs["in_streams"],
)

# %% [markdown]
# Streams do not help here, for the reason of 03.1: the GPU was not the slow part. Each stream's kernels are still called one by one, by the same Python. Streams are for kernels that take long and fill little.

# %% [markdown]
# ## Which size, then?
#
# ### 03.9 Small, medium, large: a table with your own numbers
#
# Articles like to print a table of what speaks for small, medium and large batches. Here it is with a number in every place. Rate and memory are from your sweep. The number of updates is arithmetic; each is a chance to learn, so more is better. The chance in a gradient, too, is arithmetic: as in any average, it falls with the square root of the batch.

# %% tags=["measure"]
sizes = {"small": 32, "medium": 128, "large": 2048}
table = {
    "images a second": {name: round(rates[size]) for name, size in sizes.items()},
    "updates in a million images": {name: round(1e6 / size) for name, size in sizes.items()},
    "memory, MiB": {name: round(memory_bytes[size] / 2**20) for name, size in sizes.items()},
    "chance in the gradient, small = 1": {name: round((32 / size) ** 0.5, 2) for name, size in sizes.items()},
}
# <fix>
# was: columns = ("images a second", "chance in the gradient, small = 1")
columns = tuple(table)
# </fix>
best = {}
for column in columns:
    more_is_better = column in ("images a second", "updates in a million images")
    best[column] = (max if more_is_better else min)(sizes, key=table[column].get)
pd.DataFrame(table, dtype=object).T.assign(best=pd.Series(best))

# %% tags=["claim"]
L.claim(
    "no size is best at everything: large ones in rate and steady gradients, small ones in memory and updates",
    tuple(best.values()) == ("large", "small", "small", "large"),
    before=memory_bytes[32] / 2**20,
    after=memory_bytes[2048] / 2**20,
    unit="MiB",
    source=gpulab.runs["batch 2048"],
)

# %% [markdown]
# Start from the row that you lack most. Below the knee, raise the batch: it costs nothing but memory and some care with the learning rate. At the knee, stop, unless learning wants more.
#
# ## Another symptom
#
# One more, from a made-up report, to see whether the reasoning carries over. A language model trains with four texts of 2048 tokens at a time. The GPU is busy for 97 % of each step; a kernel takes 900 us on average and has 4,000 blocks of threads; half of the memory is free. A colleague wants to double the batch, for speed.

# %% tags=["check"]
# <blank> which of a, b and c?
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
