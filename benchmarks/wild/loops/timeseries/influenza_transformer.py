"""An encoder-decoder transformer for hourly load with a Dataset class and early stopping; validation decodes hour by hour."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, mask_dropout, scaled


def prepare(scale: float) -> Namespace:
    """Hourly load with daily and weekly seasons, a drift and noise, as a CSV file."""
    rng = np.random.default_rng(0)
    hours = np.arange(5200)
    load = 30 + 8 * np.sin(2 * np.pi * hours / 24) + 4 * np.sin(2 * np.pi * hours / 168 + 1)
    load += np.cumsum(rng.normal(0, 0.05, len(hours))) + rng.normal(0, 1, len(hours))
    time = pd.date_range("2021-01-01", periods=len(hours), freq="h")
    pd.DataFrame({"timestamp": time, "load": load}).to_csv("load.csv", index=False)
    return {"max_epochs": scaled(3, scale)}


CELL = """
import math
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.preprocessing import MinMaxScaler
from torch.utils.data import Dataset, DataLoader

# Params
target_col_name = 'load'
dim_val = 64
n_heads = 4
n_decoder_layers = 2
n_encoder_layers = 2
dim_feedforward = 256
enc_seq_len = 96
output_sequence_length = 24
window_size = enc_seq_len + output_sequence_length
step_size = 6
batch_size = 64
epochs = max_epochs
learning_rate = 1e-4

data = pd.read_csv('load.csv', parse_dates=['timestamp'], index_col=['timestamp'])
n_train = int(0.9 * len(data))
scaler = MinMaxScaler().fit(data[[target_col_name]].iloc[:n_train])
series = torch.tensor(scaler.transform(data[[target_col_name]])).float()
training_data, validation_data = series[:n_train], series[n_train - enc_seq_len:]

def get_indices_entire_sequence(num_obs, window_size, step_size):
    subseq_first_idx, subseq_last_idx = 0, window_size
    indices = []
    while subseq_last_idx <= num_obs - 1:
        indices.append((subseq_first_idx, subseq_last_idx))
        subseq_first_idx += step_size
        subseq_last_idx += step_size
    return indices

class TransformerDataset(Dataset):
    def __init__(self, data, indices, enc_seq_len, target_seq_len):
        super().__init__()
        self.indices = indices
        self.data = data
        self.enc_seq_len = enc_seq_len
        self.target_seq_len = target_seq_len

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        start_idx, end_idx = self.indices[index]
        sequence = self.data[start_idx:end_idx]
        src, trg, trg_y = self.get_src_trg(sequence)
        return src, trg, trg_y

    def get_src_trg(self, sequence):
        assert len(sequence) == self.enc_seq_len + self.target_seq_len
        src = sequence[:self.enc_seq_len]
        # decoder input: the last value of src and all values of the target but the last
        trg = sequence[self.enc_seq_len - 1:len(sequence) - 1]
        trg_y = sequence[-self.target_seq_len:]
        return src, trg, trg_y.squeeze(-1)

class PositionalEncoder(nn.Module):
    def __init__(self, dropout=0.1, max_seq_len=500, d_model=512):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_seq_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_seq_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer('pe', pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, :x.size(1)])

class TimeSeriesTransformer(nn.Module):
    def __init__(self, input_size=1):
        super().__init__()
        self.encoder_input_layer = nn.Linear(input_size, dim_val)
        self.decoder_input_layer = nn.Linear(input_size, dim_val)
        self.linear_mapping = nn.Linear(dim_val, 1)
        self.positional_encoding_layer = PositionalEncoder(d_model=dim_val)
        encoder_layer = nn.TransformerEncoderLayer(dim_val, n_heads, dim_feedforward, 0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, n_encoder_layers, norm=None)
        decoder_layer = nn.TransformerDecoderLayer(dim_val, n_heads, dim_feedforward, 0.2, batch_first=True)
        self.decoder = nn.TransformerDecoder(decoder_layer, n_decoder_layers, norm=None)

    def encode(self, src):
        return self.encoder(self.positional_encoding_layer(self.encoder_input_layer(src)))

    def decode(self, tgt, memory, src_mask=None, tgt_mask=None):
        tgt = self.decoder_input_layer(tgt)
        output = self.decoder(tgt=tgt, memory=memory, tgt_mask=tgt_mask, memory_mask=src_mask)
        return self.linear_mapping(output)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        return self.decode(tgt, self.encode(src), src_mask, tgt_mask)

def generate_square_subsequent_mask(dim1, dim2):
    return torch.triu(torch.ones(dim1, dim2) * float('-inf'), diagonal=1)

