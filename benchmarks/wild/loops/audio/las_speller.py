"""Listen, attend and spell on short spoken phrases: a pyramidal BiLSTM, an LSTMCell speller with teacher forcing, as in LAS repositories."""

from pathlib import Path

import numpy as np
from scipy.io import wavfile

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Wave files of 0.2 to 1.2 s in which each letter is a pair of tones, and a manifest with path and text per line."""
    rng = np.random.default_rng(0)
    rate = 16000
    letters = "abcdefghijklmnoprstuvwy"
    low, high = rng.uniform(200, 900, len(letters)), rng.uniform(1000, 3500, len(letters))
    words = ["".join(rng.choice(list(letters), rng.integers(2, 5))) for _ in range(60)]
    Path("corpus/wav").mkdir(parents=True)

    def speak(text: str) -> np.ndarray:
        pitch, parts = rng.uniform(0.9, 1.1), []
        for letter in text:
            t = np.arange(int(rate * rng.uniform(0.05, 0.09))) / rate
            if letter == " ":
                parts.append(np.zeros(len(t)))
                continue
            index = letters.index(letter)
            tone = np.sin(2 * np.pi * low[index] * pitch * t) + 0.6 * np.sin(2 * np.pi * high[index] * pitch * t)
            parts.append(tone * np.hanning(len(t)))
        wave = np.concatenate([np.zeros(rate // 20), *parts, np.zeros(rate // 20)])
        return ((0.3 * wave + rng.normal(0, 0.01, len(wave))) * 20000).astype(np.int16)

    for split, count in (("train", scaled(320, scale, 32)), ("dev", scaled(48, scale, 16))):
        lines = []
        for index in range(count):
            text = " ".join(rng.choice(words, rng.integers(1, 4)))
            path = f"corpus/wav/{split}_{index:04d}.wav"
            wavfile.write(path, rate, speak(text))
            lines.append(f"{path}|{text}")
        Path(f"corpus/{split}.txt").write_text("\n".join(lines) + "\n")
    return {}


CELL = """
import random
import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.io import wavfile
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset

config = {
    'sample_rate': 16000, 'n_fft': 400, 'hop': 160, 'n_mels': 40,
    'listener_hidden': 96, 'listener_layers': 2,
    'speller_hidden': 192, 'embed_dim': 64, 'attention_dim': 128,
    'batch_size': 16, 'epochs': 3, 'lr': 1e-3, 'label_smoothing': 0.1, 'clip': 5.0,
    'tf_start': 0.95, 'tf_end': 0.8, 'max_decode': 30,
}
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

# ---------------------------------------------------------------- text

CHARS = ['<pad>', '<sos>', '<eos>', ' '] + list('abcdefghijklmnopqrstuvwxyz')
PAD, SOS, EOS = 0, 1, 2
char2idx = {c: i for i, c in enumerate(CHARS)}

def encode_text(text):
    return [char2idx[c] for c in text] + [EOS]

def decode_ids(ids):
    out = []
    for i in ids:
        if i == EOS:
            break
        if i not in (PAD, SOS):
            out.append(CHARS[i])
    return ''.join(out)

def edit_distance(a, b):
    d = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)
    d[:, 0] = np.arange(len(a) + 1)
    d[0, :] = np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + cost)
    return d[len(a), len(b)]

# ---------------------------------------------------------------- features

def mel_filterbank(sample_rate, n_fft, n_mels):
    def to_mel(f):
        return 2595 * np.log10(1 + f / 700)

    mels = np.linspace(to_mel(20), to_mel(sample_rate / 2), n_mels + 2)
    hz = 700 * (10 ** (mels / 2595) - 1)
    bins = np.fft.rfftfreq(n_fft, 1 / sample_rate)
    bank = np.zeros((n_mels, len(bins)))
    for m in range(n_mels):
        left, center, right = hz[m:m + 3]
        bank[m] = np.maximum(0, np.minimum((bins - left) / (center - left), (right - bins) / (right - center)))
    return bank

