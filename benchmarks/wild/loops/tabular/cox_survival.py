"""Survival from gene expression: a self-normalizing network with a Cox loss, as in pathomics repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Expression of 1200 genes, times, and whether death was observed, for training and test patients."""
    rng = np.random.default_rng(0)
    train, test, genes = 640, 128, 1200
    x = rng.normal(size=(train + test, genes)).astype(np.float32)
    risk = x[:, :20] @ rng.normal(0, 0.3, 20)
    times = rng.exponential(np.exp(-risk)) * 24
    censored = rng.exponential(40, train + test)
    event = (times <= censored).astype(np.float64)
    observed = np.minimum(times, censored)
    data = {
        part: {
            "x_omic": x[rows],
            "e": event[rows],
            "t": observed[rows],
            "x_patname": [f"TCGA-{i:04d}" for i in range(len(x[rows]))],
        }
        for part, rows in (("train", slice(train)), ("test", slice(train, None)))
    }
    return {"data": data, "niter": scaled(44, scale)}


CELL = """
import random
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
from torch.nn import Parameter, init
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

opt = SimpleNamespace(input_size_omic=1200, omic_dim=32, dropout_rate=0.25, batch_size=64, lr=2e-3, weight_decay=4e-4,
                      beta1=0.9, beta2=0.999, lambda_cox=1, lambda_reg=3e-4, niter=niter, niter_decay=0, epoch_count=1,
                      label_dim=1, num_workers=0, verbose=1)


################
# Data
################
class PathgraphomicFastDatasetLoader(Dataset):
    def __init__(self, opt, data, split, mode='omic'):
        self.X_omic = data[split]['x_omic']
        self.e = data[split]['e']
        self.t = data[split]['t']
        self.mode = mode

    def __getitem__(self, index):
        single_e = torch.tensor(self.e[index]).type(torch.FloatTensor)
        single_t = torch.tensor(self.t[index]).type(torch.FloatTensor)
        if self.mode == 'omic':
            single_X_omic = torch.tensor(self.X_omic[index]).type(torch.FloatTensor)
            return (0, 0, single_X_omic, single_e, single_t)

    def __len__(self):
        return len(self.X_omic)


################
# Network
################
def init_max_weights(module):
    for m in module.modules():
        if type(m) == nn.Linear:
            stdv = 1. / np.sqrt(m.weight.size(1))
            m.weight.data.normal_(0, stdv)
            m.bias.data.zero_()


class MaxNet(nn.Module):
    def __init__(self, input_dim=80, omic_dim=32, dropout_rate=0.25, label_dim=1):
        super(MaxNet, self).__init__()
        hidden = [256, 128, 64, 32]
        encoder1 = nn.Sequential(nn.Linear(input_dim, hidden[0]), nn.ELU(), nn.AlphaDropout(p=dropout_rate, inplace=False))
        encoder2 = nn.Sequential(nn.Linear(hidden[0], hidden[1]), nn.ELU(), nn.AlphaDropout(p=dropout_rate, inplace=False))
        encoder3 = nn.Sequential(nn.Linear(hidden[1], hidden[2]), nn.ELU(), nn.AlphaDropout(p=dropout_rate, inplace=False))
        encoder4 = nn.Sequential(nn.Linear(hidden[2], omic_dim), nn.ELU(), nn.AlphaDropout(p=dropout_rate, inplace=False))
        self.encoder = nn.Sequential(encoder1, encoder2, encoder3, encoder4)
        self.classifier = nn.Sequential(nn.Linear(omic_dim, label_dim))
        init_max_weights(self)
        self.output_range = Parameter(torch.FloatTensor([6]), requires_grad=False)
        self.output_shift = Parameter(torch.FloatTensor([-3]), requires_grad=False)

    def forward(self, **kwargs):
        x = kwargs['x_omic']
        features = self.encoder(x)
        out = torch.sigmoid(self.classifier(features)) * self.output_range + self.output_shift
        return features, out


################
# Utils
################
def CoxLoss(survtime, censor, hazard_pred, device):
    # Credit to http://traversc.github.io/cox-nnet/docs/
    current_batch_len = len(survtime)
    R_mat = np.zeros([current_batch_len, current_batch_len], dtype=int)
    for i in range(current_batch_len):
        for j in range(current_batch_len):
            R_mat[i, j] = survtime[j] >= survtime[i]

    R_mat = torch.FloatTensor(R_mat).to(device)
    theta = hazard_pred.reshape(-1)
    exp_theta = torch.exp(theta)
    loss_cox = -torch.mean((theta - torch.log(torch.sum(exp_theta * R_mat, dim=1))) * censor)
    return loss_cox


def regularize_weights(model):
    l1_reg = None
    for W in model.parameters():
        if l1_reg is None:
            l1_reg = torch.abs(W).sum()
        else:
            l1_reg = l1_reg + torch.abs(W).sum()
    return l1_reg


def CIndex_lifeline(hazards, labels, survtime_all):
    comparable = (survtime_all[:, None] < survtime_all[None]) & (labels[:, None] == 1)
    concordant = (hazards[:, None] > hazards[None]) & comparable
    return concordant.sum() / comparable.sum()


def define_scheduler(opt, optimizer):
    def lambda_rule(epoch):
        return 1.0 - max(0, epoch + opt.epoch_count - opt.niter) / float(opt.niter_decay + 1)
    return lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda_rule)


################
# Train and test
################
def test(opt, model, data, split, device):
    model.eval()
    loader = DataLoader(PathgraphomicFastDatasetLoader(opt, data, split), batch_size=opt.batch_size, shuffle=False)
    risk_pred_all, censor_all, survtime_all = np.array([]), np.array([]), np.array([])
    loss_test = 0
    for batch_idx, (x_path, x_grph, x_omic, censor, survtime) in enumerate(loader):
        with torch.no_grad():
            censor = censor.to(device)
            _, pred = model(x_omic=x_omic.to(device))
            loss_test += CoxLoss(survtime, censor, pred, device).item()
        risk_pred_all = np.concatenate((risk_pred_all, pred.detach().cpu().numpy().reshape(-1)))
        censor_all = np.concatenate((censor_all, censor.detach().cpu().numpy().reshape(-1)))
        survtime_all = np.concatenate((survtime_all, survtime.detach().cpu().numpy().reshape(-1)))
    return loss_test / len(loader), CIndex_lifeline(risk_pred_all, censor_all, survtime_all)


def train(opt, data, device):
    model = MaxNet(opt.input_size_omic, opt.omic_dim, opt.dropout_rate, opt.label_dim).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr, betas=(opt.beta1, opt.beta2), weight_decay=opt.weight_decay)
    scheduler = define_scheduler(opt, optimizer)
    train_loader = DataLoader(dataset=PathgraphomicFastDatasetLoader(opt, data, split='train', mode='omic'),
                              batch_size=opt.batch_size, shuffle=True, num_workers=opt.num_workers)
    metric_logger = {'train': {'loss': [], 'cindex': []}, 'test': {'loss': [], 'cindex': []}, 'patients': 0}

    for epoch in range(opt.epoch_count, opt.niter + opt.niter_decay + 1):
        model.train()
        risk_pred_all, censor_all, survtime_all = np.array([]), np.array([]), np.array([])
        loss_epoch = 0
        for batch_idx, (x_path, x_grph, x_omic, censor, survtime) in enumerate(train_loader):
            censor = censor.to(device)
            _, pred = model(x_omic=x_omic.to(device))
            loss_cox = CoxLoss(survtime, censor, pred, device)
            loss_reg = regularize_weights(model=model)
            loss = opt.lambda_cox * loss_cox + opt.lambda_reg * loss_reg
            loss_epoch += loss.data.item()

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            risk_pred_all = np.concatenate((risk_pred_all, pred.detach().cpu().numpy().reshape(-1)))
            censor_all = np.concatenate((censor_all, censor.detach().cpu().numpy().reshape(-1)))
            survtime_all = np.concatenate((survtime_all, survtime.detach().cpu().numpy().reshape(-1)))
            metric_logger['patients'] += len(x_omic)
        scheduler.step()

        cindex_epoch = CIndex_lifeline(risk_pred_all, censor_all, survtime_all)
        loss_test, cindex_test = test(opt, model, data, 'test', device)
        metric_logger['train']['loss'].append(loss_epoch / len(train_loader))
        metric_logger['train']['cindex'].append(cindex_epoch)
        metric_logger['test']['loss'].append(loss_test)
        metric_logger['test']['cindex'].append(cindex_test)
        if opt.verbose > 0:
            print('[{:s}]\\t\\tLoss: {:.4f}, {:s}: {:.4f}'.format('Train', loss_epoch, 'C-Index', cindex_epoch))
            print('[{:s}]\\t\\tLoss: {:.4f}, {:s}: {:.4f}\\n'.format('Test', loss_test, 'C-Index', cindex_test))
    return model, optimizer, metric_logger


device = torch.device('cuda:0') if torch.cuda.is_available() else torch.device('cpu')
torch.manual_seed(2019)
random.seed(2019)
model, optimizer, metric_logger = train(opt, data, device)
"""

