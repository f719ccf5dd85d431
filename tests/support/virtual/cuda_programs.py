"""Ordinary CUDA programs, to be run unmodified on a virtual GPU.

Run as a script with names of snippets, it runs each on a virtual GPU of its own and prints one line of JSON per snippet
with the outcome: worked, refused (an error of gpulab) or failed.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import traceback

import torch
import torch.nn.functional as F  # noqa: N812 - as people write it
from torch import nn

from gpulab.errors import GpulabError
from gpulab.hardware.lookup import resolve
from gpulab.virtual.device.fake_device import FakeDevice
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory

WORKS, REFUSES = {}, {}


class StillClock:
    """A clock on which recorded events complete immediately."""

    now_ns = 0

    def event_done_ns(self, event):
        return 0


def device(gpu="h100", records=None, memory=None):
    spec = resolve(gpu)
    gpu_memory = memory or SimulatedMemory(spec.usable_bytes, spec.context_bytes)
    return FakeDevice(spec, (records if records is not None else []).append, gpu_memory, StillClock())


def works(snippet):
    WORKS[snippet.__name__] = snippet
    return snippet


def refuses(snippet):
    REFUSES[snippet.__name__] = snippet
    return snippet


def error_message(call, kind=RuntimeError):
    """Return the message of the error that a call must raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def trained(model, inputs, loss=lambda out: out.float().pow(2).mean(), optimizer=None, steps=2):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(*inputs))
        value.backward()
        optimizer.step()
    assert value.device.type == "cuda"
    return value.item()


# Layers.


@works
def perceptron():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)).cuda()
    trained(model, (torch.randn(5, 8, device="cuda"),))


@works
def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 2),
        nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).to("cuda")  # fmt: skip
    trained(model, (torch.randn(2, 3, 16, 16).to("cuda"),))


@works
def convolutions_in_1d_and_3d():
    trained(nn.Conv1d(4, 8, 3, padding=1).cuda(), (torch.randn(2, 4, 10).cuda(),))
    trained(nn.Conv3d(2, 4, 3, groups=2).cuda(), (torch.randn(1, 2, 6, 6, 6).cuda(),))


@works
def channels_last():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    model = model.to("cuda", memory_format=torch.channels_last)
    images = torch.randn(2, 3, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    assert model(images).is_contiguous(memory_format=torch.channels_last)
    trained(model, (images,))


@works
def lstm():
    model = nn.LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True).cuda()
    out, (h, c) = model(torch.randn(4, 7, 8).cuda())
    assert out.shape == (4, 7, 32)
    assert h.shape == c.shape == (4, 4, 16)
    trained(model, (torch.randn(4, 7, 8).cuda(),), loss=lambda out: out[0].mean())


@works
def gru_and_plain_rnn():
    for kind in (nn.GRU, nn.RNN):
        trained(kind(8, 16).cuda(), (torch.randn(7, 4, 8).cuda(),), loss=lambda out: out[0].mean())
    h, c = nn.LSTMCell(8, 16).cuda()(torch.randn(4, 8).cuda())
    (h + c).sum().backward()
    nn.GRUCell(8, 16).cuda()(torch.randn(4, 8).cuda()).sum().backward()
    nn.RNNCell(8, 16).cuda()(torch.randn(4, 8).cuda()).sum().backward()


@works
def packed_sequences():
    model = nn.LSTM(8, 16, batch_first=True).cuda()
    lengths = torch.tensor([7, 5, 2])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 7, 8).cuda(), lengths, batch_first=True)
    out, _ = model(packed)
    padded, back = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    assert padded.shape == (3, 7, 16)
    assert back.tolist() == [7, 5, 2]
    padded.sum().backward()


@works
def inference_with_lstm_and_attention():
    model, layer = nn.LSTM(8, 16).cuda().eval(), nn.MultiheadAttention(16, 4).cuda().eval()
    with torch.inference_mode():
        out, _ = model(torch.randn(7, 4, 8).cuda())
        out, _ = layer(out, out, out)
        F.scaled_dot_product_attention(*(torch.randn(1, 2, 4, 8, device="cuda") for _ in range(3)))
    assert out.shape == (7, 4, 16)


@works
def multihead_attention():
    layer = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True).cuda()
    x = torch.randn(2, 5, 16, device="cuda")
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool, device="cuda"), 1)
    trained(layer, (x, x, x), loss=lambda out: out[0].mean())
    _, weights = layer(x, x, x, attn_mask=mask, need_weights=True)
    assert weights.shape == (2, 5, 5)
    layer(x, x, x, need_weights=False, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool, device="cuda"))


