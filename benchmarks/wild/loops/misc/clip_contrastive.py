"""CLIP-like training on images with captions, which are tokenized per item and padded to 77 tokens as OpenAI does."""

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

WORDS = "a an the photo of two small red dog cat bird car on in under grass road table near old big young"


def image_encoder() -> nn.Module:
    """Convolutions with a projection to 128 dimensions."""
    layers: list[nn.Module] = []
    for channels, width in ((3, 32), (32, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 128))


class TextEncoder(nn.Module):
    """A transformer; the embedding of the end token, which has the highest id, represents the text."""

    def __init__(self, vocabulary: int, width: int = 96, context: int = 77) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(context, width) * 0.01)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.projection = nn.Linear(width, 128, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """One vector per text."""
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        x = self.transformer(self.tokens(ids) + self.positions[:length], mask=mask)
        out: Tensor = self.projection(x[torch.arange(len(ids)), ids.argmax(1)])
        return out


def prepare(scale: float) -> Namespace:
    """Images of 64 by 64 pixels and a caption each."""
    rng = np.random.default_rng(0)
    count = scaled(1408, scale, 128)
    captions = [" ".join(rng.choice(WORDS.split(), rng.integers(6, 18))).capitalize() + "." for _ in range(count)]
    images = rng.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    return {"images": images, "captions": captions, "image_encoder": image_encoder, "TextEncoder": TextEncoder}


CELL = """
import re
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = 'cuda' if torch.cuda.is_available() else 'cpu'
context_length = 77

class Tokenizer:
    def __init__(self, texts):
        words = sorted({w for t in texts for w in re.findall(r"[a-z']+|[^a-z\\s]", t.lower())})
        self.encoder = {w: i + 1 for i, w in enumerate(words)}
        self.sot, self.eot = len(words) + 1, len(words) + 2

    def __call__(self, text):
        ids = [self.encoder[w] for w in re.findall(r"[a-z']+|[^a-z\\s]", text.lower())]
        ids = [self.sot] + ids[:context_length - 2] + [self.eot]
        return torch.tensor(ids + [0] * (context_length - len(ids)))

class CLIPDataset(Dataset):
    def __init__(self, images, captions, tokenizer):
        self.images, self.captions, self.tokenizer = images, captions, tokenizer
        self.mean = np.array([0.481, 0.457, 0.408], dtype=np.float32)
        self.std = np.array([0.268, 0.261, 0.275], dtype=np.float32)

    def __len__(self):
        return len(self.captions)

    def __getitem__(self, idx):
        image = (self.images[idx].astype(np.float32) / 255.0 - self.mean) / self.std
        return {'image': torch.from_numpy(image).permute(2, 0, 1), 'text': self.tokenizer(self.captions[idx])}

class CLIP(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.visual = image_encoder()
        self.textual = TextEncoder(vocab_size)
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, image, text):
        image_features = F.normalize(self.visual(image), dim=-1)
        text_features = F.normalize(self.textual(text), dim=-1)
        return self.logit_scale.exp() * image_features @ text_features.t()

tokenizer = Tokenizer(captions)
dataloader = DataLoader(CLIPDataset(images, captions, tokenizer), batch_size=32, shuffle=True, drop_last=True)
model = CLIP(tokenizer.eot + 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.2)

n_samples = 0
for epoch in range(2):
    model.train()
    for i, batch in enumerate(dataloader):
        image, text = batch['image'].to(device), batch['text'].to(device)
        logits = model(image, text)
        labels = torch.arange(len(logits), device=device)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.logit_scale.data.clamp_(0, 4.6052)
        n_samples += len(image)
        if i % 10 == 0:
            acc = (logits.argmax(1) == labels).float().mean()
            print(f'epoch {epoch} [{i}/{len(dataloader)}] loss {loss.item():.4f} acc {acc.item():.3f}')
"""

CHANGES = (
    Change(
        "cut to the longest caption",
        "padding",
        edits={
            "batch['text'].to(device)\n": "batch['text'].to(device)\n        text = text[:, :int(text.argmax(1).max()) + 1]\n"
        },
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        logits = model(image, text)\n": "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            logits = model(image, text)\n        logits = logits.float()\n"
        },
    ),
    Change(
        "tokenize once",
        "cache_items",
        edits={
            "self.images, self.captions, self.tokenizer = images, captions, tokenizer\n": "self.images, self.captions = images, [tokenizer(c) for c in captions]\n",
            "self.tokenizer(self.captions[idx])": "self.captions[idx]",
        },
    ),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change("batches of 128", "larger_batch", edits={"batch_size=32": "batch_size=128"}),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.2)": "weight_decay=0.2, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_samples", seconds=6)
