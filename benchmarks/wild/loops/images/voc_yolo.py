"""A grid detector on VOC-like JPEG and XML files, with the augmentations of SSD (distort, expand, crop by overlap, mirror) in NumPy for every item."""

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

CLASSES = [
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "dog",
    "horse",
    "person",
    "plant",
    "sheep",
    "sofa",
    "train",
]
OBJECT = (
    "<object><name>{}</name><difficult>0</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax>"
    "<ymax>{}</ymax></bndbox></object>"
)


def prepare(scale: float) -> Namespace:
    """Photographs with one to six coloured rectangles or ellipses, one class each, in the folders of VOC."""
    rng = np.random.default_rng(0)
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        Path("VOC2007", folder).mkdir(parents=True)
    colours = rng.uniform(20, 235, (len(CLASSES), 3))
    y, x = np.mgrid[0:240, 0:320]
    names = []
    for i in range(scaled(160, scale, 16)):
        image = rng.uniform(60, 190, (8, 10, 3)).repeat(30, 0).repeat(32, 1) + rng.normal(0, 8, (240, 320, 1))
        objects = []
        for _ in range(rng.integers(1, 7)):
            kind, (w, h) = int(rng.integers(len(CLASSES))), rng.integers(24, 120, 2)
            left, top = int(rng.integers(1, 320 - w)), int(rng.integers(1, 240 - h))
            inside = ((x - left - w / 2) / w * 2) ** 2 + ((y - top - h / 2) / h * 2) ** 2 < (1 if kind % 2 else 2)
            inside &= (x >= left) & (x < left + w) & (y >= top) & (y < top + h)
            image[inside] = colours[kind] + rng.normal(0, 12, 3)
            objects.append(OBJECT.format(CLASSES[kind], left, top, left + w, top + h))
        names.append(f"{i:06}")
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(f"VOC2007/JPEGImages/{names[-1]}.jpg", quality=90)
        Path(f"VOC2007/Annotations/{names[-1]}.xml").write_text(f"<annotation>{''.join(objects)}</annotation>")
    Path("VOC2007/ImageSets/Main/trainval.txt").write_text("\n".join(names) + "\n")
    return {"VOC_CLASSES": CLASSES}


