"""Segmentation of cardiac MRI slices by a small U-Net with elastic deformation in NumPy, as in heart challenge code."""

from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def volume(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ten slices of drawn ventricles: labels 1 (right), 2 (myocardium), 3 (left), and intensities with a bias field."""
    rows, columns = np.mgrid[:128, :128]
    center = 64 + rng.normal(0, 5, 2)
    radius, wall, gap = rng.uniform([9, 4, 12], [14, 8, 17])
    levels = rng.normal([180, 420, 190, 450], 40)
    bias = gaussian_filter(rng.normal(0, 1, (128, 128)), 25) * 25
    body = ((rows - 64) / 58) ** 2 + ((columns - 64) / 50) ** 2 < 1
    images, labels = [], []
    for depth in np.linspace(1, 0.45, 10):
        distance = np.hypot(rows - center[0], columns - center[1])
        right = np.hypot((rows - center[0]) / 1.3, columns - center[1] + gap * depth + radius * 0.4)
        label = np.where(right < radius * 1.1 * depth, 1, 0)
        label[distance < (radius + wall) * depth] = 2
        label[distance < radius * depth] = 3
        image = levels[label] * np.where(body, 1, 0.15) * (1 + bias)
        images.append(gaussian_filter(image, 0.8) + rng.normal(0, 15, image.shape))
        labels.append(label)
    return np.stack(images).clip(0).astype(np.int16), np.stack(labels).astype(np.uint8)


def prepare(scale: float) -> Namespace:
    """Volumes of patients at the end of diastole and of systole, as compressed NumPy archives in two folders."""
    rng = np.random.default_rng(0)
    for split, patients in (("training", scaled(10, scale)), ("validation", scaled(2, scale))):
        folder = Path("ACDC") / split
        folder.mkdir(parents=True)
        for patient in range(patients):
            for frame in (1, 9):
                image, label = volume(rng)
                name = folder / f"patient{patient + 1:03d}_frame{frame:02d}.npz"
                np.savez_compressed(name, image=image, label=label, spacing=np.array([10.0, 1.8, 1.8]))
    return {}


CELL = """
import glob
import logging
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset

root_path = 'ACDC'
num_classes = 4
patch_size = (64, 64)
batch_size = 8
max_epoch = 3
base_lr = 0.01
seed = 1337
logging.basicConfig(filename='log.txt', level=logging.INFO, format='[%(asctime)s] %(message)s')


def center_crop(array, size):
    top = (array.shape[-2] - size[0]) // 2
    left = (array.shape[-1] - size[1]) // 2
    return array[..., top:top + size[0], left:left + size[1]]


def random_rot_flip(image, label):
    k = np.random.randint(0, 4)
    image, label = np.rot90(image, k), np.rot90(label, k)
    axis = np.random.randint(0, 2)
    return np.flip(image, axis=axis).copy(), np.flip(label, axis=axis).copy()


def random_rotate(image, label):
    angle = np.random.randint(-20, 20)
    image = ndimage.rotate(image, angle, order=3, reshape=False)
    label = ndimage.rotate(label, angle, order=0, reshape=False)
    return image, label


def elastic_transform(image, label, alpha=40, sigma=6):
    shape = image.shape
    dx = ndimage.gaussian_filter(np.random.rand(*shape) * 2 - 1, sigma, mode='constant', cval=0) * alpha
    dy = ndimage.gaussian_filter(np.random.rand(*shape) * 2 - 1, sigma, mode='constant', cval=0) * alpha
    x, y = np.meshgrid(np.arange(shape[1]), np.arange(shape[0]))
    indices = np.reshape(y + dy, (-1, 1)), np.reshape(x + dx, (-1, 1))
    image = ndimage.map_coordinates(image, indices, order=3, mode='reflect').reshape(shape)
    label = ndimage.map_coordinates(label, indices, order=0, mode='reflect').reshape(shape)
    return image, label


class RandomGenerator(object):
    def __call__(self, image, label):
        if random.random() > 0.5:
            image, label = random_rot_flip(image, label)
        if random.random() > 0.5:
            image, label = random_rotate(image, label)
        if random.random() > 0.5:
            image, label = elastic_transform(image, label)
        if random.random() > 0.5:
            gamma = np.random.uniform(0.7, 1.5)
            low, high = image.min(), image.max()
            image = ((image - low) / (high - low + 1e-8)) ** gamma * (high - low) + low
        if random.random() > 0.5:
            image = image + np.random.normal(0, 0.1, image.shape)
        return image, label


class ACDCSlices(Dataset):
    def __init__(self, folder, transform=None):
        self.files = sorted(glob.glob(os.path.join(folder, '*.npz')))
        self.transform = transform
        self.slices = []
        for path in self.files:
            for z in range(len(np.load(path)['label'])):
                self.slices.append((path, z))

    def __len__(self):
        return len(self.slices)

    def load_volume(self, path):
        data = np.load(path)
        image = data['image'].astype(np.float32)
        image = (image - image.mean()) / image.std()
        return image, data['label']

    def __getitem__(self, idx):
        path, z = self.slices[idx]
        image, label = self.load_volume(path)
        image, label = center_crop(image[z], patch_size), center_crop(label[z], patch_size)
        if self.transform:
            image, label = self.transform(image, label)
        image = torch.from_numpy(image.astype(np.float32)).unsqueeze(0)
        label = torch.from_numpy(label.astype(np.uint8))
        return {'image': image, 'label': label.long()}


class ConvBlock(nn.Module):
    def __init__(self, in_channels, out_channels, dropout_p):
        super().__init__()
        self.conv_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.LeakyReLU(),
            nn.Dropout(dropout_p),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.LeakyReLU())

    def forward(self, x):
        return self.conv_conv(x)


