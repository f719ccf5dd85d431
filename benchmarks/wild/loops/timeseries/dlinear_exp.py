"""Long-term forecasts by DLinear with an Exp class: data sets of windows, four workers per loader, validation every epoch."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Hourly readings of seven sensors with daily and weekly seasons, as in the ETT files."""
    rng = np.random.default_rng(0)
    rows = scaled(8832, scale, 128) + 1431  # windows for training, and the rows that make them
    hours = np.arange(rows)
    frame = pd.DataFrame({"date": pd.date_range("2016-07-01", periods=rows, freq="h").astype(str)})
    for name in ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"):
        daily = np.sin(2 * np.pi * (hours + rng.integers(24)) / 24) + 0.5 * np.sin(2 * np.pi * hours / 168)
        frame[name] = daily + rng.normal(0, 0.3, rows) + np.cumsum(rng.normal(0, 0.02, rows))
    frame.to_csv("ETTh1.csv", index=False)
    return {}


CELL = """
import argparse
import os
import time
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.preprocessing import StandardScaler
from torch import optim
from torch.utils.data import DataLoader, Dataset

args = argparse.Namespace(data_path='ETTh1.csv', seq_len=336, label_len=48, pred_len=96, enc_in=7, batch_size=32,
                          num_workers=4, train_epochs=4, learning_rate=0.005, patience=5, checkpoints='./checkpoints/')


class Dataset_ETT_hour(Dataset):
    def __init__(self, args, flag):
        self.seq_len, self.label_len, self.pred_len = args.seq_len, args.label_len, args.pred_len
        self.set_type = {'train': 0, 'val': 1}[flag]
        df_raw = pd.read_csv(args.data_path)
        n_train = len(df_raw) - 1000
        border1s = [0, n_train - self.seq_len]
        border2s = [n_train, len(df_raw)]
        border1, border2 = border1s[self.set_type], border2s[self.set_type]
        df_data = df_raw[df_raw.columns[1:]]
        self.scaler = StandardScaler()
        self.scaler.fit(df_data[border1s[0]:border2s[0]].values)
        data = self.scaler.transform(df_data.values)
        df_stamp = df_raw[['date']][border1:border2]
        df_stamp['date'] = pd.to_datetime(df_stamp.date)
        df_stamp['month'] = df_stamp.date.apply(lambda row: row.month)
        df_stamp['day'] = df_stamp.date.apply(lambda row: row.day)
        df_stamp['weekday'] = df_stamp.date.apply(lambda row: row.weekday())
        df_stamp['hour'] = df_stamp.date.apply(lambda row: row.hour)
        self.data_stamp = df_stamp.drop(columns=['date']).values
        self.data_x = data[border1:border2]
        self.data_y = data[border1:border2]

    def __getitem__(self, index):
        s_begin = index
        s_end = s_begin + self.seq_len
        r_begin = s_end - self.label_len
        r_end = r_begin + self.label_len + self.pred_len
        seq_x = self.data_x[s_begin:s_end]
        seq_y = self.data_y[r_begin:r_end]
        seq_x_mark = self.data_stamp[s_begin:s_end]
        seq_y_mark = self.data_stamp[r_begin:r_end]
        return seq_x, seq_y, seq_x_mark, seq_y_mark

    def __len__(self):
        return len(self.data_x) - self.seq_len - self.pred_len + 1


def data_provider(args, flag):
    data_set = Dataset_ETT_hour(args, flag)
    print(flag, len(data_set))
    data_loader = DataLoader(data_set, batch_size=args.batch_size, shuffle=flag == 'train', num_workers=args.num_workers, drop_last=True)
    return data_set, data_loader


class moving_avg(nn.Module):
    def __init__(self, kernel_size, stride):
        super(moving_avg, self).__init__()
        self.kernel_size = kernel_size
        self.avg = nn.AvgPool1d(kernel_size=kernel_size, stride=stride, padding=0)

    def forward(self, x):
        # padding on the both ends of time series
        front = x[:, 0:1, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        x = torch.cat([front, x, end], dim=1)
        x = self.avg(x.permute(0, 2, 1))
        return x.permute(0, 2, 1)


class DLinear(nn.Module):
    def __init__(self, configs):
        super(DLinear, self).__init__()
        self.decomp = moving_avg(25, 1)
        self.Linear_Seasonal = nn.Linear(configs.seq_len, configs.pred_len)
        self.Linear_Trend = nn.Linear(configs.seq_len, configs.pred_len)

    def forward(self, x):
        trend = self.decomp(x)
        seasonal, trend = (x - trend).permute(0, 2, 1), trend.permute(0, 2, 1)
        return (self.Linear_Seasonal(seasonal) + self.Linear_Trend(trend)).permute(0, 2, 1)


class EarlyStopping:
    def __init__(self, patience=7):
        self.patience, self.counter, self.best_score, self.early_stop = patience, 0, None, False

    def __call__(self, val_loss, model, path):
        if self.best_score is None or -val_loss > self.best_score:
            self.best_score, self.counter = -val_loss, 0
            torch.save(model.state_dict(), path + '/' + 'checkpoint.pth')
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


class Exp_Main(object):
    def __init__(self, args):
        self.args = args
        self.device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
        self.model = DLinear(args).float().to(self.device)
        self.windows = 0

    def _process(self, batch_x, batch_y):
        batch_x = batch_x.float().to(self.device)
        batch_y = batch_y.float().to(self.device)
        outputs = self.model(batch_x)
        return outputs[:, -self.args.pred_len:, :], batch_y[:, -self.args.pred_len:, :]

    def vali(self, vali_loader, criterion):
        total_loss = []
        self.model.eval()
        with torch.no_grad():
            for i, (batch_x, batch_y, batch_x_mark, batch_y_mark) in enumerate(vali_loader):
                outputs, batch_y = self._process(batch_x, batch_y)
                total_loss.append(criterion(outputs.detach().cpu(), batch_y.detach().cpu()).item())
        self.model.train()
        return np.average(total_loss)

    def train(self):
        train_data, train_loader = data_provider(self.args, 'train')
        vali_data, vali_loader = data_provider(self.args, 'val')
        os.makedirs(self.args.checkpoints, exist_ok=True)
        time_now = time.time()
        early_stopping = EarlyStopping(patience=self.args.patience)
        model_optim = optim.Adam(self.model.parameters(), lr=self.args.learning_rate)
        criterion = nn.MSELoss()
        for epoch in range(self.args.train_epochs):
            iter_count, train_loss = 0, []
            self.model.train()
            epoch_time = time.time()
            for i, (batch_x, batch_y, batch_x_mark, batch_y_mark) in enumerate(train_loader):
                iter_count += 1
                model_optim.zero_grad()
                outputs, batch_y = self._process(batch_x, batch_y)
                loss = criterion(outputs, batch_y)
                train_loss.append(loss.item())
                if (i + 1) % 100 == 0:
                    print('\\titers: {0}, epoch: {1} | loss: {2:.7f}'.format(i + 1, epoch + 1, loss.item()))
                    speed = (time.time() - time_now) / iter_count
                    print('\\tspeed: {:.4f}s/iter'.format(speed))
                    iter_count, time_now = 0, time.time()
                loss.backward()
                model_optim.step()
                self.windows += len(outputs)
            vali_loss = self.vali(vali_loader, criterion)
            print('Epoch: {} cost time: {} | Train Loss: {:.7f} Vali Loss: {:.7f}'.format(epoch + 1, time.time() - epoch_time, np.average(train_loss), vali_loss))
            early_stopping(vali_loss, self.model, self.args.checkpoints)
            if early_stopping.early_stop:
                print('Early stopping')
                break
            for param_group in model_optim.param_groups:
                param_group['lr'] = self.args.learning_rate * (0.5 ** epoch)
        return vali_loss


exp = Exp_Main(args)
vali_loss = exp.train()
"""

