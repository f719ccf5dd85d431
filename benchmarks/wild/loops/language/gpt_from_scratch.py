"""A small GPT trained on one text file by a sliding-window Dataset, in the manner of a popular book on language models from scratch."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, mask_dropout, scaled


def prepare(scale: float) -> Namespace:
    """A short story of synthetic words with commas and full stops."""
    rng = np.random.default_rng(0)
    syllables = np.array(["ver", "dict", "a", "gis", "burn", "the", "rick", "ham", "o", "lin", "ett", "sto"])
    words = np.array(["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(2000)])
    weights = 1 / np.arange(3, len(words) + 3)
    successors = rng.integers(0, len(words), (len(words), 4))
    word, text = 0, []
    for _ in range(scaled(12_000, scale, 3000)):
        fresh = rng.random() < 0.5
        word = int(rng.choice(len(words), p=weights / weights.sum()) if fresh else successors[word, rng.integers(4)])
        text.append(str(words[word]) + rng.choice(["", ",", "."], p=[0.86, 0.08, 0.06]))
    Path("the-verdict.txt").write_text(" ".join(text))
    return {}


CELL = """
import re
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

with open('the-verdict.txt', 'r', encoding='utf-8') as f:
    raw_text = f.read()

class SimpleTokenizer:
    def __init__(self, vocab):
        self.str_to_int = vocab
        self.int_to_str = {i: s for s, i in vocab.items()}

    def encode(self, text):
        preprocessed = re.split(r'([,.:;?_!"()\\']|--|\\s)', text)
        preprocessed = [item.strip() for item in preprocessed if item.strip()]
        preprocessed = [item if item in self.str_to_int else '<|unk|>' for item in preprocessed]
        return [self.str_to_int[s] for s in preprocessed]

    def decode(self, ids):
        text = ' '.join([self.int_to_str[i] for i in ids])
        return re.sub(r'\\s+([,.:;?!"()\\'])', r'\\1', text)

all_words = sorted(set(item.strip() for item in re.split(r'([,.:;?_!"()\\']|--|\\s)', raw_text) if item.strip()))
all_words.extend(['<|endoftext|>', '<|unk|>'])
tokenizer = SimpleTokenizer({token: i for i, token in enumerate(all_words)})

GPT_CONFIG = {
    'vocab_size': len(all_words),
    'context_length': 256,
    'emb_dim': 192,
    'n_heads': 6,
    'n_layers': 4,
    'drop_rate': 0.1,
    'qkv_bias': False
}

class GPTDataset(Dataset):
    def __init__(self, txt, tokenizer, max_length, stride):
        self.input_ids = []
        self.target_ids = []
        token_ids = tokenizer.encode(txt)
        for i in range(0, len(token_ids) - max_length, stride):
            self.input_ids.append(torch.tensor(token_ids[i:i + max_length]))
            self.target_ids.append(torch.tensor(token_ids[i + 1:i + max_length + 1]))

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, idx):
        return self.input_ids[idx], self.target_ids[idx]

def create_dataloader(txt, batch_size=2, max_length=256, stride=128, shuffle=True, drop_last=True, num_workers=0):
    dataset = GPTDataset(txt, tokenizer, max_length, stride)
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, num_workers=num_workers)

class LayerNorm(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        norm_x = (x - mean) / torch.sqrt(var + self.eps)
        return self.scale * norm_x + self.shift

class GELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(
            torch.sqrt(torch.tensor(2.0 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))))

class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer('mask', torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)

class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.att = MultiHeadAttention(cfg['emb_dim'], cfg['emb_dim'], cfg['context_length'], cfg['drop_rate'],
                                      cfg['n_heads'], cfg['qkv_bias'])
        self.ff = nn.Sequential(nn.Linear(cfg['emb_dim'], 4 * cfg['emb_dim']), GELU(),
                                nn.Linear(4 * cfg['emb_dim'], cfg['emb_dim']))
        self.norm1 = LayerNorm(cfg['emb_dim'])
        self.norm2 = LayerNorm(cfg['emb_dim'])
        self.drop_shortcut = nn.Dropout(cfg['drop_rate'])

    def forward(self, x):
        x = x + self.drop_shortcut(self.att(self.norm1(x)))
        return x + self.drop_shortcut(self.ff(self.norm2(x)))

class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg['vocab_size'], cfg['emb_dim'])
        self.pos_emb = nn.Embedding(cfg['context_length'], cfg['emb_dim'])
        self.drop_emb = nn.Dropout(cfg['drop_rate'])
        self.trf_blocks = nn.Sequential(*[TransformerBlock(cfg) for _ in range(cfg['n_layers'])])
        self.final_norm = LayerNorm(cfg['emb_dim'])
        self.out_head = nn.Linear(cfg['emb_dim'], cfg['vocab_size'], bias=False)

    def forward(self, in_idx):
        batch_size, seq_len = in_idx.shape
        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(seq_len, device=in_idx.device))
        x = self.trf_blocks(self.drop_emb(x))
        return self.out_head(self.final_norm(x))

def generate_text_simple(model, idx, max_new_tokens, context_size):
    for _ in range(max_new_tokens):
        idx_cond = idx[:, -context_size:]
        with torch.no_grad():
            logits = model(idx_cond)
        idx_next = torch.argmax(logits[:, -1, :], dim=-1, keepdim=True)
        idx = torch.cat((idx, idx_next), dim=1)
    return idx