CELL = """
import os.path as osp
import time
import xml.etree.ElementTree as ET
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from numpy import random
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIZE, GRID, MEANS = 160, 10, (123, 117, 104)

def jaccard_numpy(box_a, box_b):
    max_xy = np.minimum(box_a[:, 2:], box_b[2:])
    min_xy = np.maximum(box_a[:, :2], box_b[:2])
    inter = np.clip(max_xy - min_xy, a_min=0, a_max=np.inf)
    inter = inter[:, 0] * inter[:, 1]
    area_a = (box_a[:, 2] - box_a[:, 0]) * (box_a[:, 3] - box_a[:, 1])
    area_b = (box_b[2] - box_b[0]) * (box_b[3] - box_b[1])
    return inter / (area_a + area_b - inter)

class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img, boxes=None, labels=None):
        for t in self.transforms:
            img, boxes, labels = t(img, boxes, labels)
        return img, boxes, labels

class ConvertFromInts:
    def __call__(self, image, boxes=None, labels=None):
        return image.astype(np.float32), boxes, labels

class PhotometricDistort:
    def __call__(self, image, boxes=None, labels=None):
        image = image.copy()
        if random.randint(2):
            image += random.uniform(-32, 32)
        if random.randint(2):
            image *= random.uniform(0.5, 1.5)
        if random.randint(2):  # saturation
            grey = image.mean(axis=2, keepdims=True)
            image = grey + (image - grey) * random.uniform(0.5, 1.5)
        if random.randint(2):  # lighting noise
            image = image[:, :, random.permutation(3)]
        return image, boxes, labels

class Expand:
    def __init__(self, mean):
        self.mean = mean

    def __call__(self, image, boxes, labels):
        if random.randint(2):
            return image, boxes, labels
        height, width, depth = image.shape
        ratio = random.uniform(1, 4)
        left = random.uniform(0, width * ratio - width)
        top = random.uniform(0, height * ratio - height)
        expand_image = np.zeros((int(height * ratio), int(width * ratio), depth), dtype=image.dtype)
        expand_image[:, :, :] = self.mean
        expand_image[int(top):int(top) + height, int(left):int(left) + width] = image
        boxes = boxes.copy()
        boxes[:, :2] += (int(left), int(top))
        boxes[:, 2:] += (int(left), int(top))
        return expand_image, boxes, labels

class RandomSampleCrop:
    def __init__(self):
        self.sample_options = (None, (0.1, None), (0.3, None), (0.7, None), (0.9, None), (None, None))

    def __call__(self, image, boxes=None, labels=None):
        height, width, _ = image.shape
        while True:
            mode = self.sample_options[random.randint(len(self.sample_options))]
            if mode is None:
                return image, boxes, labels
            min_iou, max_iou = mode
            min_iou = float('-inf') if min_iou is None else min_iou
            max_iou = float('inf') if max_iou is None else max_iou
            # max trails (50)
            for _ in range(50):
                w, h = random.uniform(0.3 * width, width), random.uniform(0.3 * height, height)
                if h / w < 0.5 or h / w > 2:
                    continue
                left, top = random.uniform(width - w), random.uniform(height - h)
                rect = np.array([int(left), int(top), int(left + w), int(top + h)])
                overlap = jaccard_numpy(boxes, rect)
                if overlap.min() < min_iou and max_iou < overlap.max():
                    continue
                current_image = image[rect[1]:rect[3], rect[0]:rect[2], :]
                centers = (boxes[:, :2] + boxes[:, 2:]) / 2.0
                m1 = (rect[0] < centers[:, 0]) * (rect[1] < centers[:, 1])
                m2 = (rect[2] > centers[:, 0]) * (rect[3] > centers[:, 1])
                mask = m1 * m2
                if not mask.any():
                    continue
                current_boxes = boxes[mask, :].copy()
                current_boxes[:, :2] = np.maximum(current_boxes[:, :2], rect[:2]) - rect[:2]
                current_boxes[:, 2:] = np.minimum(current_boxes[:, 2:], rect[2:]) - rect[:2]
                return current_image, current_boxes, labels[mask]

class RandomMirror:
    def __call__(self, image, boxes, labels):
        if random.randint(2):
            image = image[:, ::-1]
            boxes = boxes.copy()
            boxes[:, 0::2] = image.shape[1] - boxes[:, 2::-2]
        return image, boxes, labels

class ToPercentCoords:
    def __call__(self, image, boxes=None, labels=None):
        height, width, _ = image.shape
        return image, boxes / np.array([width, height, width, height], dtype=np.float32), labels

class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, image, boxes=None, labels=None):
        image = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))
        image = image.resize((self.size, self.size), Image.BILINEAR)
        return np.array(image, dtype=np.float32), boxes, labels

class SubtractMeans:
    def __init__(self, mean):
        self.mean = np.array(mean, dtype=np.float32)

    def __call__(self, image, boxes=None, labels=None):
        return (image.astype(np.float32) - self.mean) / 128., boxes, labels

class SSDAugmentation:
    def __init__(self, size, mean):
        self.augment = Compose([
            ConvertFromInts(),
            PhotometricDistort(),
            Expand(mean),
            RandomSampleCrop(),
            RandomMirror(),
            ToPercentCoords(),
            Resize(size),
            SubtractMeans(mean),
        ])

    def __call__(self, img, boxes, labels):
        return self.augment(img, boxes, labels)

class VOCDetection(Dataset):
    def __init__(self, root, transform):
        self.root, self.transform = root, transform
        self.class_to_ind = dict(zip(VOC_CLASSES, range(len(VOC_CLASSES))))
        self.ids = [line.strip() for line in open(osp.join(root, 'ImageSets', 'Main', 'trainval.txt'))]

    def __len__(self):
        return len(self.ids)

    def pull(self, index):
        img_id = self.ids[index]
        target = ET.parse(osp.join(self.root, 'Annotations', img_id + '.xml')).getroot()
        img = np.array(Image.open(osp.join(self.root, 'JPEGImages', img_id + '.jpg')).convert('RGB'))
        res = []
        for obj in target.iter('object'):
            if int(obj.find('difficult').text) == 1:
                continue
            bbox = obj.find('bndbox')
            bndbox = [int(bbox.find(pt).text) - 1 for pt in ('xmin', 'ymin', 'xmax', 'ymax')]
            res.append(bndbox + [self.class_to_ind[obj.find('name').text.lower().strip()]])
        return img, np.array(res, dtype=np.float32)

    def __getitem__(self, index):
        img, target = self.pull(index)
        img, boxes, labels = self.transform(img, target[:, :4], target[:, 4])
        target = np.hstack((boxes, np.expand_dims(labels, axis=1)))
        return torch.from_numpy(img).permute(2, 0, 1), torch.from_numpy(target).float()

def detection_collate(batch):
    return torch.stack([sample[0] for sample in batch], 0), [sample[1] for sample in batch]

def build_targets(targets):
    obj = torch.zeros(len(targets), GRID, GRID)
    box = torch.zeros(len(targets), GRID, GRID, 4)
    cls = torch.zeros(len(targets), GRID, GRID, dtype=torch.long)
    for b, target in enumerate(targets):
        for x1, y1, x2, y2, label in target.tolist():
            cx, cy, w, h = (x1 + x2) / 2 * GRID, (y1 + y2) / 2 * GRID, max(x2 - x1, 1e-3), max(y2 - y1, 1e-3)
            i, j = min(int(cx), GRID - 1), min(int(cy), GRID - 1)
            obj[b, j, i] = 1
            box[b, j, i] = torch.tensor([cx - i, cy - j, w ** 0.5, h ** 0.5])
            cls[b, j, i] = int(label)
    return obj, box, cls

def conv(cin, cout, k=3):
    return nn.Sequential(nn.Conv2d(cin, cout, k, padding=k // 2, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.1))

class TinyYolo(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        layers, cin = [], 3
        for cout in (16, 32, 64, 128):
            layers += [conv(cin, cout), nn.MaxPool2d(2)]
            cin = cout
        self.net = nn.Sequential(*layers, conv(128, 256), conv(256, 128, 1), nn.Conv2d(128, 5 + num_classes, 1))

    def forward(self, x):
        return self.net(x).permute(0, 2, 3, 1)

def yolo_loss(out, obj, box, cls):
    mask = obj > 0
    obj_loss = F.binary_cross_entropy_with_logits(out[..., 0], obj, reduction='sum')
    box_loss = F.mse_loss(out[..., 1:5].sigmoid()[mask], box[mask], reduction='sum')
    cls_loss = F.cross_entropy(out[..., 5:][mask], cls[mask], reduction='sum')
    return (obj_loss + 5 * box_loss + cls_loss) / len(out)

batch_size, num_epochs = 8, 2
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
dataset = VOCDetection('VOC2007', SSDAugmentation(SIZE, MEANS))
data_loader = DataLoader(dataset, batch_size, shuffle=True, collate_fn=detection_collate)
net = TinyYolo(len(VOC_CLASSES)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
net.train()
iteration, seen = 0, 0
for epoch in range(num_epochs):
    for images, targets in data_loader:
        t0 = time.time()
        images = images.to(device)
        obj, box, cls = (t.to(device) for t in build_targets(targets))
        out = net(images)
        optimizer.zero_grad()
        loss = yolo_loss(out, obj, box, cls)
        loss.backward()
        optimizer.step()
        seen += len(images)
        if iteration % 10 == 0:
            print('iter ' + repr(iteration) + ' || Loss: %.4f || timer: %.4f sec.' % (loss.item(), time.time() - t0))
        iteration += 1
torch.save(net.state_dict(), 'VOC.pth')
"""

