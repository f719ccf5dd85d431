"""A small vision transformer with Accelerate: micro-batches of eight, accumulated, and accuracy and F1 on lists every epoch."""

import numpy as np
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class ViT(nn.Module):
    """Patches of four by four pixels, an encoder, and a linear layer on the mean."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Scores of images of 32 by 32 pixels."""
        x = self.patches(pixel_values).flatten(2).transpose(1, 2) + self.positions
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


def prepare(scale: float) -> Namespace:
    """Images like those of CIFAR as bytes."""
    AcceleratorState._reset_state(True)  # another run in this process may have had another precision
    rng = np.random.default_rng(0)
    count, val_count = scaled(640, scale, 32), scaled(160, scale, 32)
    return {
        "train_images": rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        "train_labels": rng.integers(0, 10, count).tolist(),
        "val_images": rng.integers(0, 256, (val_count, 32, 32, 3), dtype=np.uint8),
        "val_labels": rng.integers(0, 10, val_count).tolist(),
        "ViT": ViT,
    }


CELL = """
import math
import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

config = {'batch_size': 8, 'gradient_accumulation_steps': 4, 'lr': 5e-4, 'epochs': 2, 'mixed_precision': 'no'}
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    mixed_precision=config['mixed_precision'],
    gradient_accumulation_steps=config['gradient_accumulation_steps'],
)

class ImageDataset(Dataset):
    def __init__(self, images, labels, train):
        self.images, self.labels, self.train = images, labels, train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = torch.from_numpy(self.images[idx]).permute(2, 0, 1).float() / 255
        if self.train and torch.rand(1) < 0.5:
            image = image.flip(-1)
        image = (image - torch.tensor([0.49, 0.48, 0.45]).view(3, 1, 1)) / torch.tensor([0.25, 0.24, 0.26]).view(3, 1, 1)
        return {'pixel_values': image, 'labels': self.labels[idx]}

train_dataloader = DataLoader(ImageDataset(train_images, train_labels, True), batch_size=config['batch_size'], shuffle=True)
eval_dataloader = DataLoader(ImageDataset(val_images, val_labels, False), batch_size=config['batch_size'])
model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=config['lr'], weight_decay=0.05)
total_steps = config['epochs'] * math.ceil(len(train_dataloader) / config['gradient_accumulation_steps'])
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total_steps))
model, optimizer, train_dataloader, eval_dataloader, scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, scheduler)

def accuracy_score(y_true, y_pred):
    return float(np.mean(np.array(y_true) == np.array(y_pred)))

def f1_score(y_true, y_pred):
    y_true, y_pred, scores = np.array(y_true), np.array(y_pred), []
    for c in range(10):
        tp = np.sum((y_pred == c) & (y_true == c))
        scores.append(2 * tp / max(1, np.sum(y_pred == c) + np.sum(y_true == c)))
    return float(np.mean(scores))

n_samples = 0
for epoch in range(config['epochs']):
    model.train()
    total_loss = 0
    for step, batch in enumerate(train_dataloader):
        with accelerator.accumulate(model):
            logits = model(batch['pixel_values'])
            loss = F.cross_entropy(logits, batch['labels'])
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        n_samples += len(batch['labels'])
    model.eval()
    all_preds, all_labels = [], []
    for batch in eval_dataloader:
        with torch.no_grad():
            preds = model(batch['pixel_values']).argmax(dim=-1)
        preds, labels = accelerator.gather_for_metrics((preds, batch['labels']))
        all_preds.extend(preds.cpu().numpy().tolist())
        all_labels.extend(labels.cpu().numpy().tolist())
    accelerator.print(f'epoch {epoch}: loss {total_loss.item() / len(train_dataloader):.4f} '
                      f'accuracy {accuracy_score(all_labels, all_preds):.4f} f1 {f1_score(all_labels, all_preds):.4f}')
"""

CHANGES = (
    Change(
        "batches of 32 without accumulation",
        "larger_batch",
        edits={
            "'batch_size': 8, 'gradient_accumulation_steps': 4": "'batch_size': 32, 'gradient_accumulation_steps': 1"
        },
    ),
    Change("bf16", "precision", edits={"'mixed_precision': 'no'": "'mixed_precision': 'bf16'"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "evaluate after the last epoch",
        "eval_less_often",
        edits={
            "    for batch in eval_dataloader:\n": "    for batch in eval_dataloader if epoch == config['epochs'] - 1 else []:\n"
        },
    ),
    Change(
        "normalize the batch",
        "vectorize_items",
        edits={
            "        image = (image - torch.tensor([0.49, 0.48, 0.45]).view(3, 1, 1)) / torch.tensor([0.25, 0.24, 0.26]).view(3, 1, 1)\n": "",
            "model = ViT()\n": """
class Normalized(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer('mean', torch.tensor([0.49, 0.48, 0.45]).view(3, 1, 1))
        self.register_buffer('std', torch.tensor([0.25, 0.24, 0.26]).view(3, 1, 1))

    def forward(self, x):
        return self.net((x - self.mean) / self.std)

model = Normalized(ViT())
""",
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.05)": "weight_decay=0.05, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_samples", seconds=6)