class DownBlock(nn.Module):
    def __init__(self, in_channels, out_channels, dropout_p):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), ConvBlock(in_channels, out_channels, dropout_p))

    def forward(self, x):
        return self.maxpool_conv(x)


class UpBlock(nn.Module):
    def __init__(self, in_channels1, in_channels2, out_channels):
        super().__init__()
        self.conv1x1 = nn.Conv2d(in_channels1, in_channels2, kernel_size=1)
        self.up = nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)
        self.conv = ConvBlock(in_channels2 * 2, out_channels, 0.0)

    def forward(self, x1, x2):
        x1 = self.up(self.conv1x1(x1))
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, in_chns, class_num, ft_chns=(16, 32, 64, 128), dropout=(0.05, 0.1, 0.2, 0.3)):
        super().__init__()
        self.in_conv = ConvBlock(in_chns, ft_chns[0], dropout[0])
        self.down1 = DownBlock(ft_chns[0], ft_chns[1], dropout[1])
        self.down2 = DownBlock(ft_chns[1], ft_chns[2], dropout[2])
        self.down3 = DownBlock(ft_chns[2], ft_chns[3], dropout[3])
        self.up1 = UpBlock(ft_chns[3], ft_chns[2], ft_chns[2])
        self.up2 = UpBlock(ft_chns[2], ft_chns[1], ft_chns[1])
        self.up3 = UpBlock(ft_chns[1], ft_chns[0], ft_chns[0])
        self.out_conv = nn.Conv2d(ft_chns[0], class_num, kernel_size=3, padding=1)

    def forward(self, x):
        x0 = self.in_conv(x)
        x1 = self.down1(x0)
        x2 = self.down2(x1)
        x3 = self.down3(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        x = self.up3(x, x0)
        return self.out_conv(x)


class DiceLoss(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.n_classes = n_classes

    def _one_hot_encoder(self, input_tensor):
        tensor_list = []
        for i in range(self.n_classes):
            tensor_list.append((input_tensor == i).unsqueeze(1))
        return torch.cat(tensor_list, dim=1).float()

    def _dice_loss(self, score, target):
        smooth = 1e-5
        intersect = torch.sum(score * target)
        y_sum = torch.sum(target * target)
        z_sum = torch.sum(score * score)
        return 1 - (2 * intersect + smooth) / (z_sum + y_sum + smooth)

    def forward(self, inputs, target):
        target = self._one_hot_encoder(target)
        loss = 0.0
        for i in range(self.n_classes):
            loss += self._dice_loss(inputs[:, i], target[:, i])
        return loss / self.n_classes


def dice_score(pred, gt):
    if pred.sum() + gt.sum() == 0:
        return 1.0
    return 2.0 * np.logical_and(pred, gt).sum() / (pred.sum() + gt.sum())


def largest_component(mask):
    components, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = ndimage.sum(mask, components, range(1, count + 1))
    return components == (np.argmax(sizes) + 1)


def test_single_volume(net, image, label):
    image, label = center_crop(image, patch_size), center_crop(label, patch_size)
    prediction = np.zeros_like(label)
    for ind in range(image.shape[0]):
        slice = torch.from_numpy(image[ind]).unsqueeze(0).unsqueeze(0).float().to(device)
        net.eval()
        with torch.no_grad():
            out = torch.argmax(torch.softmax(net(slice), dim=1), dim=1).squeeze(0)
            prediction[ind] = out.cpu().detach().numpy()
    return [dice_score(largest_component(prediction == i), label == i) for i in range(1, num_classes)]


random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)


def worker_init_fn(worker_id):
    random.seed(seed + worker_id)
    np.random.seed(torch.initial_seed() % 2 ** 32)


device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
db_train = ACDCSlices(os.path.join(root_path, 'training'), transform=RandomGenerator())
db_val = ACDCSlices(os.path.join(root_path, 'validation'))
trainloader = DataLoader(db_train, batch_size=batch_size, shuffle=True, num_workers=2, pin_memory=False,
                         worker_init_fn=worker_init_fn)

model = UNet(in_chns=1, class_num=num_classes).to(device)
optimizer = optim.SGD(model.parameters(), lr=base_lr, momentum=0.9, weight_decay=0.0001)
ce_loss = nn.CrossEntropyLoss()
dice_loss = DiceLoss(num_classes)

iter_num, slices_seen, best_performance = 0, 0, 0.0
max_iterations = max_epoch * len(trainloader)
logging.info('{} iterations per epoch'.format(len(trainloader)))
for epoch_num in range(max_epoch):
    model.train()
    for i_batch, sampled_batch in enumerate(trainloader):
        volume_batch, label_batch = sampled_batch['image'], sampled_batch['label']
        volume_batch, label_batch = volume_batch.to(device), label_batch.to(device)

        outputs = model(volume_batch)
        loss_ce = ce_loss(outputs, label_batch)
        loss_dice = dice_loss(torch.softmax(outputs, dim=1), label_batch)
        loss = 0.5 * (loss_dice + loss_ce)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        lr_ = base_lr * (1.0 - iter_num / max_iterations) ** 0.9
        for param_group in optimizer.param_groups:
            param_group['lr'] = lr_
        iter_num += 1
        slices_seen += len(label_batch)
        logging.info('iteration %d : loss : %f, loss_ce: %f, loss_dice: %f'
                     % (iter_num, loss.item(), loss_ce.item(), loss_dice.item()))

    metric_list = []
    for path in db_val.files:
        image, label = db_val.load_volume(path)
        metric_list.append(test_single_volume(model, image, label))
    metric_list = np.array(metric_list).mean(axis=0)
    performance = metric_list.mean()
    if performance > best_performance:
        best_performance = performance
        torch.save(model.state_dict(), 'unet_best_model.pth')
    logging.info('epoch %d : mean_dice : %f' % (epoch_num, performance))
    print('epoch {} dice RV {:.3f} Myo {:.3f} LV {:.3f}'.format(epoch_num, *metric_list))
"""

FORWARD = CELL[CELL.index("        outputs = model(volume_batch)\n") : CELL.index("        optimizer.zero_grad()\n")]
HALF = "        with torch.autocast(device.type, dtype=torch.bfloat16):\n" + "".join(
    f"    {line}\n" for line in FORWARD.splitlines()
)
SLICES = CELL[CELL.index("    prediction = np.zeros_like(label)\n") : CELL.index("    return [dice_score(")]
WHOLE = """    net.eval()
    with torch.no_grad():
        out = net(torch.from_numpy(image).unsqueeze(1).float().to(device))
        prediction = torch.argmax(out, dim=1).cpu().numpy()
"""

CHANGES = (
    Change(
        "volumes read once",
        "cache_items",
        edits={
            "            for z in range(len(np.load(path)['label'])):\n": ""
            "            self.volumes[path] = self.read_volume(path)\n"
            "            for z in range(len(self.volumes[path][1])):\n",
            "        self.slices = []\n": "        self.slices, self.volumes = [], {}\n",
            "    def load_volume(self, path):\n": ""
            "    def load_volume(self, path):\n"
            "        return self.volumes[path]\n\n"
            "    def read_volume(self, path):\n",
        },
    ),
    Change("no workers", "num_workers", edits={"shuffle=True, num_workers=2,": "shuffle=True, num_workers=0,"}),
    Change("validation volumes in one pass", "other", edits={SLICES: WHOLE}),
    Change(
        "channels last",
        "channels_last",
        edits={
            "class_num=num_classes).to(device)": "class_num=num_classes).to(device, memory_format=torch.channels_last)",
            "volume_batch.to(device), label_batch": ""
            "volume_batch.to(device, memory_format=torch.channels_last), label_batch",
        },
    ),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=0.0001)": "weight_decay=0.0001, fused=True)"}),
    Change("batches of 16", "larger_batch", edits={"batch_size = 8": "batch_size = 16"}),
    Change("bfloat16 autocast", "precision", edits={FORWARD: HALF}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="slices_seen", seconds=8)