CHANGES = (
    Change(
        "two workers",
        "num_workers",
        edits={"collate_fn=detection_collate)": "collate_fn=detection_collate, num_workers=2)"},
    ),
    Change(
        "decoded images and boxes kept in memory",
        "cache_items",
        edits={
            "def jaccard_numpy(": "import functools\n\ndef jaccard_numpy(",
            "    def pull(self, index):\n": "    @functools.lru_cache(maxsize=None)\n    def pull(self, index):\n",
        },
    ),
    Change(
        "bytes until the image is small, colours distorted last",
        "vectorize_items",
        edits={
            "            ConvertFromInts(),\n            PhotometricDistort(),\n": "",
            "            Resize(size),\n": "            Resize(size),\n            PhotometricDistort(),\n",
            "image = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))": "image = Image.fromarray(np.ascontiguousarray(image))",
        },
    ),
    Change("batches of 16", "larger_batch", edits={"batch_size, num_epochs = 8, 2": "batch_size, num_epochs = 16, 2"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        out = net(images)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            out = net(images)\n        out = out.float()\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "net = TinyYolo(len(VOC_CLASSES)).to(device)": "net = TinyYolo(len(VOC_CLASSES)).to(device, memory_format=torch.channels_last)",
            "        images = images.to(device)\n": "        images = images.to(device, memory_format=torch.channels_last)\n",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=7)