def run_encoder_decoder_inference(model, src, forecast_window):
    # the last observed value starts the decoder, then its own predictions are appended
    tgt = src[:, -1:, :]
    for _ in range(forecast_window):
        dim_a, dim_b = tgt.shape[1], src.shape[1]
        tgt_mask = generate_square_subsequent_mask(dim_a, dim_a).to(device)
        prediction = model(src, tgt, None, tgt_mask)
        last_predicted_value = prediction[:, -1:, :]
        tgt = torch.cat((tgt, last_predicted_value.detach()), 1)
    return tgt[:, 1:, :].squeeze(-1)

class EarlyStopping:
    def __init__(self, patience=7, delta=0, path='checkpoint.pt'):
        self.patience, self.delta, self.path = patience, delta, path
        self.counter, self.best_score, self.early_stop = 0, None, False
        self.val_loss_min = np.inf

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None or score >= self.best_score + self.delta:
            self.best_score = score
            self.save_checkpoint(val_loss, model)
            self.counter = 0
        else:
            self.counter += 1
            print(f'EarlyStopping counter: {self.counter} out of {self.patience}')
            if self.counter >= self.patience:
                self.early_stop = True

    def save_checkpoint(self, val_loss, model):
        print(f'Validation loss decreased ({self.val_loss_min:.6f} --> {val_loss:.6f}).  Saving model ...')
        torch.save(model.state_dict(), self.path)
        self.val_loss_min = val_loss

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_indices = get_indices_entire_sequence(len(training_data), window_size, step_size)
val_indices = get_indices_entire_sequence(len(validation_data), window_size, step_size)
train_loader = DataLoader(TransformerDataset(training_data, train_indices, enc_seq_len, output_sequence_length),
                          batch_size, shuffle=True)
val_loader = DataLoader(TransformerDataset(validation_data, val_indices, enc_seq_len, output_sequence_length), batch_size)

model = TimeSeriesTransformer().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
criterion = nn.MSELoss()
early_stopping = EarlyStopping(patience=7)

windows_seen = 0
for epoch in range(epochs):
    model.train()
    train_losses = []
    for src, trg, trg_y in train_loader:
        src, trg, trg_y = src.to(device), trg.to(device), trg_y.to(device)
        optimizer.zero_grad()
        tgt_mask = generate_square_subsequent_mask(output_sequence_length, output_sequence_length).to(device)
        prediction = model(src, trg, None, tgt_mask)
        loss = criterion(prediction.squeeze(-1), trg_y)
        loss.backward()
        optimizer.step()
        train_losses.append(loss.item())
        windows_seen += len(src)

    model.eval()
    valid_losses = []
    with torch.no_grad():
        for src, _, trg_y in val_loader:
            src, trg_y = src.to(device), trg_y.to(device)
            prediction = run_encoder_decoder_inference(model, src, output_sequence_length)
            valid_losses.append(criterion(prediction, trg_y).item())

    print(f'[{epoch + 1}/{epochs}] train_loss: {np.mean(train_losses):.5f} valid_loss: {np.mean(valid_losses):.5f}')
    early_stopping(np.mean(valid_losses), model)
    if early_stopping.early_stop:
        print('Early stopping')
        break

model.load_state_dict(torch.load('checkpoint.pt'))
"""

CHANGES = (
    mask_dropout("model = TimeSeriesTransformer().to(device)\n"),
    Change(
        "encoder once per validation batch",
        "remove_python",
        edits={
            "    for _ in range(forecast_window):\n": ""
            "    memory = model.encode(src)\n"
            "    for _ in range(forecast_window):\n",
            "prediction = model(src, tgt, None, tgt_mask)": "prediction = model.decode(tgt, memory, None, tgt_mask)",
        },
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size = 64": "batch_size = 128"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=learning_rate)": "lr=learning_rate, fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        prediction = model(src, trg, None, tgt_mask)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            prediction = model(src, trg, None, tgt_mask).float()\n",
            "            prediction = run_encoder_decoder_inference(model, src, output_sequence_length)\n": ""
            "            with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "                prediction = run_encoder_decoder_inference(model, src, output_sequence_length)\n",
        },
    ),
    Change(
        "two workers", "num_workers", edits={"batch_size, shuffle=True)": "batch_size, shuffle=True, num_workers=2)"}
    ),
    Change("no garbage collection", "gc", edits={"import math\n": "import gc\nimport math\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows_seen", loss="train_losses[-1]", seconds=8)
