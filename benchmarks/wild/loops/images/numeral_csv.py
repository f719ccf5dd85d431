"""Handwritten numerals from a CSV of pixels, augmented with PIL, then a submission, as in Kaggle digit notebooks."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFilter

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Ten numerals of two curved strokes each, drawn by many hands, as rows of 784 pixels in train.csv and test.csv."""
    rng = np.random.default_rng(0)
    shapes = rng.uniform(20, 92, (10, 2, 4, 2))
    names = [f"pixel{i}" for i in range(784)]

    def pixels(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels, rows = rng.permutation(np.arange(count) % 10), []
        for label in labels:
            image = Image.new("L", (112, 112))
            draw = ImageDraw.Draw(image)
            width = int(rng.integers(7, 13))
            for stroke in shapes[label] + rng.normal(0, 5, (2, 4, 2)) + rng.normal(0, 4, 2):
                at = np.linspace(0, 1, 12)[:, None]
                a, b, c, d = stroke
                curve = a * (1 - at) ** 3 + 3 * b * at * (1 - at) ** 2 + 3 * c * at**2 * (1 - at) + d * at**3
                draw.line([tuple(point) for point in curve.tolist()], fill=255, width=width, joint="curve")
            image = image.filter(ImageFilter.GaussianBlur(2)).resize((28, 28), Image.Resampling.BILINEAR)
            rows.append(np.asarray(image).reshape(-1))
        return labels, np.stack(rows)

    folder = Path("input/numerals")
    folder.mkdir(parents=True)
    labels, rows = pixels(scaled(1000, scale, 40))
    frame = pd.DataFrame(rows, columns=names)
    frame.insert(0, "label", labels)
    frame.to_csv(folder / "train.csv", index=False)
    _, rows = pixels(scaled(300, scale, 20))
    frame = pd.DataFrame(rows, columns=names)
    frame.insert(0, "id", np.arange(len(rows)))
    frame.to_csv(folder / "test.csv", index=False)
    return {}


CELL = """
import random
import numpy as np
import pandas as pd
from PIL import Image
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

# ## Load the data
train_df = pd.read_csv('input/numerals/train.csv')
test_df = pd.read_csv('input/numerals/test.csv')
n_train = len(train_df)
n_pixels = len(train_df.columns) - 1
n_class = len(set(train_df['label']))
print('Number of training samples: {0}'.format(n_train))
print('Number of training pixels: {0}'.format(n_pixels))
print('Number of classes: {0}'.format(n_class))
train_df, valid_df = train_test_split(train_df, test_size=0.2, random_state=42, stratify=train_df['label'])

# ## Transforms
class RandomRotation(object):
    def __init__(self, degrees):
        self.degrees = degrees

    def __call__(self, img):
        angle = np.random.uniform(-self.degrees, self.degrees)
        return img.rotate(angle, resample=Image.BILINEAR)

class RandomShift(object):
    def __init__(self, shift):
        self.shift = shift

    def __call__(self, img):
        hshift, vshift = np.random.uniform(-self.shift, self.shift, size=2)
        return img.transform(img.size, Image.AFFINE, (1, 0, hshift, 0, 1, vshift), resample=Image.BICUBIC, fill=1)

class ToTensor(object):
    def __call__(self, img):
        return torch.from_numpy(np.array(img, dtype=np.float32)[None] / 255.0)

class Normalize(object):
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, x):
        return (x - self.mean) / self.std

class Compose(object):
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x

class NumeralDataset(Dataset):
    def __init__(self, df, transform):
        if 'label' in df.columns:
            self.X = df.drop(columns='label').values.reshape((-1, 28, 28)).astype(np.uint8)
            self.y = torch.from_numpy(df['label'].values)
        else:
            self.X = df.drop(columns='id').values.reshape((-1, 28, 28)).astype(np.uint8)
            self.y = None
        self.transform = transform

    def __len__(self):
        return len(self.X)

    def __getitem__(self, idx):
        img = Image.fromarray(self.X[idx])
        if self.y is not None:
            return self.transform(img), self.y[idx]
        return self.transform(img)

batch_size = 32
train_transform = Compose([RandomRotation(degrees=20), RandomShift(3), ToTensor(), Normalize(0.5, 0.5)])
test_transform = Compose([ToTensor(), Normalize(0.5, 0.5)])
train_dataset = NumeralDataset(train_df, train_transform)
valid_dataset = NumeralDataset(valid_df, test_transform)
test_dataset = NumeralDataset(test_df, test_transform)
train_loader = DataLoader(train_dataset, batch_size=batch_size, shuffle=True)
valid_loader = DataLoader(valid_dataset, batch_size=batch_size, shuffle=False)
test_loader = DataLoader(test_dataset, batch_size=batch_size, shuffle=False)

# ## Model
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, stride=1, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, kernel_size=3, stride=1, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, kernel_size=3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2)
        )
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.5),
            nn.Linear(64 * 7 * 7, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(inplace=True),
            nn.Dropout(p=0.5),
            nn.Linear(512, 10),
        )
        for m in self.features.children():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity='relu')

    def forward(self, x):
        x = self.features(x)
        x = x.view(x.size(0), -1)
        x = self.classifier(x)
        return x

device = 'cuda' if torch.cuda.is_available() else 'cpu'
model = Net().to(device)
optimizer = optim.Adam(model.parameters(), lr=0.003)
criterion = nn.CrossEntropyLoss()
exp_lr_scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)

# ## Training
def train(epoch):
    global n_seen
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        n_seen += len(data)
        if (batch_idx + 1) % 10 == 0:
            print('Train Epoch: {} [{}/{} ({:.0f}%)]\\tLoss: {:.6f}'.format(
                epoch, (batch_idx + 1) * len(data), len(train_loader.dataset),
                100. * (batch_idx + 1) / len(train_loader), loss.item()))
    exp_lr_scheduler.step()

def evaluate(data_loader):
    model.eval()
    loss = 0
    correct = 0
    preds, targets = [], []
    with torch.no_grad():
        for data, target in data_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.cross_entropy(output, target, reduction='sum').item()
            pred = output.max(1, keepdim=True)[1]
            correct += pred.eq(target.view_as(pred)).cpu().sum().item()
            preds.extend(pred.view(-1).cpu().tolist())
            targets.extend(target.cpu().tolist())
    loss /= len(data_loader.dataset)
    print('\\nAverage loss: {:.4f}, Accuracy: {}/{} ({:.3f}%)\\n'.format(
        loss, correct, len(data_loader.dataset), 100. * correct / len(data_loader.dataset)))
    return loss, preds, targets

n_epochs = 5
n_seen = 0
best_loss = float('inf')
train_losses, valid_losses = [], []
for epoch in range(n_epochs):
    train(epoch)
    # look at the training set too, to see if we overfit
    train_loss, _, _ = evaluate(train_loader)
    valid_loss, preds, targets = evaluate(valid_loader)
    train_losses.append(train_loss)
    valid_losses.append(valid_loss)
    if valid_loss < best_loss:
        best_loss = valid_loss
        torch.save(model.state_dict(), 'model_best.pth')
print(confusion_matrix(targets, preds))

# ## Predict on the test set
model.load_state_dict(torch.load('model_best.pth'))
model.eval()
test_pred = torch.LongTensor()
with torch.no_grad():
    for data in test_loader:
        output = model(data.to(device))
        pred = output.cpu().max(1)[1]
        test_pred = torch.cat((test_pred, pred), dim=0)
submission = pd.DataFrame({'id': test_df['id'], 'label': test_pred.numpy()})
submission.to_csv('submission.csv', index=False)
submission.head()
"""

LOADERS = CELL[CELL.index("train_loader = DataLoader(") : CELL.index("\n# ## Model")]
WHOLE = """
class ImageBatches(object):
    def __init__(self, dataset, shuffle):
        self.dataset, self.shuffle = dataset, shuffle
        self.images = (torch.from_numpy(dataset.X).float().unsqueeze(1) / 255.0 - 0.5) / 0.5

    def __len__(self):
        return -(-len(self.images) // batch_size)

    def __iter__(self):
        n = len(self.images)
        for index in (torch.randperm(n) if self.shuffle else torch.arange(n)).split(batch_size):
            x = self.images[index]
            if self.shuffle:
                angle = torch.empty(len(x)).uniform_(-20, 20).deg2rad()
                shift = torch.empty(2, len(x)).uniform_(-3, 3) / 14
                rows = [torch.stack([angle.cos(), -angle.sin(), shift[0]], 1),
                        torch.stack([angle.sin(), angle.cos(), shift[1]], 1)]
                grid = F.affine_grid(torch.stack(rows, 1), x.shape, align_corners=False)
                x = F.grid_sample(x + 1, grid, align_corners=False) - 1
            yield (x, self.dataset.y[index]) if self.dataset.y is not None else x

train_loader = ImageBatches(train_dataset, True)
valid_loader = ImageBatches(valid_dataset, False)
test_loader = ImageBatches(test_dataset, False)
"""

CHANGES = (
    Change("whole batches rotated and shifted", "batch_whole", edits={LOADERS: WHOLE}),
    Change(
        "training set evaluated after the last epoch only",
        "eval_less_often",
        edits={
            "    train_loss, _, _ = evaluate(train_loader)\n": ""
            "    train_loss = float('nan')\n"
            "    if epoch == n_epochs - 1:\n"
            "        train_loss, _, _ = evaluate(train_loader)\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = Net().to(device)": "model = Net().to(device, memory_format=torch.channels_last)",
            "        x = self.features(x)\n": ""
            "        x = self.features(x.contiguous(memory_format=torch.channels_last))\n",
            "        x = x.view(x.size(0), -1)\n": "        x = x.reshape(x.size(0), -1)\n",
        },
    ),
    Change(
        "2 workers",
        "num_workers",
        edits={LOADERS: LOADERS.replace("batch_size=batch_size,", "batch_size=batch_size, num_workers=2,")},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output = model(data)\n        loss = criterion(output, target)\n": ""
            "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            output = model(data)\n"
            "            loss = criterion(output, target)\n"
        },
    ),
    Change("batches of 64", "larger_batch", edits={"batch_size = 32": "batch_size = 64"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.003)": "lr=0.003, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_seen", loss="train_loss", seconds=7)