@works
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).cuda()
    trained(model, (torch.randn(2, 5, 16).cuda(),))
    model.eval()
    with torch.no_grad():
        model(torch.randn(2, 5, 16).cuda())


@works
def whole_transformer():
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).cuda()
    x = torch.randn(2, 5, 16).cuda()
    mask = nn.Transformer.generate_square_subsequent_mask(5, device="cuda")
    model(x, x, tgt_mask=mask, tgt_is_causal=True).sum().backward()


@works
def attention_of_every_kind():
    q, k, v = (torch.randn(2, 4, 8, 16, device="cuda", requires_grad=True) for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(8, 8, dtype=torch.bool, device="cuda")
    ).sum().backward()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert F.scaled_dot_product_attention(q, k, v).dtype is torch.bfloat16
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).sum().backward()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert "No available kernel" in error_message(lambda: F.scaled_dot_product_attention(q, k, v))


@works
def embeddings():
    model = nn.Sequential(nn.Embedding(100, 16, padding_idx=0), nn.LayerNorm(16))
    trained(model.cuda(), (torch.randint(0, 100, (4, 7)).cuda(),))
    bag = nn.EmbeddingBag(100, 16, mode="mean").cuda()
    bag(torch.randint(0, 100, (12,)).cuda(), torch.tensor([0, 4, 8]).cuda()).sum().backward()


@works
def normalisations():
    x = torch.randn(4, 8, 6, 6, device="cuda")
    for layer in (nn.BatchNorm2d(8), nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(2, 8), nn.LocalResponseNorm(2),
                  nn.LayerNorm([8, 6, 6]), nn.RMSNorm([8, 6, 6])):  # fmt: skip
        layer.cuda()(x).sum().item()


@works
def activations():
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    for name in ("ReLU", "GELU", "SiLU", "ELU", "Mish", "Softplus", "Hardswish", "LeakyReLU", "PReLU", "Softmax",
                 "LogSoftmax", "GLU", "Tanh", "Sigmoid", "SELU"):  # fmt: skip
        kind = getattr(nn, name)
        layer = kind(-1) if name in ("Softmax", "LogSoftmax") else kind()
        layer.cuda()(x).sum().backward()


@works
def interpolation_and_padding():
    x = torch.randn(1, 3, 8, 8, device="cuda", requires_grad=True)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        F.interpolate(x, scale_factor=2, mode=mode).sum().backward()
    F.pad(x, (1, 1, 1, 1), mode="reflect").sum().backward()
    nn.PixelShuffle(2)(torch.randn(1, 4, 4, 4, device="cuda"))
    grid = F.affine_grid(torch.eye(2, 3, device="cuda")[None], (1, 3, 8, 8), align_corners=False)
    F.grid_sample(x, grid, align_corners=False).sum().backward()


@works
def weight_and_spectral_norm():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).cuda()
    trained(model, (torch.randn(2, 8).cuda(),))
    trained(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).cuda(), (torch.randn(2, 8).cuda(),))


# Losses.


@works
def losses():
    x = torch.randn(4, 10, device="cuda", requires_grad=True)
    y = torch.randint(0, 10, (4,), device="cuda")
    like = torch.rand(4, 10, device="cuda")
    for loss in (
        F.cross_entropy(x, y, label_smoothing=0.1), F.mse_loss(x, like), F.l1_loss(x, like), F.smooth_l1_loss(x, like),
        F.binary_cross_entropy_with_logits(x, like), F.binary_cross_entropy(x.sigmoid(), like), F.huber_loss(x, like),
        F.kl_div(x.log_softmax(-1), like, reduction="batchmean"), F.nll_loss(x.log_softmax(-1), y),
        F.cosine_embedding_loss(x, like, torch.ones(4, device="cuda")), F.multi_margin_loss(x, y),
        F.triplet_margin_loss(x, like, like + 1), F.cross_entropy(x, y, ignore_index=3, weight=like[0]),
    ):  # fmt: skip
        loss.backward()
        assert 0 <= loss.item() < 100


@works
def ctc_loss():
    log_probs = torch.randn(20, 4, 10, device="cuda").log_softmax(2).detach().requires_grad_()
    targets = torch.randint(1, 10, (4, 8), device="cuda")
    lengths = torch.full((4,), 20, dtype=torch.long), torch.full((4,), 8, dtype=torch.long)
    F.ctc_loss(log_probs, targets, *lengths).backward()
    assert log_probs.grad.shape == log_probs.shape