def calc_loss_batch(input_batch, target_batch, model, device):
    input_batch, target_batch = input_batch.to(device), target_batch.to(device)
    logits = model(input_batch)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target_batch.flatten())

def calc_loss_loader(data_loader, model, device, num_batches=None):
    total_loss = 0.
    num_batches = len(data_loader) if num_batches is None else min(num_batches, len(data_loader))
    for i, (input_batch, target_batch) in enumerate(data_loader):
        if i < num_batches:
            total_loss += calc_loss_batch(input_batch, target_batch, model, device).item()
        else:
            break
    return total_loss / num_batches

def evaluate_model(model, train_loader, val_loader, device, eval_iter):
    model.eval()
    with torch.no_grad():
        train_loss = calc_loss_loader(train_loader, model, device, num_batches=eval_iter)
        val_loss = calc_loss_loader(val_loader, model, device, num_batches=eval_iter)
    model.train()
    return train_loss, val_loss

def generate_and_print_sample(model, tokenizer, device, start_context):
    model.eval()
    encoded = torch.tensor(tokenizer.encode(start_context)).unsqueeze(0).to(device)
    token_ids = generate_text_simple(model, encoded, max_new_tokens=50, context_size=model.pos_emb.weight.shape[0])
    print(tokenizer.decode(token_ids.squeeze(0).tolist()).replace('\\n', ' '))
    model.train()

def train_model_simple(model, train_loader, val_loader, optimizer, device, num_epochs, eval_freq, eval_iter,
                       start_context, tokenizer):
    train_losses, val_losses, track_tokens_seen = [], [], []
    tokens_seen, global_step = 0, -1
    for epoch in range(num_epochs):
        model.train()
        for input_batch, target_batch in train_loader:
            optimizer.zero_grad()
            loss = calc_loss_batch(input_batch, target_batch, model, device)
            loss.backward()
            optimizer.step()
            tokens_seen += input_batch.numel()
            global_step += 1
            if global_step % eval_freq == 0:
                train_loss, val_loss = evaluate_model(model, train_loader, val_loader, device, eval_iter)
                train_losses.append(train_loss)
                val_losses.append(val_loss)
                track_tokens_seen.append(tokens_seen)
                print(f'Ep {epoch + 1} (Step {global_step:06d}): Train loss {train_loss:.3f}, Val loss {val_loss:.3f}')
        generate_and_print_sample(model, tokenizer, device, start_context)
    return train_losses, val_losses, tokens_seen

torch.manual_seed(123)
split_idx = int(0.9 * len(raw_text))
train_loader = create_dataloader(raw_text[:split_idx], batch_size=2, max_length=GPT_CONFIG['context_length'],
                                 stride=GPT_CONFIG['context_length'], drop_last=False)
val_loader = create_dataloader(raw_text[split_idx:], batch_size=2, max_length=GPT_CONFIG['context_length'],
                               stride=GPT_CONFIG['context_length'], shuffle=False, drop_last=False)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = GPTModel(GPT_CONFIG).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.0004, weight_decay=0.1)
train_losses, val_losses, tokens_seen = train_model_simple(
    model, train_loader, val_loader, optimizer, device, num_epochs=2, eval_freq=5, eval_iter=5,
    start_context=raw_text[:30], tokenizer=tokenizer)
"""

ATTENTION = CELL[
    CELL.index("        attn_scores = queries @") : CELL.index("        context_vec = context_vec.contiguous()")
]
NORM = CELL[CELL.index("        mean = x.mean(dim=-1") : CELL.index("class GELU")]
GELU = CELL[CELL.index("        return 0.5 * x * (1 + torch.tanh(") : CELL.index("class MultiHeadAttention")]

CHANGES = (
    mask_dropout("model = GPTModel(GPT_CONFIG).to(device)\n"),
    Change(
        "evaluation every 20 steps",
        "eval_less_often",
        edits={"eval_freq=5, eval_iter=5,": "eval_freq=20, eval_iter=5,"},
    ),
    Change(
        "scaled_dot_product_attention",
        "sdpa",
        edits={
            ATTENTION: "        context_vec = nn.functional.scaled_dot_product_attention(\n"
            "            queries, keys, values, dropout_p=self.dropout.p if self.training else 0.0, is_causal=True)\n"
            "        context_vec = context_vec.transpose(1, 2)\n"
        },
    ),
    Change(
        "layer norm and GELU of PyTorch",
        "other",
        edits={
            NORM: "        return nn.functional.layer_norm(x, x.shape[-1:], self.scale, self.shift, self.eps)\n\n",
            GELU: "        return nn.functional.gelu(x, approximate='tanh')\n\n",
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.1)": "weight_decay=0.1, fused=True)"}),
    Change(
        "batches of 4",
        "larger_batch",
        edits={
            "train_loader = create_dataloader(raw_text[:split_idx], batch_size=2": ""
            "train_loader = create_dataloader(raw_text[:split_idx], batch_size=4"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    logits = model(input_batch)\n    return torch.nn.functional.cross_entropy(": ""
            "    with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "        logits = model(input_batch)\n"
            "    return torch.nn.functional.cross_entropy("
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="tokens_seen", loss="val_losses[-1]", seconds=8)