def logmel(path):
    rate, signal = wavfile.read(path)
    signal = signal.astype(np.float64) / 32768
    # pre-emphasis, frames, window
    signal = np.append(signal[0], signal[1:] - 0.97 * signal[:-1])
    n_frames = 1 + (len(signal) - config['n_fft']) // config['hop']
    frames = np.stack([signal[i * config['hop']:i * config['hop'] + config['n_fft']] for i in range(n_frames)])
    frames = frames * np.hamming(config['n_fft'])
    power = np.abs(np.fft.rfft(frames, config['n_fft'])) ** 2 / config['n_fft']
    bank = mel_filterbank(rate, config['n_fft'], config['n_mels'])
    feat = np.log(power @ bank.T + 1e-8)
    return (feat - feat.mean(0)) / (feat.std(0) + 1e-5)

class SpeechDataset(Dataset):
    def __init__(self, manifest):
        with open(manifest) as f:
            self.items = [line.strip().split('|') for line in f]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        path, text = self.items[idx]
        return torch.FloatTensor(logmel(path)), torch.LongTensor(encode_text(text))

def collate_fn(batch):
    # sort by length for packing
    batch = sorted(batch, key=lambda item: item[0].size(0), reverse=True)
    feats, texts = zip(*batch)
    feat_lens = torch.LongTensor([f.size(0) for f in feats])
    text_lens = torch.LongTensor([t.size(0) for t in texts])
    return (pad_sequence(feats, batch_first=True), feat_lens,
            pad_sequence(texts, batch_first=True, padding_value=PAD), text_lens)

train_set = SpeechDataset('corpus/train.txt')
dev_set = SpeechDataset('corpus/dev.txt')
train_loader = DataLoader(train_set, batch_size=config['batch_size'], shuffle=True, collate_fn=collate_fn)
dev_loader = DataLoader(dev_set, batch_size=config['batch_size'], shuffle=False, collate_fn=collate_fn)

# ---------------------------------------------------------------- model