# Optimizers and schedules.


@works
def optimizers():
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad,
                 torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adadelta, torch.optim.Adamax):  # fmt: skip
        model = nn.Linear(8, 4).cuda()
        trained(model, (torch.randn(2, 8).cuda(),), optimizer=kind(model.parameters(), lr=0.1))


@works
def fused_and_other_optimizers():
    for options in ({"fused": True}, {"foreach": True}, {"foreach": False}, {"capturable": True}, {"amsgrad": True}):
        model = nn.Linear(8, 4, device="cuda")
        trained(model, (torch.randn(2, 8).cuda(),), optimizer=torch.optim.Adam(model.parameters(), **options))
    model = nn.Linear(8, 4).cuda()
    trained(model, (torch.randn(2, 8).cuda(),), optimizer=torch.optim.SGD(model.parameters(), 0.1, 0.9, fused=True))


@works
def lbfgs_with_a_closure():
    model, x = nn.Linear(8, 1).cuda(), torch.randn(4, 8).cuda()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@works
def schedules_and_clipping():
    model = nn.Linear(8, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for _ in range(3):
        model(torch.randn(2, 8).cuda()).sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
    assert torch.isfinite(norm)
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(norm.item())


@works
def averaged_models():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).cuda()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    trained(model, (torch.randn(4, 8).cuda(),))
    average.update_parameters(model)
    average.update_parameters(model)
    average(torch.randn(4, 8).cuda())
    with torch.no_grad():
        for averaged, current in zip(average.parameters(), model.parameters(), strict=True):
            averaged.mul_(0.9).add_(current, alpha=0.1)


@works
def gradient_accumulation():
    model = nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        (model(torch.randn(2, 8).cuda()).mean() / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


# Mixed precision.


@works
def autocast_and_scaler():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            out = model(torch.randn(2, 3, 8, 8).cuda())
            loss = F.cross_entropy(out, torch.tensor([0, 1]).cuda())
        assert out.dtype is torch.float16
        assert loss.dtype is torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert len(optimizer.state) > 0, "the scaler skipped the step"
    assert scaler.get_scale() == 65536.0


@works
def old_names_of_amp():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scaler = torch.cuda.amp.GradScaler()
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.cuda.amp.autocast():
            loss = model(torch.randn(2, 8).cuda()).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@works
def autocast_lists():
    a = torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (a @ a).dtype is torch.bfloat16
        assert F.linear(a, a).dtype is torch.bfloat16
        assert F.softmax(a @ a, -1).dtype is torch.float32
        assert F.layer_norm(a @ a, (4,)).dtype is torch.float32
        assert (a @ a).exp().dtype is torch.float32
        assert (a @ a + a).dtype is torch.float32
        assert F.relu(a @ a).dtype is torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (a @ a).dtype is torch.float32
        assert "unsafe to autocast" in error_message(lambda: F.binary_cross_entropy(a.sigmoid(), a.sigmoid()))


@works
def half_precision_models():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).cuda().half()
    assert model(torch.randn(2, 8).cuda().half()).dtype is torch.float16
    model.to(torch.bfloat16)
    trained(model, (torch.randn(2, 8, dtype=torch.bfloat16, device="cuda"),))


# Autograd.


@works
def checkpointing():
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.ReLU()).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    for use_reentrant in (True, False):
        checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    checkpoint_sequential(block, 2, x, use_reentrant=False).sum().backward()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        checkpoint(block, x, use_reentrant=False).sum().backward()


@works
def hooks():
    calls = []
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
    model[0].register_forward_hook(lambda module, args, out: calls.append("forward"))
    model[1].register_full_backward_hook(lambda module, into, out: calls.append("backward"))
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: calls.append("tensor") or grad * 2)
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("accumulated"))
    model(x).sum().backward()
    assert sorted(calls) == ["accumulated", "backward", "forward", "tensor"]