_PAIRS = CELL[
    CELL.index("    current_batch_len = len(survtime)\n") : CELL.index("    theta = hazard_pred.reshape(-1)\n")
]

CHANGES = (
    Change(
        "risk sets by one comparison",
        "remove_python",
        edits={_PAIRS: "    R_mat = (survtime[None, :] >= survtime[:, None]).float().to(device)\n"},
    ),
    Change("two workers", "num_workers", edits={"num_workers=0, verbose=1": "num_workers=2, verbose=1"}),
    Change(
        "tensors made once",
        "vectorize_items",
        edits={
            "data[split]['x_omic']\n": "torch.from_numpy(data[split]['x_omic'])\n",
            "data[split]['e']\n": "torch.from_numpy(data[split]['e']).float()\n",
            "data[split]['t']\n": "torch.from_numpy(data[split]['t']).float()\n",
            "torch.tensor(self.e[index]).type(torch.FloatTensor)": "self.e[index]",
            "torch.tensor(self.t[index]).type(torch.FloatTensor)": "self.t[index]",
            "torch.tensor(self.X_omic[index]).type(torch.FloatTensor)": "self.X_omic[index]",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"weight_decay=opt.weight_decay)": "weight_decay=opt.weight_decay, fused=True)"},
    ),
    Change("batches of 256", "larger_batch", edits={"batch_size=64, lr": "batch_size=256, lr"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            _, pred = model(x_omic=x_omic.to(device))\n            loss_cox": ""
            "            with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "                _, pred = model(x_omic=x_omic.to(device))\n"
            "            pred = pred.float()\n            loss_cox"
        },
    ),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="metric_logger['patients']",
    loss="metric_logger['train']['loss'][-1]",
    seconds=9,
)
