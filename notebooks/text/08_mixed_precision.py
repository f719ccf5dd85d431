# %% [markdown]
# # 08 Mixed precision: what does half precision speed up, and what does it break?
#
# A number in float32 takes four bytes. In bfloat16 or float16 it takes two, and recent GPUs have tensor cores, which multiply matrices of such numbers many times faster. Mixed precision means: 16 bits where they do no harm, 32 bits where 16 would.
#
# | type | bits: sign, exponent, fraction | largest | smallest above zero | next below 1 |
# |---|---|---|---|---|
# | float32 | 1, 8, 23 | 3e38 | 1e-45 | 1 - 0.00000006 |
# | TF32, in products only | 1, 8, 10 | 3e38 | about 1e-38 | 1 - 0.0005 |
# | bfloat16 | 1, 8, 7 | 3e38 | 9e-41 | 1 - 0.004 |
# | float16 | 1, 5, 10 | 65,504 | 6e-8 | 1 - 0.0005 |
#
# Two facts from this table are enough for now. bfloat16 has the same range as float32, but a low precision. float16 is more precise, but its range is small: almost everything that breaks in the second half of this notebook breaks at one end of that range.
#
# Do [01 What is utilisation](01_what_is_utilisation.ipynb) first if you cannot yet explain "GPU busy". You need 50 minutes and no GPU. Without one, times, kernels and energy come from a virtual H100; they are calculated from published peaks and from measured fractions of these peaks. Bytes, gradients, scales and overflows are real, on your CPU. Every number names its source. (The experiments do not come in the order of their numbers.)

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("08_mixed_precision")
L

# %% tags=["setup"]
import pandas as pd
import torch
from IPython.display import display
from torch import nn
from torch.nn import functional

from gpulab.lessons import COUNTED
from gpulab.lessons.labs.kernels import half_precision, mixed_precision, precision_tables
from gpulab.lessons.labs.steps import throughput