@works
def custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 + 0 * x

    x = torch.randn(3, device="cuda", requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.device.type == "cuda"


@works
def higher_derivatives():
    x = torch.randn(3, device="cuda", requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.pow(2).sum().backward()
    y = (x**2).sum()
    y.backward(retain_graph=True)
    y.backward()
    torch.autograd.functional.jacobian(lambda v: v**2, x.detach())


@works
def anomaly_detection():
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.randn(3, device="cuda", requires_grad=True)
        (x * 2).sum().backward()


@works
def functional_transforms():
    from torch.func import functional_call, grad, vmap

    x = torch.randn(5, 3, device="cuda")
    assert vmap(lambda row: row.sum())(x).shape == (5,)
    assert grad(lambda v: (v**2).sum())(x).shape == x.shape
    model = nn.Linear(3, 2).cuda()
    parameters = dict(model.named_parameters())

    def loss(parameters, row):
        return functional_call(model, parameters, row).pow(2).sum()

    assert vmap(grad(loss), in_dims=(None, 0))(parameters, x)["weight"].shape == (5, 2, 3)


@works
def modes_without_gradients():
    model = nn.Linear(8, 4).cuda()
    with torch.no_grad():
        assert not model(torch.randn(2, 8).cuda()).requires_grad
    with torch.inference_mode():
        out = model(torch.randn(2, 8, device="cuda"))
        assert out.argmax(1).cpu().shape == (2,)
        out.mul_(2)


# Values that are read.


@works
def reading_values():
    x = torch.randn(3, 4, device="cuda")
    loss = x.pow(2).mean()
    total = loss.item() + float(loss) + loss.cpu().item() + loss.detach().cpu().numpy().item()
    assert total == total
    assert len(x.tolist()) == 3
    assert x.cpu().numpy().shape == (3, 4)
    assert isinstance(int(x.argmax()), int)
    assert f"{loss:.3f}"
    assert "cuda:0" in repr(x)
    assert "cuda:0" in str(loss)
    if loss > 100:
        raise AssertionError
    assert torch.equal(x, x)
    assert torch.allclose(x, x)


@works
def numpy_needs_cpu():
    x = torch.randn(3, device="cuda")
    for read in (x.numpy, lambda: __import__("numpy").asarray(x)):
        assert "can't convert cuda:0 device type tensor to numpy" in error_message(read, TypeError)


@works
def checks_for_numbers():
    loss = torch.randn(8, device="cuda").mean()
    assert torch.isfinite(loss)
    assert not torch.isnan(loss)
    assert not loss.isinf().any()
    assert torch.isfinite(torch.randn(8, device="cuda")).all().item()
    torch.testing.assert_close(loss, loss + 1e-9)


@works
def accuracy():
    out, y = torch.randn(32, 10, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    correct = (out.argmax(1) == y).sum().item()
    assert correct >= 0
    _, places = out.topk(5, dim=1)
    assert places.eq(y[:, None]).any(1).float().mean().item() <= 1


@works
def masks_and_nonzero():
    x = torch.randn(10, 4, device="cuda")
    assert x[x > 0].shape == (20,)
    assert x[x[:, 0] > 0].shape == (5, 4)
    assert (x > 0).nonzero().shape == (20, 2)
    rows, columns = torch.where(x > 0)
    assert rows.shape == columns.shape == (20,)
    assert torch.masked_select(x, x > 0).shape == (20,)
    x[x < 0] = 0
    x[x[:, 0] > 0] = 1.0
    x.masked_fill_(x > 1, 1)
    assert torch.unique(x.long()).shape == (20,)
    _, inverse, _ = torch.unique(x.long(), return_inverse=True, return_counts=True)
    assert inverse.shape == (10, 4)
    torch.bincount(torch.randint(0, 5, (10,), device="cuda"), minlength=5)
    torch.unique_consecutive(x.flatten().long())
    torch.repeat_interleave(x, 2, dim=0)
    torch.nonzero(x, as_tuple=True)


@works
def values_that_the_host_knows():
    assert torch.tensor(3, device="cuda").item() == 3
    assert torch.tensor(2.5).cuda().item() == 2.5
    assert torch.full((), 7.0, device="cuda").item() == 7.0
    assert torch.zeros((), device="cuda").item() == 0


# Operators.


@works
def indexing_and_scattering():
    x, i = torch.randn(10, 4, device="cuda", requires_grad=True), torch.randint(0, 10, (5,), device="cuda")
    x[i].sum().backward()
    x[i.cpu()].sum().backward()
    y = torch.zeros(10, 4, device="cuda")
    y[i] = 1.0
    y[i, 0] = torch.ones(5, device="cuda")
    y.index_put_((i,), torch.ones(5, 4, device="cuda"), accumulate=True)
    y.scatter_(0, i[:, None].expand(5, 4), 1.0)
    y.scatter_add_(0, i[:, None].expand(5, 4), torch.ones(5, 4, device="cuda"))
    y.index_add_(0, i, torch.ones(5, 4, device="cuda"))
    y.gather(0, i[:, None])
    y.index_select(0, i)
    F.one_hot(i, num_classes=10)
    torch.take_along_dim(y, i[:, None], 0)
    y[:, 1:3] += 1
    y[..., None, 0]


@works
def reductions_and_sorting():
    x = torch.randn(10, 4, device="cuda")
    x.sort(dim=0), x.argsort(), x.topk(2), x.cumsum(0), x.cumprod(1), x.median(), x.max(1), x.std(), x.var(0)
    x.norm(), x.prod(), x.logsumexp(1), x.amax(), x.quantile(0.5), x.kthvalue(2), x.mode(), x.any(), x.all()
    x.histc(10), torch.searchsorted(x[:, 0].sort().values, x[:, 1]), torch.bucketize(x, x[0].sort().values)


@works
def products():
    a, b = torch.randn(4, 5, device="cuda"), torch.randn(5, 6, device="cuda")
    torch.einsum("ij,jk->ik", a, b)
    torch.bmm(a[None], b[None])
    torch.baddbmm(torch.zeros(1, 4, 6, device="cuda"), a[None], b[None])
    torch.tensordot(a, b, dims=1)
    torch.outer(a[0], b[0])
    torch.addmm(torch.zeros(6, device="cuda"), a, b)
    torch.linalg.norm(a), torch.linalg.svd(a), torch.linalg.qr(a), torch.linalg.inv(a @ a.T), torch.cdist(a, a)
    torch.kron(a, a), torch.matmul(a[None, None], b)


@works
def complex_and_fourier():
    x = torch.randn(4, 16, device="cuda", requires_grad=True)
    torch.fft.irfft(torch.fft.rfft(x)).sum().backward()
    z = torch.fft.fft(x)
    (z * z.conj()).real.sum().backward()
    torch.stft(x, 8, return_complex=True, window=torch.hann_window(8, device="cuda"))
    torch.view_as_real(z), z.abs(), z.angle()


@works
def random_numbers():
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    x = torch.rand(4, 5, device="cuda")
    torch.multinomial(x, 2), torch.bernoulli(x), torch.randperm(10, device="cuda"), torch.randint_like(x, 10)
    torch.normal(0.0, 1.0, (3,), device="cuda"), x.uniform_(), x.normal_(), x.exponential_(), torch.randn_like(x)
    generator = torch.Generator(device="cuda").manual_seed(1)
    torch.randn(3, device="cuda", generator=generator)
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    F.dropout(x, 0.5, training=True)
    torch.distributions.Categorical(logits=x).sample()
    torch.distributions.Normal(x, 1.0).rsample()


@works
def shapes_and_joins():
    x = torch.randn(4, 6, device="cuda")
    torch.cat([x, x]), torch.stack([x, x]), x.split(2, 1), x.chunk(2), x.unbind(), x.repeat(2, 2), x.roll(1), x.flip(0)
    x.view(2, 12), x.reshape(-1), x.permute(1, 0).contiguous(), x.expand(2, 4, 6), x.T, x.unfold(0, 2, 1), x.tril()
    torch.meshgrid(x[0], x[0], indexing="ij"), torch.where(x > 0, x, 0.0), x.clamp(0, 1), x.lerp(x, 0.5)
    torch.arange(5, device="cuda"), torch.linspace(0, 1, 5, device="cuda"), torch.eye(3, device="cuda")
    x.new_zeros(3), x.new_tensor([1.0, 2.0]), torch.zeros_like(x), torch.as_tensor([1, 2], device="cuda")
    assert x.new_tensor([1.0]).device.type == "cuda"
    assert len(x) == 4
    for row in x:
        assert row.shape == (6,)


# Devices.


@works
def asking_about_the_gpu():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name() == torch.cuda.get_device_properties(0).name == "NVIDIA H100 80GB HBM3"
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.get_device_properties("cuda").total_memory > 70e9
    torch.cuda.set_device(0)
    with torch.cuda.device(0):
        assert torch.empty(1, device="cuda").get_device() == 0
    assert torch.backends.cudnn.is_available()
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
    if hasattr(torch, "accelerator"):  # since torch 2.6
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.version.cuda


@works
def memory_questions():
    x = torch.empty(2**20, device="cuda")
    assert torch.cuda.memory_allocated() == 2**22
    assert torch.cuda.memory_reserved() >= 2**22
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 2**22
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
    assert "memory" in torch.cuda.memory_summary().lower()


@works
def out_of_memory():
    message = error_message(lambda: torch.empty(2**24, 2**20, device="cuda"), torch.cuda.OutOfMemoryError)
    assert "CUDA out of memory. Tried to allocate" in message
    assert "GPU 0 has a total capacity of 79.1" in message
    batch, tensors = 2**24, None
    while tensors is None:
        try:
            tensors = [torch.empty(batch, 1024, device="cuda") for _ in range(2)]
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            batch //= 2
    assert batch < 2**24


@works
def second_gpu():
    for create in (lambda: torch.zeros(1, device="cuda:1"), lambda: torch.zeros(1).to("cuda:1"),
                lambda: torch.zeros(1).cuda(1)):  # fmt: skip
        assert "invalid device ordinal" in error_message(create)


@works
def default_devices():
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    finally:
        torch.set_default_device(None)
    with torch.device("cuda"):
        model = nn.Linear(2, 2)
        assert torch.arange(3).is_cuda
    assert model(torch.ones(1, 2, device=torch.device("cuda", 0))).is_cuda
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    assert empty.weight.is_meta
    assert empty.to_empty(device="cuda").weight.is_cuda


@works
def mixed_devices():
    gpu, cpu = torch.ones(3, device="cuda"), torch.ones(3)
    message = error_message(lambda: gpu + cpu)
    assert "Expected all tensors to be on the same device" in message
    assert "cuda:0 and cpu" in message
    assert "Expected all tensors to be on the same device" in error_message(lambda: nn.Linear(3, 3).cuda()(cpu))
    message = error_message(lambda: nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 3, 3)))
    assert message == "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"
    assert (gpu + torch.tensor(1.0)).is_cuda
    assert (torch.tensor(2.0) * gpu).is_cuda


@works
def real_tensors_stay_real():
    x = torch.arange(6.0).reshape(2, 3)
    assert (x @ x.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    model = nn.Linear(3, 1)
    model(x).sum().backward()
    assert model.weight.grad.tolist() == [[3.0, 5.0, 7.0]]
    assert x[x > 2].tolist() == [3.0, 4.0, 5.0]


@works
def moving_tensors():
    x = torch.randn(4, 3)
    gpu = x.to("cuda", non_blocking=True)
    assert gpu.to("cuda") is gpu
    assert gpu.cuda() is gpu
    assert gpu.to(gpu).is_cuda
    assert x.to(gpu).is_cuda
    assert gpu.to(torch.float16).dtype is torch.float16
    assert gpu.to("cuda", torch.float64).dtype is torch.float64
    assert gpu.half().float().cpu().device.type == "cpu"
    assert gpu.to("cpu", torch.float16).dtype is torch.float16
    assert gpu.type(torch.int32).dtype is torch.int32
    assert gpu.type() == "torch.cuda.FloatTensor"
    assert isinstance(gpu, torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor([1, 2]).dtype is torch.int64
    assert gpu.is_cuda
    assert gpu.device == torch.device("cuda:0")
    gpu.copy_(x)
    x.copy_(gpu)
    gpu.data = torch.zeros(4, 3, device="cuda")
    assert gpu.data_ptr() != 0
    assert x.pin_memory().is_pinned()


@works
def streams_and_events():
    side = torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    x = torch.randn(8, 8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x @ x
        y.record_stream(side)
        assert torch.cuda.current_stream() == side
    torch.cuda.current_stream().wait_stream(side)
    event = side.record_event()
    event.wait()
    end.record()
    end.synchronize()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0
    assert event.query()
    with torch.cuda.nvtx.range("part"):
        torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.range_pop()
    side.synchronize()


from torch.cuda import Event, Stream, empty_cache, is_available, max_memory_allocated, synchronize  # noqa: E402


@works
def names_that_were_imported_before():
    assert is_available()
    begin, end = Event(enable_timing=True), Event(enable_timing=True)
    with torch.cuda.stream(Stream()):
        begin.record()
        torch.ones(2**20, device="cuda")
        end.record()
    synchronize()
    empty_cache()
    assert begin.elapsed_time(end) >= 0
    assert max_memory_allocated() == 2**22


@works
def prefetching_on_a_side_stream():
    side, batches = torch.cuda.Stream(), [torch.randn(4, 8).pin_memory() for _ in range(3)]
    model, ready = nn.Linear(8, 2).cuda(), None
    for batch in batches:
        with torch.cuda.stream(side):
            following = batch.cuda(non_blocking=True)
        if ready is not None:
            model(ready).sum().backward()
        torch.cuda.current_stream().wait_stream(side)
        ready = following


# Data.


class OnTheGpu(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, place):
        return torch.ones(2).cuda()


@works
def workers_have_no_gpu():
    loader = torch.utils.data.DataLoader(OnTheGpu(), num_workers=1)
    assert "Cannot re-initialize CUDA in forked subprocess" in error_message(lambda: list(loader))
    assert next(iter(torch.utils.data.DataLoader(OnTheGpu()))).is_cuda


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, place):
        return torch.full((3,), float(place)), place % 2


@works
def loader_in_the_main_process():
    model = nn.Linear(3, 2).cuda()
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, shuffle=True, pin_memory=True)
    values = set()
    for x, y in loader:
        assert x.is_pinned()
        values.update(x[:, 0].tolist())
        F.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True)).backward()
    assert values == set(map(float, range(12)))