_LOADER = (
    "    data_loader = DataLoader(data_set, batch_size=args.batch_size, shuffle=flag == 'train', "
    "num_workers=args.num_workers, drop_last=True)\n"
)

CHANGES = (
    Change("no workers", "num_workers", edits={"num_workers=4,": "num_workers=0,"}),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={"num_workers=args.num_workers,": "num_workers=args.num_workers, persistent_workers=True,"},
    ),
    Change(
        "whole batches of windows, no workers",
        "batch_whole",
        edits={
            _LOADER: "    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler\n"
            "    order = RandomSampler(data_set) if flag == 'train' else SequentialSampler(data_set)\n"
            "    sampler = BatchSampler(order, args.batch_size, drop_last=True)\n"
            "    data_loader = DataLoader(data_set, sampler=sampler, batch_size=None, num_workers=0)\n",
            "        self.data_x = data[border1:border2]\n        self.data_y = data[border1:border2]\n": ""
            "        self.values = torch.from_numpy(data[border1:border2]).float()\n"
            "        self.marks = torch.from_numpy(self.data_stamp)\n",
            "        return len(self.data_x) -": "        return len(self.values) -",
            "        seq_x = self.data_x[s_begin:s_end]\n        seq_y = self.data_y[r_begin:r_end]\n"
            "        seq_x_mark = self.data_stamp[s_begin:s_end]\n        seq_y_mark = self.data_stamp[r_begin:r_end]\n"
            "        return seq_x, seq_y, seq_x_mark, seq_y_mark\n": ""
            "        x = s_begin[:, None] + torch.arange(self.seq_len)\n"
            "        y = r_begin[:, None] + torch.arange(self.label_len + self.pred_len)\n"
            "        return self.values[x], self.values[y], self.marks[x], self.marks[y]\n",
            "        s_begin = index\n": "        s_begin = torch.tensor(index)\n",
            "        r_end = r_begin + self.label_len + self.pred_len\n": "",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"lr=self.args.learning_rate)": "lr=self.args.learning_rate, fused=True)"},
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size=32,": "batch_size=128,"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = self.model(batch_x)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            outputs = self.model(batch_x).float()\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="exp.windows", loss="float(vali_loss)", seconds=12)