def block(width):
    """Return a matrix product, followed by three layers that mostly move data."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.BatchNorm1d(4 * width), nn.ReLU(), nn.MaxPool1d(4))


def network(width=1024, blocks=4, classes=64):
    """Return several blocks and a classification layer."""
    return nn.Sequential(*[block(width) for _ in range(blocks)], nn.Linear(width, classes))


def autocast(dtype, device="cuda"):
    """Return torch.autocast for this dtype; None disables it."""
    return torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


# %% [markdown]
# ## The symptom
#
# A classifier of sensor readings trains on an H100 that costs a few dollars per hour. nvidia-smi shows 100 %. "So it cannot get any faster," says a colleague. Answer the question first. Then run the program and read three parts of the report: the first sentence, the fix below it, and the table "Where the step time goes".

# %% tags=["predict"]
L.predict("full")

# %% [markdown]
# Press a button, or run `L.answer("full", "b")` in a new cell. The notebook also runs without an answer.

# %% tags=["measure"]
# %%gpuprofile --virtual auto fp32
model = network().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
inputs = torch.randn(65536, 1024, device="cuda")
labels = torch.randint(64, (65536,), device="cuda")
for _ in range(12):
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["reveal"]
weight_count = sum(parameter.numel() for parameter in model.parameters())
operations = 6 * len(inputs) * weight_count  # per sample and weight: 2 forward, 4 backward
L.reveal("full", mixed_precision.half_peak_frac(gpulab.runs["fp32"], operations), "%")

# %% [markdown]
# The report names float32 as the cause. Before you believe it, ask what would look different if it were wrong. Write the letter of your answer into the cell. Later questions of this kind work in the same way.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "a"
# </blank>
L.check("cause", answer)

# %% [markdown]
# ## The gain: time
#
# ### 08.1 From float32 to TF32, bfloat16 and float16
#
# There are three alternatives to float32:
#
# - **TF32** leaves every tensor in float32, and rounds the inputs of matrix products to 10 bits inside the tensor cores. One line, `torch.set_float32_matmul_precision("high")`, switches it on for all matrix products. Convolutions have another switch, `torch.backends.cudnn.allow_tf32` (in recent versions also `torch.backends.cudnn.conv.fp32_precision`), which is on unless you turn it off.
# - **autocast in bfloat16** casts the inputs of products to 16 bits. Their results have 16 bits too, so they need half the memory traffic.
# - **autocast in float16** does the same, and needs a gradient scaler (see 08.3).
#
# In all of them, the tensor cores accumulate in float32. Tensor cores exist since the V100 (compute capability 7.0), TF32 and bfloat16 since the A100 (8.0).

# %% tags=["predict"]
L.predict("ladder")


# %% [markdown]
# Now run all three. The training loop is the same, except for the first two lines of `train`, `with autocast(...)`, and the scaler, which does nothing unless the dtype is float16.

# %% tags=["measure"]
def train(matmul_precision="highest", dtype=None, steps=12):
    """Run the program above with a choice of precision."""
    torch.set_float32_matmul_precision(matmul_precision)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randn(65536, 1024, device="cuda")
    labels = torch.randint(64, (65536,), device="cuda")
    for _ in range(steps):
        with autocast(dtype):
            loss = functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.set_float32_matmul_precision("highest")


# <blank> the options of each: matmul_precision="high" for TF32, a dtype for the others
# was: precisions = {"tf32": {}, "bf16": {}, "fp16": {}}
precisions = {"tf32": {"matmul_precision": "high"}, "bf16": {"dtype": torch.bfloat16}, "fp16": {"dtype": torch.float16}}
# </blank>
for name, options in precisions.items():
    with L.gpu(name):
        train(**options)

runs = gpulab.runs
ms = {name: throughput.step_ms(runs[name]) for name in ("fp32", *precisions)}
for name, step_ms in ms.items():
    print(
        f"{name}: {step_ms:5.1f} ms per step, {ms['fp32'] / step_ms:.1f} times as fast as fp32   [{runs[name].source}]"
    )


# %% [markdown]
# A faster step is worthless if the result is wrong. A virtual GPU cannot check that: its tensors have sizes, but no values. So train a small version for real, in float32 and in bfloat16, and compare the losses. They may differ by 5 %, which the 7-bit fraction of bfloat16 can explain.

# %% tags=["same"]
def losses(dtype, steps=10):
    """Train a small network on this machine's own device, from a fixed seed; return the losses."""
    torch.manual_seed(0)
    model = network(width=64, blocks=2, classes=4).to(L.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(128, 64, device=L.device)
    labels = (inputs[:, :4]).argmax(dim=1)
    history = []
    for _ in range(steps):
        with autocast(dtype, L.device):
            loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    return history


L.same(losses(None), losses(torch.bfloat16), equal=0.05)

# %% tags=["claim"]
display(L.reveal("ladder", ms["fp32"] / ms["bf16"], "times"))
L.claim(
    "TF32 is at least 1.5 times as fast as float32, bfloat16 at least 1.3 times as fast as TF32, float16 within 15 % "
    "of it",
    ms["fp32"] > 1.5 * ms["tf32"] and ms["tf32"] > 1.3 * ms["bf16"] and abs(ms["fp16"] / ms["bf16"] - 1) < 0.15,
    before=ms["fp32"],
    after=ms["bf16"],
    unit="ms per step",
    source=runs["bf16"],
)

# %% [markdown]
# Could you have known this before you changed a line? gpulab predicts such a step from the float32 run alone (`%gpuwhatif fp32 amp=bf16` shows how), and `%gpucompare` shows this prediction (*Predicted*) next to the measured result. On a virtual GPU both are models, of different kinds: the prediction uses the float32 run and general rules, while the virtual GPU estimates the time of every operator. If they agree, each one supports the other, but this proves neither.

# %% tags=["measure"]
# %gpucompare fp32 bf16 amp=bf16

# %% [markdown]
# ## The gain: memory
#
# ### 08.2 Activations saved for the backward pass
#
# A layer saves its inputs until the backward pass has used them. When a network trains with a large batch, these activations are usually the largest part of the memory. The next cell counts them for real: PyTorch reports every tensor that it saves, and the cell adds up their bytes, each tensor once.

# %% tags=["predict"]
L.predict("half")

# %% tags=["measure"]
torch.manual_seed(0)
layers = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(16)])
samples = torch.randn(512, 256)
# <blank> save in bfloat16
# was: half_dtype = None
half_dtype = torch.bfloat16
# </blank>
MIB = 2**20
shares = {}
for name, model in {"Linear and GELU": layers, "with BatchNorm and MaxPool": network(256, blocks=4)}.items():
    before, after = (
        mixed_precision.count_saved_bytes(model, samples),
        mixed_precision.count_saved_bytes(model, samples, half_dtype),
    )
    shares[name] = after.activation_bytes / before.activation_bytes
    change = f"{before.activation_bytes / MIB:.1f} MiB -> {after.activation_bytes / MIB:.1f} MiB ({shares[name]:.1%})"
    print(f"{name}: activations {change}, plus {after.weight_bytes / MIB:.1f} MiB of cast weights")