@works
def loader_with_workers():
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True)
    for _ in range(2):
        values = set()
        for x, _y in loader:
            assert x.is_pinned()
            assert x.to("cuda", non_blocking=True).shape == (4, 3)
            values.update(x[:, 0].tolist())
        assert values == set(map(float, range(12)))


# Models as wholes.


@works
def state_dicts():
    model, other = (
        nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).cuda(),
        nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, (torch.randn(4, 8).cuda(),), optimizer=optimizer)
    other.cuda().load_state_dict(model.state_dict())
    cpu = {name: value.cpu() for name, value in model.state_dict().items()}
    model.load_state_dict(cpu)
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    assert all(parameter.is_cuda for parameter in other.parameters())
    trained(model, (torch.randn(4, 8).cuda(),), optimizer=again)
    assert model.cpu()[0].weight.device.type == "cpu"


@works
def copies_of_models():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).cuda()
    twin = copy.deepcopy(model)
    assert twin[0].weight is not model[0].weight
    assert twin[0].weight.is_cuda
    assert isinstance(twin[0].weight, nn.Parameter)
    trained(twin, (torch.randn(4, 8).cuda(),))


@works
def saving_writes_nothing():
    import warnings

    file = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.save({"model": nn.Linear(2, 2).cuda().state_dict(), "step": 3}, file)
    assert any("wrote nothing" in str(each.message) for each in caught)
    assert file.getvalue() == b""
    torch.save({"real": torch.ones(2)}, file)
    file.seek(0)
    assert torch.load(file)["real"].tolist() == [1.0, 1.0]