class pBLSTM(nn.Module):
    def __init__(self, input_dim, hidden_dim):
        super().__init__()
        self.lstm = nn.LSTM(input_dim * 2, hidden_dim, batch_first=True, bidirectional=True)

    def forward(self, x, lens):
        # two neighbouring frames become one
        if x.size(1) % 2 != 0:
            x = x[:, :-1, :]
        x = x.contiguous().view(x.size(0), x.size(1) // 2, x.size(2) * 2)
        lens = torch.clamp(lens // 2, min=1)
        packed = pack_padded_sequence(x, lens, batch_first=True)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return out, lens

class Listener(nn.Module):
    def __init__(self, input_dim, hidden_dim, num_layers):
        super().__init__()
        self.base = nn.LSTM(input_dim * 2, hidden_dim, batch_first=True, bidirectional=True)
        self.pyramid = nn.ModuleList([pBLSTM(hidden_dim * 2, hidden_dim) for _ in range(num_layers)])
        self.input_dim = input_dim

    def forward(self, x, lens):
        # stack pairs of frames, as the base layer has no need of 100 frames per second
        if x.size(1) % 2 != 0:
            x = F.pad(x, (0, 0, 0, 1))
        x = x.view(x.size(0), -1, self.input_dim * 2)
        lens = (lens + 1) // 2
        packed = pack_padded_sequence(x, lens, batch_first=True)
        out, _ = self.base(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        for layer in self.pyramid:
            out, lens = layer(out, lens)
        return out, lens

class Attention(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.query = nn.Linear(query_dim, attention_dim)
        self.key = nn.Linear(key_dim, attention_dim)
        self.energy = nn.Linear(attention_dim, 1)

    def forward(self, state, memory, memory_lens):
        q = self.query(state).unsqueeze(1)
        k = self.key(memory)
        score = self.energy(torch.tanh(q + k)).squeeze(2)
        mask = torch.arange(memory.size(1), device=memory.device)[None, :] >= memory_lens[:, None].to(memory.device)
        score = score.masked_fill(mask, -1e9)
        weights = F.softmax(score, dim=1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights

class Speller(nn.Module):
    def __init__(self, vocab_size, memory_dim):
        super().__init__()
        hidden, embed = config['speller_hidden'], config['embed_dim']
        self.embedding = nn.Embedding(vocab_size, embed, padding_idx=PAD)
        self.rnn1 = nn.LSTMCell(embed + memory_dim, hidden)
        self.rnn2 = nn.LSTMCell(hidden, hidden)
        self.attention = Attention(hidden, memory_dim, config['attention_dim'])
        self.out = nn.Sequential(nn.Linear(hidden + memory_dim, hidden), nn.Tanh(), nn.Linear(hidden, vocab_size))

    def forward(self, memory, memory_lens, target=None, teacher_forcing=1.0):
        batch = memory.size(0)
        steps = target.size(1) if target is not None else config['max_decode']
        use_teacher = target is not None and random.random() < teacher_forcing
        prev = torch.full((batch,), SOS, dtype=torch.long, device=memory.device)
        context = memory.new_zeros(batch, memory.size(2))
        state1 = state2 = None
        outputs, attentions = [], []
        for t in range(steps):
            x = torch.cat([self.embedding(prev), context], dim=1)
            state1 = self.rnn1(x, state1)
            state2 = self.rnn2(state1[0], state2)
            context, weights = self.attention(state2[0], memory, memory_lens)
            logits = self.out(torch.cat([state2[0], context], dim=1))
            outputs.append(logits)
            attentions.append(weights)
            if use_teacher:
                prev = target[:, t]
            else:
                prev = logits.argmax(dim=1)
        return torch.stack(outputs, dim=1), torch.stack(attentions, dim=1)

class LAS(nn.Module):
    def __init__(self):
        super().__init__()
        self.listener = Listener(config['n_mels'], config['listener_hidden'], config['listener_layers'])
        self.speller = Speller(len(CHARS), config['listener_hidden'] * 2)

    def forward(self, feats, feat_lens, target=None, teacher_forcing=1.0):
        memory, memory_lens = self.listener(feats, feat_lens)
        return self.speller(memory, memory_lens, target, teacher_forcing)

# ---------------------------------------------------------------- training

model = LAS().to(device)
print('parameters: %.2f M' % (sum(p.numel() for p in model.parameters()) / 1e6))
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=config['label_smoothing'])
optimizer = torch.optim.Adam(model.parameters(), lr=config['lr'])
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

def train_epoch(epoch, tf_rate):
    model.train()
    total_loss, total_dist, total_chars, seen = 0.0, 0, 0, 0
    for step, (feats, feat_lens, texts, text_lens) in enumerate(train_loader):
        feats, texts = feats.to(device), texts.to(device)
        optimizer.zero_grad()
        logits, _ = model(feats, feat_lens, texts, tf_rate)
        loss = criterion(logits.reshape(-1, logits.size(-1)), texts.reshape(-1))
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), config['clip'])
        optimizer.step()
        total_loss += loss.item()
        seen += feats.size(0)
        # character error rate of the training batch
        for pred, true in zip(logits.argmax(-1).tolist(), texts.tolist()):
            pred, true = decode_ids(pred), decode_ids(true)
            total_dist += edit_distance(pred, true)
            total_chars += len(true)
        if step % 10 == 0:
            print('[epoch %d %3d/%d] loss %.3f grad norm %.2f CER %.3f' % (
                epoch, step, len(train_loader), loss.item(), grad_norm, total_dist / total_chars))
    return total_loss / len(train_loader), total_dist / total_chars, seen

def evaluate():
    model.eval()
    dist, chars = 0, 0
    with torch.no_grad():
        for feats, feat_lens, texts, text_lens in dev_loader:
            logits, attentions = model(feats.to(device), feat_lens)
            for pred, true in zip(logits.argmax(-1).tolist(), texts.tolist()):
                pred, true = decode_ids(pred), decode_ids(true)
                dist += edit_distance(pred, true)
                chars += len(true)
    return dist / chars

utterances, best_cer = 0, float('inf')
for epoch in range(config['epochs']):
    start = time.time()
    tf_rate = config['tf_start'] - (config['tf_start'] - config['tf_end']) * epoch / max(1, config['epochs'] - 1)
    train_loss, train_cer, seen = train_epoch(epoch, tf_rate)
    dev_cer = evaluate()
    scheduler.step()
    utterances += seen
    print('epoch %d: train loss %.3f CER %.3f | dev CER %.3f | tf %.2f | %.1f s' % (
        epoch, train_loss, train_cer, dev_cer, tf_rate, time.time() - start))
    if dev_cer < best_cer:
        best_cer = dev_cer
        torch.save(model.state_dict(), 'las_best.pt')
"""

LOADER = "train_loader = DataLoader(train_set, batch_size=config['batch_size'], shuffle=True, collate_fn=collate_fn)\n"
BUCKETS = """
class LengthBatches(torch.utils.data.Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = np.array(lengths), batch_size

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self):
        order = np.argsort(self.lengths + np.random.rand(len(self.lengths)))
        batches = [order[i:i + self.batch_size].tolist() for i in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        yield from batches

train_loader = DataLoader(train_set, collate_fn=collate_fn, batch_sampler=LengthBatches(
    [len(text) for _, text in train_set.items], config['batch_size']))
"""
STEPS = CELL[CELL.index("        for t in range(steps):\n") : CELL.index("class LAS(nn.Module):")]
FORCED = f"""        if use_teacher:
            # all the inputs are known: embed them at once, and score all states at once
            inputs = self.embedding(torch.cat([prev[:, None], target[:, :-1]], dim=1)).unbind(1)
            for x in inputs:
                state1 = self.rnn1(torch.cat([x, context], dim=1), state1)
                state2 = self.rnn2(state1[0], state2)
                context, weights = self.attention(state2[0], memory, memory_lens)
                outputs.append(torch.cat([state2[0], context], dim=1))
                attentions.append(weights)
            return self.out(torch.stack(outputs, dim=1)), torch.stack(attentions, dim=1)
{STEPS}"""
CHANGES = (
    Change(
        "log-mel features computed once",
        "cache_items",
        edits={
            "            self.items = [line.strip().split('|') for line in f]\n": ""
            "            self.items = [line.strip().split('|') for line in f]\n"
            "        self.pairs = [(torch.FloatTensor(logmel(path)), torch.LongTensor(encode_text(text)))\n"
            "                      for path, text in self.items]\n",
            "        path, text = self.items[idx]\n"
            "        return torch.FloatTensor(logmel(path)), torch.LongTensor(encode_text(text))\n": ""
            "        return self.pairs[idx]\n",
        },
    ),
    Change(
        "keys and mask of the attention once per batch, scores after the steps",
        "other",
        edits={
            STEPS: FORCED.replace("(state2[0], memory, memory_lens)", "(state2[0], memory, keys, mask)"),
            "        state1 = state2 = None\n": ""
            "        state1 = state2 = None\n"
            "        keys = self.attention.key(memory)\n"
            "        mask = torch.arange(memory.size(1))[None, :] >= memory_lens[:, None]\n"
            "        mask = mask.to(memory.device)\n",
            "    def forward(self, state, memory, memory_lens):\n": "    def forward(self, state, memory, k, mask):\n",
            "        k = self.key(memory)\n": "",
            "        mask = torch.arange(memory.size(1), device=memory.device)[None, :]"
            " >= memory_lens[:, None].to(memory.device)\n": "",
        },
    ),
    Change("batches of similar length", "padding", edits={LOADER: BUCKETS.lstrip("\n")}),
    Change("batches of 32", "larger_batch", edits={"'batch_size': 16": "'batch_size': 32"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=config['lr'])": "lr=config['lr'], fused=True)"}),
    Change(
        "two workers", "num_workers", edits={LOADER: LOADER.replace("shuffle=True,", "shuffle=True, num_workers=2,")}
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits, _ = model(feats, feat_lens, texts, tf_rate)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            logits, _ = model(feats, feat_lens, texts, tf_rate)\n"
            "        logits = logits.float()\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="utterances", loss="train_loss", seconds=8)
