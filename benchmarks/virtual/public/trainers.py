"""Trainers and model libraries on the virtual GPU: each is a short program that raises an error if it does not run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

TRAINERS: dict[str, Callable[[], None]] = {}
MODULES: dict[str, tuple[str, ...]] = {}
SAMPLES, BATCH, TOKENS = 16, 4, 128


def trainer(*modules: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a program under its name, with the modules that it needs."""

    def register(program: Callable[[], None]) -> Callable[[], None]:
        TRAINERS[program.__name__], MODULES[program.__name__] = program, modules
        return program

    return register


class Sentences(Dataset[dict[str, Any]]):
    """Tokens whose labels are the tokens."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(8) + index
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def small_llama() -> Any:
    """Return a small Llama on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=TOKENS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    ))  # fmt: skip


def _run_trainer(**options: Any) -> None:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, max_steps=3, per_device_train_batch_size=BATCH, report_to=[], save_strategy="no", logging_steps=1,
            disable_tqdm=True, **options,
        )  # fmt: skip
        run = Trainer(small_llama(), settings, train_dataset=Sentences(), eval_dataset=Sentences())
        run.train()
        run.evaluate()
    assert run.state.global_step == 3


@trainer("transformers.trainer")
def transformers_trainer() -> None:
    """The Trainer of Transformers in bfloat16, with evaluation."""
    _run_trainer(bf16=True)


@trainer("transformers.trainer")
def transformers_trainer_with_checkpointing() -> None:
    """The Trainer with gradient checkpointing, accumulation and float16."""
    _run_trainer(fp16=True, gradient_checkpointing=True, gradient_accumulation_steps=2)


@trainer("transformers.trainer")
def transformers_trainer_compiled() -> None:
    """The Trainer with torch.compile."""
    _run_trainer(torch_compile=True)


@trainer("transformers.models.llama.modeling_llama")
def generate_with_sampling() -> None:
    """Generation with sampling, beams, and a static cache."""
    model = small_llama().cuda().eval()
    prompt = torch.randint(3, TOKENS, (2, 6), device="cuda")
    for options in ({"do_sample": True, "top_k": 5}, {"num_beams": 2}, {"cache_implementation": "static"}):
        out = model.generate(prompt, max_new_tokens=4, pad_token_id=0, **options)
        assert out.shape[0] == 2


@trainer("accelerate")
def accelerate() -> None:
    """Accelerate with mixed precision and accumulation."""
    from accelerate import Accelerator

    engine = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = small_llama()
    model, optimizer, loader = engine.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(Sentences(), batch_size=BATCH, shuffle=True)
    )
    for batch in loader:
        with engine.accumulate(model):
            loss = model(**batch).loss
            engine.backward(loss)
            engine.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert engine.gather(loss.detach()).device.type == "cuda"


def _fit(precision: str, **options: Any) -> None:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def training_step(self, batch: Any, index: int) -> Any:
            loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("validation_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    samples = TensorDataset(torch.randn(SAMPLES, 8), torch.randint(0, 4, (SAMPLES,)))
    run = lightning.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, precision=precision, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    run.fit(Classifier(), DataLoader(samples, BATCH), DataLoader(samples, BATCH))
    assert run.global_step == SAMPLES // BATCH


@trainer("lightning")
def lightning() -> None:
    """Lightning in bfloat16 with validation."""
    _fit("bf16-mixed")


@trainer("lightning")
def lightning_float16() -> None:
    """Lightning in float16 with clipped gradients."""
    _fit("16-mixed", gradient_clip_val=1.0)


@trainer("lightning")
def lightning_ddp() -> None:
    """Lightning with DistributedDataParallel on one GPU."""
    _fit("32-true", strategy="ddp")


@trainer("diffusers.models.unets.unet_2d", "diffusers.schedulers.scheduling_ddpm")
def diffusers_unet() -> None:
    """Training of a small diffusion model, and a few steps of sampling."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).cuda()  # fmt: skip
    scheduler, optimizer = DDPMScheduler(50), torch.optim.AdamW(model.parameters())
    for _ in range(2):
        images = torch.randn(2, 3, 16, 16).cuda()
        noise, times = torch.randn_like(images), torch.randint(0, 50, (2,), device="cuda")
        loss = nn.functional.mse_loss(model(scheduler.add_noise(images, noise, times), times).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    DDPMPipeline(model, scheduler)(batch_size=1, num_inference_steps=3, output_type="np")


@trainer("diffusers.models.autoencoders.autoencoder_kl")
def diffusers_autoencoder() -> None:
    """Training of a small variational autoencoder."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2,
                          up_block_types=("UpDecoderBlock2D",) * 2).cuda()  # fmt: skip
    images = torch.randn(2, 3, 16, 16).cuda()
    moments = model.encode(images).latent_dist
    (nn.functional.mse_loss(model.decode(moments.sample()).sample, images) + moments.kl().mean()).backward()


@trainer("diffusers.models.transformers.dit_transformer_2d")
def diffusers_transformer() -> None:
    """Training of a small diffusion transformer."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2,
                                  sample_size=8, norm_num_groups=4, num_embeds_ada_norm=10).cuda()  # fmt: skip
    latents, times, classes = torch.randn(2, 4, 8, 8), torch.tensor([3, 7]), torch.tensor([0, 1])
    model(latents.cuda(), times.cuda(), classes.cuda()).sample.square().mean().backward()


def _train_graph_model(layers: Any) -> None:
    nodes, edges = torch.randn(20, 8).cuda(), torch.randint(0, 20, (2, 60)).cuda()
    labels = torch.randint(0, 4, (20,)).cuda()
    optimizer = torch.optim.AdamW(layers.parameters())
    for _ in range(2):
        hidden = nodes
        for layer in layers:
            hidden = layer(hidden, edges)
        nn.functional.cross_entropy(hidden, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@trainer("torch_geometric.nn")
def graph_convolutions() -> None:
    """Graph networks of torch_geometric: GCN, GraphSAGE, GIN."""
    from torch_geometric.nn import GCNConv, GINConv, SAGEConv

    _train_graph_model(nn.ModuleList([GCNConv(8, 16), SAGEConv(16, 16), GINConv(nn.Linear(16, 4))]).cuda())


@trainer("torch_geometric.nn")
def graph_attention() -> None:
    """Graph attention of torch_geometric."""
    from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

    _train_graph_model(nn.ModuleList([GATConv(8, 8, heads=2), GATv2Conv(16, 16), TransformerConv(16, 4)]).cuda())


@trainer("torch_geometric.nn", "torch_geometric.loader", "torch_geometric.data")
def graph_batches() -> None:
    """Batches of graphs with pooling."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    graphs = [Data(x=torch.randn(5, 8), edge_index=torch.randint(0, 5, (2, 12)), y=torch.tensor([1])) for _ in range(8)]
    layer, head = GCNConv(8, 16).cuda(), nn.Linear(16, 4).cuda()
    optimizer = torch.optim.AdamW([*layer.parameters(), *head.parameters()])
    for batch in GraphLoader(graphs, batch_size=4):
        batch = batch.to("cuda")
        hidden = global_mean_pool(layer(batch.x, batch.edge_index), batch.batch)
        assert hidden.shape == (4, 16)
        nn.functional.cross_entropy(head(hidden), batch.y).backward()
        optimizer.step()


@trainer("torchvision", "timm")
def timm_models() -> None:
    """Image models of timm."""
    import timm

    for name in ("resnet18", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050"):
        model = timm.create_model(name, num_classes=4).cuda()
        model(torch.randn(2, 3, 224, 224).cuda()).sum().backward()