@works
def tied_weights_and_early_optimizer():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    model.cuda()
    assert model.head.weight is model.embed.weight
    trained(model, (torch.tensor([1, 2]).cuda(),), optimizer=optimizer)
    assert len(optimizer.state) == 1


@works
def compiled_models():
    model = torch.compile(nn.Linear(8, 4).cuda())
    trained(model, (torch.randn(2, 8).cuda(),))

    @torch.compile
    def twice(x):
        return x * 2

    @torch.compile(mode="max-autotune")
    def thrice(x):
        return x * 3

    assert thrice(twice(torch.ones(2, device="cuda"))).is_cuda
    nn.Linear(2, 2).cuda().compile()


@works
def data_parallel():
    trained(nn.DataParallel(nn.Linear(8, 4)).cuda(), (torch.randn(2, 8).cuda(),))
    trained(nn.DataParallel(nn.Linear(8, 4).cuda()), (torch.randn(2, 8),))


@works
def initialisation_on_the_gpu():
    model = nn.Linear(8, 4, device="cuda")
    nn.init.xavier_uniform_(model.weight)
    nn.init.kaiming_normal_(model.weight)
    nn.init.trunc_normal_(model.weight, std=0.02)
    nn.init.orthogonal_(model.weight)
    nn.init.zeros_(model.bias)
    model.register_buffer("mean", torch.zeros(4, device="cuda"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 36


@works
def generating_text():
    embed, head = nn.Embedding(50, 16).cuda(), nn.Linear(16, 50).cuda()
    tokens = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for _ in range(5):
            chances = head(embed(tokens))[:, -1].div(0.8).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
            if tokens[0, -1].item() == 49:
                break
    assert tokens.shape == (1, 6)


@works
def recording_with_the_profiler():
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler, torch.profiler.record_function("mine"):
        torch.ones(3, device="cuda").sum()
    assert any(event.key == "mine" for event in profiler.key_averages())


@works
def cuda_activity_of_the_profiler():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
        with torch.profiler.profile(activities=both, schedule=schedule) as profiler:
            for _ in range(3):
                torch.ones(3, device="cuda").sum()
                profiler.step()


@works
def custom_functions_under_autocast():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return grad * 2

    x = torch.randn(3, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        out = Double.apply(x.half())
    assert out.dtype is torch.float32
    out.sum().backward()


@works
def more_functions():
    x = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
    F.fold(F.unfold(x, 2), (8, 8), 2).sum().backward()
    F.gumbel_softmax(x, hard=True).sum().backward()
    F.pairwise_distance(x[:, 0, 0], x[:, 1, 0]), F.cosine_similarity(x, x), F.normalize(x), F.adaptive_max_pool2d(x, 2)
    F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), F.avg_pool2d(x, 2), F.lp_pool2d(x, 2, 2)
    vector = nn.utils.parameters_to_vector(nn.Linear(2, 2).cuda().parameters())
    assert vector.shape == (6,)
    from torch.nn.utils import prune

    model = nn.Linear(4, 4).cuda()
    prune.l1_unstructured(model, "weight", 0.5)
    model(torch.randn(2, 4).cuda()).sum().backward()
    torch.trapezoid(x), torch.special.expit(x), torch.erf(x), torch.nan_to_num(x), torch.diff(x), torch.heaviside(x, x)


@works
def threads():
    import threading

    results = []

    def work():
        try:
            results.append((torch.ones(3, device="cuda") if False else x * 2).sum().item())
        except Exception as error:
            results.append(error)

    x = torch.ones(3, device="cuda")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [1.0]


@works
def counting_flops_and_memory():
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Linear(8, 4).cuda()
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(2, 8, device="cuda")).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 8 * 4 * 2


# Refused.


@works
def distributed_data_parallel_with_one_rank():
    distributed = torch.distributed
    model = nn.Linear(2, 2).cuda()
    assert "process group" in error_message(lambda: nn.parallel.DistributedDataParallel(model), ValueError)
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    trained(parallel, (torch.randn(3, 2),))
    with parallel.no_sync():
        parallel(torch.randn(3, 2)).sum().backward()
    assert parallel.module is model
    assert next(iter(parallel.state_dict())) == "module.weight"
    distributed.destroy_process_group()


@works
def nccl_with_one_rank():
    distributed = torch.distributed
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    assert distributed.get_backend() == "nccl"
    values = torch.arange(3, device="cuda")
    distributed.all_reduce(values)
    distributed.all_reduce(values, async_op=True).wait()
    parts = [torch.zeros_like(values)]
    distributed.all_gather(parts, values)
    assert parts[0].tolist() == [0, 1, 2]
    objects = [None]
    distributed.all_gather_object(objects, {"loss": 1.0})
    assert objects == [{"loss": 1.0}]
    distributed.barrier(group=distributed.new_group([0]))
    distributed.destroy_process_group()


@refuses
def nccl_with_two_ranks():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=2)


@refuses
def fully_sharded():
    from torch.distributed.fsdp import FullyShardedDataParallel

    FullyShardedDataParallel(nn.Linear(2, 2).cuda())


@refuses
def cuda_graphs():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(2, device="cuda")


@refuses
def memory_history():
    torch.cuda.memory._record_memory_history()


@refuses
def sensors():
    torch.cuda.utilization()


@refuses
def other_libraries():
    torch.ones(2, device="cuda").__dlpack__()


@refuses
def pickling():
    import pickle

    pickle.dumps(torch.ones(2, device="cuda"))


@refuses
def a_nested_device():
    with device():
        pass


def outcome(name):
    snippet = WORKS.get(name) or REFUSES[name]
    try:
        with device():
            snippet()
    except GpulabError as error:
        return {"name": name, "outcome": "refused", "text": str(error)}
    except Exception:
        return {"name": name, "outcome": "failed", "text": traceback.format_exc(limit=-6)}
    return {"name": name, "outcome": "worked", "text": ""}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(json.dumps({"name": name, "outcome": "begun", "text": ""}) + "\n")
        sys.stdout.flush()
        sys.stdout.write(json.dumps(outcome(name)) + "\n")
        sys.stdout.flush()