# %% tags=["claim"]
display(L.reveal("half", shares["Linear and GELU"], "%"))
L.claim(
    "bfloat16 halves the saved activations of Linear and GELU exactly; with pooling, more than half of them remain",
    shares["Linear and GELU"] == 0.5 and 0.5 < shares["with BatchNorm and MaxPool"] < 1,
    before=shares["Linear and GELU"],
    after=shares["with BatchNorm and MaxPool"],
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# The reason is that pooling saves the position of each maximum as a 64-bit integer: autocast changes only floating-point types. In addition, the 16-bit copy of a cast weight stays in memory until the backward pass has used it. float32 does not have this cost.

# %% [markdown]
# ## The risk: range
#
# "Without compromising accuracy", says one of the articles about float16. The next three experiments show what you have to do to make that true.
#
# ### 08.3 Gradients that are too small
#
# A model looks for defects in images; one pixel in 200 is a defect. Its output layer is initialised to predict this share for every pixel, as is usual for such models, and its loss is the mean over all pixels. With this loss, the gradient at a good pixel is the predicted probability, 0.005, divided by the number of pixels. Calculate it before you answer.

# %% tags=["predict"]
L.predict("zeros")

# %% tags=["measure"]
PIXELS, RATE = 2**18, 0.005
features, defect = half_precision.defect_pixels(PIXELS, RATE)


def gradients(dtype, scale=1.0):
    """Return the share of output gradients that are zero, the unscaled gradient of the last bias, and the loss."""
    model = half_precision.defect_detector(RATE)
    with autocast(dtype, "cpu"):
        outputs = model(features).squeeze(1)
        outputs.retain_grad()
        loss = functional.binary_cross_entropy_with_logits(outputs.float(), defect)
    (scale * loss).backward()
    return (outputs.grad == 0).float().mean().item(), model[2].bias.grad.item() / scale, loss.item()


# <blank> the factor with which GradScaler starts: 2 to the power of 16
# was: scale = 1.0
scale = 65536.0
# </blank>
results = {
    "float32": gradients(None),
    "float16": gradients(torch.float16),
    "float16, loss scaled": gradients(torch.float16, scale),
    "bfloat16": gradients(torch.bfloat16),
}
print(f"share of output gradients that are zero, the gradient of the last bias, and the loss  [{COUNTED}]")
for name, (zero_share, bias_gradient, loss) in results.items():
    print(f"{name:20} zero {zero_share:6.1%}   bias gradient {bias_gradient:+.5f}   loss {loss:.4f}")

# %% [markdown]
# Look at the gradient of the bias. In float32 it is close to zero, because the predicted share is about right. In float16 it is large and negative: only the pixels with a defect contribute, so the model learns to predict far more defects. No error is raised, the loss of this step is right to three digits, and the training goes wrong.
#
# The fix is a single factor. Gradients are proportional to the loss, so a loss multiplied by 65,536 moves all of them into the range of float16. Before the optimizer step they are divided by the same factor, in float32. bfloat16 has the range of float32 and needs no scaling.

# %% tags=["claim"]
display(L.reveal("zeros", results["float16"][0], "%"))
L.claim(
    "in float16 at least 95 % of these gradients are zero; scaled by 65,536, none is zero, and in bfloat16 none is "
    "either",
    results["float16"][0] >= 0.95 and results["float16, loss scaled"][0] == 0 and results["bfloat16"][0] == 0,
    before=results["float16"][0],
    after=results["float16, loss scaled"][0],
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# Which factor is right? If it is too small, gradients underflow; if it is too large, they overflow. `GradScaler` searches for it: if a gradient is inf or nan, it skips the step and halves the scale; after a number of successful steps it doubles the scale. It also works on a CPU, so you can watch it. Here it starts with a scale that is too high on purpose, and doubles it after 4 successful steps instead of the usual 2,000.

# %% tags=["measure"]
# <blank> a scaler for the CPU that starts at 2.0**30 and doubles after 4 good steps
# was: scaler = torch.amp.GradScaler("cpu", enabled=False)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=4)
# </blank>
model = half_precision.defect_detector(RATE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(20):
    with autocast(torch.float16, "cpu"):
        outputs = model(features[:16384]).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(outputs.float(), defect[:16384])
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    old_weights = [parameter.detach().clone() for parameter in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    weights_changed = any(not torch.equal(*pair) for pair in zip(old_weights, model.parameters(), strict=True))
    history.append((before, weights_changed, scaler.get_scale()))

for number, (before, weights_changed, after) in enumerate(history):
    change = "halved" if after < before else "doubled" if after > before else ""
    print(
        f"step {number:2d}: scale {before:13,.0f}, {'weights updated' if weights_changed else 'step skipped'}  {change}"
    )

# %% tags=["claim"]
skipped = [step for step in history if not step[1]]
L.claim(
    "every step that overflows halves the scale and changes no weight; after 4 successful steps the scale doubles",
    len(skipped) >= 2
    and all(after == before / 2 for before, _, after in skipped)
    and all(after in (before, 2 * before) for before, weights_changed, after in history if weights_changed)
    and any(after == 2 * before for before, _, after in history),
    before=history[0][0],
    after=history[-1][2],
    source=COUNTED,
)

# %% [markdown]
# A few skipped steps at the start, and one now and then, are normal. Many skipped steps in a row are a fault; the last question of this notebook shows one.

# %% [markdown]
# ### 08.4 Operations that need the range of float32
#
# Here are three formulas from everyday code: a softmax, a sum and a root mean square. float16 can represent all of their inputs.

# %% tags=["predict"]
L.predict("soft")

# %% tags=["measure"]
scores = torch.tensor([3.0, 12.0], dtype=torch.float16)
ones = torch.ones(70_000, dtype=torch.float16)
readings = torch.full((1000,), 300.0, dtype=torch.float16)


def formulas(dtype):
    """Compute all three formulas in this dtype."""
    powers = scores.to(dtype).exp()
    return {
        "softmax of 3 and 12": powers / powers.sum(),
        "sum of 70,000 ones": ones.to(dtype).sum(),
        "root mean square of 300s": readings.to(dtype).square().mean().sqrt(),
    }


# <blank> the same formulas in float32
# was: in_float32 = formulas(torch.float16)
in_float32 = formulas(torch.float32)
# </blank>
in_float16 = formulas(torch.float16)
columns = {"float16": in_float16, "float32": in_float32}
print(
    f"torch.softmax, in float16: {half_precision.format_tensor(scores.softmax(dim=0))}; it subtracts the maximum first"
)
pd.DataFrame(
    {
        dtype: {name: half_precision.format_tensor(value) for name, value in column.items()}
        for dtype, column in columns.items()
    }
)

# %% tags=["claim"]
display(L.reveal("soft"))
broken = [name for name, value in in_float16.items() if not bool(torch.isfinite(value).all())]
right = {"softmax of 3 and 12": 0.99988, "sum of 70,000 ones": 70_000.0, "root mean square of 300s": 300.0}
L.claim(
    "in float16 each of the three formulas gives inf or nan; in float32, with the same inputs, all three are right",
    len(broken) == 3 and all(abs(in_float32[name].max().item() / value - 1) < 1e-4 for name, value in right.items()),
    before=len(broken),
    after=sum(not bool(torch.isfinite(value).all()) for value in in_float32.values()),
    unit="of 3 broken",
    source=COUNTED,
)

# %% [markdown]
# autocast uses lists of operators: matrix products run in 16 bits, operators that need the range run in float32, and the others keep the type of their inputs. The lists depend on the device. The next cell tests both devices with float16 input: your CPU for real, and the GPU. (A virtual GPU follows the list in PyTorch's documentation, so in this case the cell shows the list and is not an experiment.) Before you run it, predict for each formula of 08.4 in which list its operators are.

# %% tags=["measure"]
with L.gpu("lists"):
    # <blank> the operators of a GPU: the device is "cuda"
    # was: on_gpu = half_precision.autocast_dtypes("cpu", torch.float16)
    on_gpu = half_precision.autocast_dtypes("cuda", torch.float16)
    # </blank>
on_cpu = half_precision.autocast_dtypes("cpu", torch.float16)
for name in on_gpu:
    print(f"{name:12s} GPU: {on_gpu[name]:8s} CPU: {on_cpu[name]}")

# %% tags=["claim"]
float32_on_gpu = [name for name, dtype in on_gpu.items() if dtype == "float32"]
float32_on_cpu = [name for name, dtype in on_cpu.items() if dtype == "float32"]
L.claim(
    "on a GPU, autocast runs products in 16 bits, and exp, pow, sum, softmax, layer_norm and norm in float32; on a "
    "CPU it runs fewer of these in float32",
    {"exp", "pow", "sum", "softmax", "layer_norm", "norm"} <= set(float32_on_gpu)
    and not {"matmul", "linear", "relu"} & set(float32_on_gpu)
    and len(float32_on_cpu) < len(float32_on_gpu),
    before=len(float32_on_cpu),
    after=len(float32_on_gpu),
    unit=f"of {len(on_gpu)} in float32",
    source=runs["lists"],
)


# %% [markdown]
# So a test on a CPU does not show what autocast protects on a GPU. And neither device protects your own formulas outside autocast, or after you call `.half()`.
#
# **Exercise: normalise rows with as few 32-bit numbers as possible.** `normalise` gets 256 rows of 1024 numbers in float16, whose magnitudes differ widely between rows. It returns each row divided by its root mean square, in float16. As written, the squares overflow and underflow. `x.float()` would fix that, but it writes 262,144 32-bit numbers, which is what you want to avoid. Use at most 1,024 32-bit numbers, four per row. `L.hint("normalise")` gives up to three hints.

# %% tags=["exercise"]
def normalise(x):
    """Return float16 rows, each divided by its root mean square, in float16."""
    # <blank> which single number of each row has to be in float32?
    # was: return x / x.pow(2).mean(dim=-1, keepdim=True).sqrt()
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return x * (x.shape[-1] ** 0.5 / norm).half()
    # </blank>


written, problem = half_precision.check_normalise(normalise)
print(problem or "right, and finite")

# %% tags=["claim"]
display(L.score("normalise", written))
L.claim(
    f"rows whose squares overflow float16 are normalised with at most {half_precision.WIDE_TARGET:,} 32-bit numbers",
    written is not None and written <= half_precision.WIDE_TARGET,
    before=half_precision.ROWS * half_precision.COLUMNS,
    after=written,
    unit="32-bit numbers",
    source=COUNTED,
)

# %% [markdown]
# ## Mixed precision in a training loop

# %% [markdown]
# ### 08.5 The snippet from the article
#
# One article shows `from torch.cuda.amp import autocast, GradScaler`, then `scaler = GradScaler()` and `with autocast():`, and saves the scaler together with the model. Test two things: what these imports do today, and why a resumed run needs the state of the scaler.

# %% tags=["predict"]
L.predict("resume")


# %% tags=["worked"]
def article_code():
    from torch.cuda.amp import GradScaler, autocast

    GradScaler()
    with autocast():
        pass


def current_code():
    # <blank> what the article does, with torch.amp: GradScaler and autocast take the device first, here L.device
    # was: article_code()
    torch.amp.GradScaler(L.device)
    with torch.autocast(L.device, dtype=torch.float16):
        pass
    # </blank>


def train_from(steps, saved=None, parts=("model", "optimizer", "scaler")):
    """Load these parts of a checkpoint, if there is one, train for some steps, and return a checkpoint."""
    model = half_precision.defect_detector(RATE).to(L.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(L.device, growth_interval=4)
    state = {"model": model, "optimizer": optimizer, "scaler": scaler}
    for part in parts if saved else ():
        state[part].load_state_dict(saved[part])
    for _ in range(steps):
        with torch.autocast(L.device, dtype=torch.float16):
            outputs = model(features[:4096].to(L.device)).squeeze(1)
            loss = functional.binary_cross_entropy_with_logits(outputs.float(), defect[:4096].to(L.device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # before clipping; otherwise the scaled gradients would be clipped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return precision_tables.checkpoint_round_trip({part: stateful.state_dict() for part, stateful in state.items()})


article_warnings, current_warnings = (
    precision_tables.warning_categories(article_code),
    precision_tables.warning_categories(current_code),
)
uninterrupted, checkpoint = train_from(20), train_from(10)
without_scaler_parts = ("model", "optimizer")
# <blank> resume with all parts of the checkpoint
# was: resumed = train_from(10, checkpoint, without_scaler_parts)
resumed = train_from(10, checkpoint)
# </blank>
without_scaler = train_from(10, checkpoint, without_scaler_parts)
print(f"article: {article_warnings.count('FutureWarning')} FutureWarnings; torch.amp: {len(current_warnings)} warnings")
scales = {"20 steps": uninterrupted, "10 steps, 10 resumed": resumed, "resumed without the scaler": without_scaler}
for name, state in scales.items():
    print(f"{name:28} scale {state['scaler']['scale']:11,.0f}")

# %% tags=["claim"]
display(L.reveal("resume"), L.same(uninterrupted, resumed))
L.claim(
    "torch.amp gives no warning, the article's code gives 2 FutureWarnings; a run resumed with the scaler ends with "
    "the same weights and scale as an uninterrupted one, without the scaler at another scale",
    article_warnings.count("FutureWarning") == 2
    and not current_warnings
    and resumed["scaler"]["scale"] == uninterrupted["scaler"]["scale"]
    and without_scaler["scaler"]["scale"] != uninterrupted["scaler"]["scale"],
    before=without_scaler["scaler"]["scale"],
    after=resumed["scaler"]["scale"],
    unit="scale",
    source=COUNTED,
)


# %% [markdown]
# The old imports still work on a CUDA GPU, for now. On a machine without one, they also disable autocast, with another warning, and the code trains in float32. With bfloat16 you need no scaler at all, and can ignore this section.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text. After a restart of the kernel, run the cells at the top of the notebook and the next cell first: 08.9 and 08.7 use its function. 08.6 also needs the runs `fp32` and `bf16` of the first two sections.

# %% tags=["given"]
def training(dtype, make_model=network, width=1024):
    """Return what gpulab.virtual needs: a function that builds a model and returns a training step."""

    def build():
        with torch.device("cuda"):
            model = make_model(width)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(batch):
            inputs = torch.randn(batch, width, device="cuda")
            with autocast(dtype):
                loss = model(inputs).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


# %% [markdown]
# ### 08.6 Is 16-bit arithmetic eight times as fast?
#
# An article says that NVIDIA GPUs compute eight times as fast in 16 bits as in 32, and that batch normalisation, activations and pooling become faster too. How much faster does each of them become? Look at the layers separately.

# %% tags=["predict"]
L.predict("eight")

# %% [markdown]
# The cell shows published peaks, then one call of each layer, and then a *roofline* chart. Each mark in the chart is a matrix product of the run: its arithmetic intensity (operations per byte) on the horizontal axis, and the rate that it reaches on the vertical axis. The slanted line is the limit of the memory bandwidth; the flat line is the limit of the tensor cores.

# %% tags=["measure"]
runs = gpulab.runs
fp32_layers = mixed_precision.layer_calls(runs["fp32"])
# <blank> the layers of the bfloat16 run
# was: bf16_layers = mixed_precision.layer_calls(runs["fp32"])
bf16_layers = mixed_precision.layer_calls(runs["bf16"])
# </blank>
display(precision_tables.peak_table(), precision_tables.layer_table(fp32_layers, bf16_layers))

PRODUCTS, PASSES = mixed_precision.MATMUL_LAYERS, mixed_precision.ELEMENTWISE_LAYERS
products_speedup = min(fp32_layers[name].ms / bf16_layers[name].ms for name in PRODUCTS)
passes_speedup = max(fp32_layers[name].ms / bf16_layers[name].ms for name in PASSES)
bytes_halve = all(1.9 < fp32_layers[name].bytes / bf16_layers[name].bytes < 2.1 for name in (*PRODUCTS, *PASSES))
gpulab.charts.roofline(runs["bf16"])

# %% tags=["claim"]
display(L.reveal("eight", passes_speedup, "times"))
L.claim(
    "in bfloat16 all these layers move half the bytes; matrix products are at least 5 times as fast, but batch "
    "normalisation, ReLU and pooling at most 2.4 times",
    bytes_halve and products_speedup >= 5 and passes_speedup <= 2.4,
    before=passes_speedup,
    after=products_speedup,
    unit="times",
    source=runs["bf16"],
)

# %% [markdown]
# All layers move half the bytes; only the optimizer does not. The speed-up depends on what limits a layer: arithmetic limits a matrix product, and memory bandwidth limits the others. Pooling gains a little less than a factor of two, because it also writes the position of each maximum as a 64-bit integer, which stays as wide as before (the column of bytes leaves these out). The optimizer gains nothing: weights, gradients and optimizer state stay in float32.
#
# "Eight times" is right for the matrix products of a V100 or a T4, compared with float32 without TF32. The ratio of the peaks is 14.8 on an H100 and 2.0 on an RTX 3090, and it is 2.0 wherever TF32 was already enabled.
#
# In the roofline, the large products are to the right of the corner, which is at about 300 operations per byte: arithmetic is their limit. The small mark on the left is the last layer, with a width of 64: it is a product, but memory bandwidth is its limit. ReLU would be much further to the left. Tensor cores raise the flat line. No data type raises the slanted line; a narrower type only moves fewer bytes.

# %% [markdown]
# ### 08.7 Joules per step
#
# Another article promises lower power consumption. But you pay for energy: power times time. A GPU at work draws more than its idle power, and at most its power limit. `compare_gpus` assumes a power in the upper half of this range, and multiplies it by the step time, which is itself estimated as a range. So its result comes from published limits and from estimated times, not from a power measurement. On a real GPU, `%gpucompare` shows the driver's own energy counter for runs of at least half a second.

# %% tags=["predict"]
L.predict("joules")


# %% tags=["measure"]
def joules(dtype):
    """Return the estimated range (minimum, maximum) of joules for a step with 65,536 samples."""
    comparison = gpulab.virtual.compare_gpus(training(dtype), ["h100"], batch=65536)
    return comparison.comparison.candidates[0].estimate.joules_range


fp32_joules = joules(None)
# <blank> the energy with bfloat16
# was: bf16_joules = joules(None)
bf16_joules = joules(torch.bfloat16)
# </blank>
print("J per step, minimum and maximum  [virtual H100 SXM, estimated from time and power limits]")
for name, (minimum, maximum) in {"float32": fp32_joules, "bfloat16": bf16_joules}.items():
    print(f"{name:8} {minimum:6.1f} {maximum:6.1f}")

# %% tags=["claim"]
display(L.reveal("joules", sum(bf16_joules) / sum(fp32_joules), "%"))
L.claim(
    "the highest estimate for a bfloat16 step is less than 0.7 times the lowest estimate for a float32 step",
    bf16_joules[1] < 0.7 * fp32_joules[0],
    before=fp32_joules[0],
    after=bf16_joules[1],
    unit="J per step",
    source="virtual H100 SXM, estimated",
)

# %% [markdown]
# ### 08.8 A model that is too small
#
# Now try a very small network. The cell counts the operators of one step on your CPU, and the kernels of the same step on the GPU.

# %% tags=["predict"]
L.predict("tiny")


# %% tags=["measure"]
def tiny_step(dtype, device):
    """Return a function that runs one training step of six small layers."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)])
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 16, device=device)

    def step():
        with autocast(dtype, device):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# <blank> bfloat16 for the tiny model
# was: tiny_dtype = None
tiny_dtype = torch.bfloat16
# </blank>
calls = {}
for name, dtype in {"tiny_fp32": None, "tiny_bf16": tiny_dtype}.items():
    calls[name] = mixed_precision.operator_counts(tiny_step(dtype, "cpu"))
    with L.gpu(name):
        step = tiny_step(dtype, "cuda")
        for _ in range(12):
            step()
    run = gpulab.runs[name]
    casts = calls[name].get("aten._to_copy", 0)
    print(f"{name}: {sum(calls[name].values())} operators, {casts} of them casts   [{COUNTED}]")
    kernels_and_time = f"{throughput.kernels_per_step(run):.0f} kernels, {throughput.step_ms(run):.2f} ms"
    print(f"{' ' * len(name)}  {kernels_and_time} per step   [{run.source}]")
operators = [sum(counts.values()) for counts in calls.values()]

# %% tags=["claim"]
display(L.reveal("tiny", operators[1] / operators[0], "times as many"))
L.claim(
    "for six tiny layers, autocast adds at least 15 % operators per step, and all of them are casts",
    operators[1] > 1.15 * operators[0] and operators[1] - operators[0] == calls["tiny_bf16"]["aten._to_copy"],
    before=operators[0],
    after=operators[1],
    unit="operators",
    source=COUNTED,
)

# %% [markdown]
# On the GPU, each cast is a kernel that has to be launched: compare the numbers of kernels and the step times above. Remember this negative result: in a launch-bound step, autocast makes the step longer. First give each launch more work, or make launches cheaper, as in [12 Launches, fusion and graphs](12_launch_fusion_graphs.ipynb).

# %% [markdown]
# ### 08.9 Does the batch double?
#
# "It halves the memory", "the batch can be up to twice as large": articles say both. `max_batch` runs the training step on a virtual GPU with growing batch sizes, and simulates PyTorch's caching allocator, until a step does not fit. Here the GPU is an L4 with 24 GB.

# %% tags=["predict"]
L.predict("batch")

# %% tags=["measure"]
# <blank> the batch under bfloat16
# was: batch_dtype = None
batch_dtype = torch.bfloat16
# </blank>
searches = {
    "float32": gpulab.virtual.max_batch(training(None), "l4", start=65536),
    "autocast": gpulab.virtual.max_batch(training(batch_dtype), "l4", start=65536),
}
batches = {}
print("[virtual L4, estimated]")
for name, search in searches.items():
    batches[name] = search.max_batch.batch
    fixed, per_sample = search.max_batch.fixed_bytes / 2**20, search.max_batch.sample_bytes / 1024
    print(f"{name:8} at most {batches[name]:,} samples: {fixed:.0f} MiB for any batch, {per_sample:.0f} KiB per sample")


def heavy_network(width):
    """Return a network with many weights."""
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(16)])


peaks = {}
for name, dtype in {"float32": None, "autocast": batch_dtype}.items():
    peak = gpulab.virtual.fits(training(dtype, heavy_network, 4096), "l4", batch=64).fit.estimate.peak
    peaks[name] = peak.bytes
    print(f"{name:8} peak {peak.bytes / 2**20:,.0f} MiB, for 16 layers of width 4096 and 64 samples")

# %% tags=["claim"]
display(L.reveal("batch", batches["autocast"] / batches["float32"], "times"))
L.claim(
    "with autocast the batch grows by at least 20 % but does not double; if weights fill the memory, the peak does "
    "not fall",
    1.2 <= batches["autocast"] / batches["float32"] < 2 and peaks["autocast"] >= peaks["float32"],
    before=batches["float32"],
    after=batches["autocast"],
    unit="samples",
    source="virtual L4, estimated",
)

# %% [markdown]
# So "up to twice" is right as an upper bound, and "half the memory" is right for activations only. If a model with billions of weights trains on small batches, autocast does not prevent an out-of-memory error: 16-bit copies of the weights are added to the 32-bit weights.

# %% [markdown]
# ### 08.10 Updates that are too small
#
# Gradients can be right and still have no effect. A float16 weight of 1.0 is to be decreased by 0.0001, a thousand times.

# %% tags=["predict"]
L.predict("master")

# %% [markdown]
# Complete the line. The updates must go to a copy that can represent them; the model uses a float16 copy of it.

# %% tags=["exercise"]
direct = torch.ones(1000, dtype=torch.float16)
for _ in range(1000):
    direct -= 0.0001

weights = torch.ones(1000, dtype=torch.float16)
# <blank> make a copy of the weights in float32; the loop below updates it
# was: master = weights
master = weights.float()
# </blank>
for _ in range(1000):
    master -= 0.0001
    weights.copy_(master)
print(f"float16, updated directly: {direct[0]:.4f}")
print(f"float16, from the master copy: {weights[0]:.4f}; the master copy is {master.dtype}")

# %% tags=["claim"]
display(L.reveal("master", direct[0].item()))
L.claim(
    "float16 loses all of a thousand updates of 0.0001 to a weight of 1.0; with a float32 master copy none is lost",
    bool((direct == 1).all()) and bool(((weights - 0.9).abs() < 0.001).all()),
    before=direct[0].item(),
    after=weights[0].item(),
    source=COUNTED,
)

# %% [markdown]
# autocast solves this in another way: the parameters stay in float32, so they are the master copy, and they are cast each time they are used. `model.half()` has no such copy. `model.bfloat16()` has none either, and it loses updates that are eight times as large: below 1.0, bfloat16 numbers are 0.004 apart.

# %% [markdown]
# ### 08.11 In Keras: a policy for layers
#
# In Keras, one line sets a policy for all layers that are created after it:
#
# ```python
# keras.mixed_precision.set_global_policy("mixed_float16")
# outputs = keras.layers.Dense(10, activation="softmax", dtype="float32")(x)  # the last layer, set explicitly
# ```
#
# | in PyTorch | in Keras |
# |---|---|
# | `torch.autocast(..., dtype=torch.float16)`, per operator | policy `mixed_float16`, per layer |
# | parameters stay float32 | `variable_dtype` is float32, `compute_dtype` float16 |
# | `GradScaler` around the optimizer | `compile` wraps the optimizer in a `LossScaleOptimizer` |
# | softmax and losses run in float32 by a list | you set `dtype="float32"` on the last layer |
# | `dtype=torch.bfloat16`, no scaler | `mixed_bfloat16`, no wrapping |
#
# The course does not need Keras to show why the last layer is set explicitly. The right class of an image is 25 logits behind another one. Write the loss as a layer with a `dtype` computes it: the softmax in that type, then minus the logarithm of the probability of the right class.

# %% tags=["measure"]
LOGITS = torch.tensor([0.0, 25.0])  # the first class is right


def layer_loss(dtype):
    """Return the probability of the right class after a softmax in this dtype, and the loss, as floats."""
    # <blank> softmax of LOGITS.to(dtype), its first element, and minus its logarithm
    # was: probability = torch.tensor(1.0)
    probability = LOGITS.to(dtype).softmax(dim=0)[0]
    # </blank>
    return probability.item(), -probability.log().item()


layer_losses = {dtype: layer_loss(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
for dtype, (probability, loss) in layer_losses.items():
    print(f"{dtype!s:15} probability {probability:.2g}, loss {loss:.4g}")

# %% tags=["claim"]
L.claim(
    "with a last layer in float16, the probability of a class 25 logits behind becomes 0 and the loss infinite; "
    "in float32 and bfloat16 the loss is 25, within 1 %",
    abs(layer_losses[torch.float32][1] - 25) < 0.25
    and abs(layer_losses[torch.bfloat16][1] - 25) < 0.25
    and layer_losses[torch.float16] == (0, float("inf")),
    before=layer_losses[torch.float32][0],
    after=layer_losses[torch.float16][0],
    names=("probability in float32", "in float16"),
    source=COUNTED,
)

# %% [markdown]
# The smallest number of float16 is 6e-8. (The losses of Keras replace probabilities below 1e-7 by 1e-7. So the loss is finite there, but its gradient is zero.)

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "a"
# </blank>
L.check("keras", answer)

# %% [markdown]
# ## Transfer
#
# The question is about another run. Read its symptoms, and decide which one identifies the cause.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# Start with one line: enable TF32 if it is off. Then use autocast in bfloat16 if the GPU supports it (Ampere and later); on older GPUs, use float16 with a scaler, and save the scaler in the checkpoint. Newer GPUs also multiply narrower types: FP8 since Ada and Hopper, FP4 since Blackwell, each at about twice the rate of the next wider type on data-center GPUs. autocast does not use them; libraries such as torchao and Transformer Engine do, and this course does not measure them. Then read the report again: once the matrix products are fast, the remaining kernels are limited by memory bandwidth, and tensor cores do not help them. [09 Memory](09_memory_anatomy_and_oom.ipynb) shows what else is in memory besides activations.

# %% tags=["card"]
L.card()
