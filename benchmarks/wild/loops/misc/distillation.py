"""Knowledge distillation; the teacher runs in train mode and inside the graph, as in many first versions."""

import torch
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def conv_net(width: int, depth: int) -> nn.Module:
    """A plain convolutional classifier."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def prepare(scale: float) -> Namespace:
    """Images of 32 by 32 pixels, and the weights of a teacher in a file."""
    count = scaled(640, scale, 32)
    torch.save(conv_net(64, 5).state_dict(), "teacher.pth")
    return {
        "images": torch.randn(count, 3, 32, 32),
        "labels": torch.randint(0, 10, (count,)),
        "teacher": conv_net(64, 5),
        "student": conv_net(16, 2),
    }


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = 'cuda' if torch.cuda.is_available() else 'cpu'
alpha, temperature = 0.7, 4.0
train_loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
teacher.load_state_dict(torch.load('teacher.pth'))
teacher, student = teacher.to(device), student.to(device)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

def loss_fn_kd(outputs, labels, teacher_outputs):
    kd = nn.KLDivLoss(reduction='batchmean')(F.log_softmax(outputs / temperature, dim=1),
                                             F.softmax(teacher_outputs / temperature, dim=1))
    return kd * (alpha * temperature * temperature) + F.cross_entropy(outputs, labels) * (1. - alpha)

total = 0
for epoch in range(3):
    student.train()
    teacher.train()
    train_loss, correct = 0.0, 0
    for train_batch, labels_batch in train_loader:
        train_batch, labels_batch = train_batch.to(device), labels_batch.to(device)
        output_batch = student(train_batch)
        output_teacher_batch = teacher(train_batch)
        loss = loss_fn_kd(output_batch, labels_batch, output_teacher_batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
        correct += (output_batch.argmax(1) == labels_batch).sum().item()
        total += labels_batch.size(0)
    print(f'epoch {epoch} loss {train_loss / len(train_loader):.4f} acc {correct / len(labels):.4f}')
"""

CHANGES = (
    Change(
        "teacher without graph",
        "no_grad",
        edits={
            "        output_teacher_batch = teacher(train_batch)\n": "        with torch.no_grad():\n"
            "            output_teacher_batch = teacher(train_batch)\n"
        },
    ),
    Change(
        "teacher outputs computed once",
        "cache_items",
        edits={
            "train_loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)\n": "",
            "optimizer = torch": "with torch.no_grad():\n"
            "    scores = torch.cat([teacher(x.to(device)).cpu() for x in images.split(32)])\n"
            "train_loader = DataLoader(TensorDataset(images, labels, scores), batch_size=32, shuffle=True)\noptimizer = torch",
            "for train_batch, labels_batch in train_loader": "for train_batch, labels_batch, scores_batch in train_loader",
            "teacher(train_batch)\n": "scores_batch.to(device)\n",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "teacher.to(device), student.to(device)": "(m.to(device, memory_format=torch.channels_last) for m in (teacher, student))",
            "train_batch.to(device),": "train_batch.to(device, memory_format=torch.channels_last),",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=5e-4)": "weight_decay=5e-4, fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output_batch = student(train_batch)\n        output_teacher_batch = teacher(train_batch)\n": ""
            "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            output_batch, output_teacher_batch = student(train_batch), teacher(train_batch)\n"
            "        output_batch, output_teacher_batch = output_batch.float(), output_teacher_batch.float()\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total", seconds=6)
