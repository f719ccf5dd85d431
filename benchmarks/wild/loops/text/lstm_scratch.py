"""A character LSTM of tensors without modules, one-hot inputs and SGD by hand, as in a well-known textbook."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A text of lower-case words, as after the cleaning of The Time Machine."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))
    weights = 1 / (np.arange(26) + 2.0)
    words = ["".join(rng.choice(letters, rng.integers(2, 9), p=weights / weights.sum())) for _ in range(600)]
    length = scaled(240, scale, 8) * 32 * 35 + 70
    text = " ".join(rng.choice(words, length // 5))
    return {"raw_text": text[:length]}


CELL = """
import math
import random
import time
import torch
from torch.nn import functional as F

class Vocab:
    def __init__(self, tokens):
        self.idx_to_token = ['<unk>'] + sorted(set(tokens))
        self.token_to_idx = {token: idx for idx, token in enumerate(self.idx_to_token)}

    def __len__(self):
        return len(self.idx_to_token)

    def __getitem__(self, tokens):
        if not isinstance(tokens, (list, tuple)):
            return self.token_to_idx.get(tokens, 0)
        return [self.__getitem__(token) for token in tokens]

vocab = Vocab(raw_text)
corpus = vocab[list(raw_text)]

def seq_data_iter_random(corpus, batch_size, num_steps):
    corpus = corpus[random.randint(0, num_steps - 1):]
    num_subseqs = (len(corpus) - 1) // num_steps
    initial_indices = list(range(0, num_subseqs * num_steps, num_steps))
    random.shuffle(initial_indices)

    def data(pos):
        return corpus[pos: pos + num_steps]

    num_batches = num_subseqs // batch_size
    for i in range(0, batch_size * num_batches, batch_size):
        initial_indices_per_batch = initial_indices[i: i + batch_size]
        X = [data(j) for j in initial_indices_per_batch]
        Y = [data(j + 1) for j in initial_indices_per_batch]
        yield torch.tensor(X), torch.tensor(Y)

def get_lstm_params(vocab_size, num_hiddens, device):
    num_inputs = num_outputs = vocab_size

    def normal(shape):
        return torch.randn(size=shape, device=device) * 0.01

    def three():
        return (normal((num_inputs, num_hiddens)),
                normal((num_hiddens, num_hiddens)),
                torch.zeros(num_hiddens, device=device))

    W_xi, W_hi, b_i = three()  # Input gate parameters
    W_xf, W_hf, b_f = three()  # Forget gate parameters
    W_xo, W_ho, b_o = three()  # Output gate parameters
    W_xc, W_hc, b_c = three()  # Candidate memory cell parameters
    # Output layer parameters
    W_hq = normal((num_hiddens, num_outputs))
    b_q = torch.zeros(num_outputs, device=device)
    params = [W_xi, W_hi, b_i, W_xf, W_hf, b_f, W_xo, W_ho, b_o, W_xc, W_hc, b_c, W_hq, b_q]
    for param in params:
        param.requires_grad_(True)
    return params

def init_lstm_state(batch_size, num_hiddens, device):
    return (torch.zeros((batch_size, num_hiddens), device=device),
            torch.zeros((batch_size, num_hiddens), device=device))

def lstm(inputs, state, params):
    [W_xi, W_hi, b_i, W_xf, W_hf, b_f, W_xo, W_ho, b_o, W_xc, W_hc, b_c, W_hq, b_q] = params
    (H, C) = state
    outputs = []
    for X in inputs:
        I = torch.sigmoid((X @ W_xi) + (H @ W_hi) + b_i)
        Fg = torch.sigmoid((X @ W_xf) + (H @ W_hf) + b_f)
        O = torch.sigmoid((X @ W_xo) + (H @ W_ho) + b_o)
        C_tilda = torch.tanh((X @ W_xc) + (H @ W_hc) + b_c)
        C = Fg * C + I * C_tilda
        H = O * torch.tanh(C)
        Y = (H @ W_hq) + b_q
        outputs.append(Y)
    return torch.cat(outputs, dim=0), (H, C)

class RNNModelScratch:
    def __init__(self, vocab_size, num_hiddens, device, get_params, init_state, forward_fn):
        self.vocab_size, self.num_hiddens = vocab_size, num_hiddens
        self.params = get_params(vocab_size, num_hiddens, device)
        self.init_state, self.forward_fn = init_state, forward_fn

    def __call__(self, X, state):
        X = F.one_hot(X.T, self.vocab_size).type(torch.float32)
        return self.forward_fn(X, state, self.params)

    def begin_state(self, batch_size, device):
        return self.init_state(batch_size, self.num_hiddens, device)

def predict(prefix, num_preds, net, vocab, device):
    state = net.begin_state(batch_size=1, device=device)
    outputs = [vocab[prefix[0]]]
    get_input = lambda: torch.tensor([outputs[-1]], device=device).reshape((1, 1))
    for y in prefix[1:]:
        _, state = net(get_input(), state)
        outputs.append(vocab[y])
    for _ in range(num_preds):
        y, state = net(get_input(), state)
        outputs.append(int(y.argmax(dim=1).reshape(1)))
    return ''.join([vocab.idx_to_token[i] for i in outputs])

def grad_clipping(net, theta):
    norm = torch.sqrt(sum(torch.sum((p.grad ** 2)) for p in net.params))
    if norm > theta:
        for param in net.params:
            param.grad[:] *= theta / norm

def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()

batch_size, num_steps, num_hiddens, lr, num_epochs = 32, 35, 256, 1, 1
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
net = RNNModelScratch(len(vocab), num_hiddens, device, get_lstm_params, init_lstm_state, lstm)
n_tokens = 0

for epoch in range(num_epochs):
    start, total, count = time.time(), 0.0, 0
    for X, Y in seq_data_iter_random(corpus, batch_size, num_steps):
        state = net.begin_state(batch_size=X.shape[0], device=device)
        y = Y.T.reshape(-1)
        X, y = X.to(device), y.to(device)
        y_hat, state = net(X, state)
        loss = F.cross_entropy(y_hat, y.long()).mean()
        loss.backward()
        grad_clipping(net, 1)
        sgd(net.params, lr, batch_size=1)
        total += loss.item() * y.numel()
        count += y.numel()
        n_tokens += y.numel()
    print(f'epoch {epoch + 1} perplexity {math.exp(total / count):.1f}, {count / (time.time() - start):.1f} tokens/sec')
    print(predict('time traveller', 50, net, vocab, device))
"""

_STEPS = CELL[
    CELL.index("    outputs = []\n    for X in inputs:\n") : CELL.index("    return torch.cat(outputs, dim=0), (H, C)")
]
_ONE_PRODUCT = """    W_x = torch.cat([W_xi, W_xf, W_xo, W_xc], 1)
    W_h = torch.cat([W_hi, W_hf, W_ho, W_hc], 1)
    b = torch.cat([b_i, b_f, b_o, b_c])
    outputs = []
    for G in inputs @ W_x + b:
        I, Fg, O, C_tilda = torch.addmm(G, H, W_h).chunk(4, 1)
        C = torch.sigmoid(Fg) * C + torch.sigmoid(I) * torch.tanh(C_tilda)
        H = torch.sigmoid(O) * torch.tanh(C)
        outputs.append(H)
    outputs = [torch.cat(outputs, dim=0) @ W_hq + b_q]
"""
_LIBRARY = """    weights = [torch.cat([W_xi, W_xf, W_xc, W_xo], 1).T.contiguous(), torch.cat([W_hi, W_hf, W_hc, W_ho], 1).T.contiguous(),
               torch.cat([b_i, b_f, b_c, b_o]), torch.zeros(4 * H.shape[1], device=H.device)]
    outputs, H, C = torch.lstm(inputs, (H[None], C[None]), weights, True, 1, 0.0, True, False, False)
    H, C = H[0], C[0]
    outputs = [outputs.flatten(0, 1) @ W_hq + b_q]
"""

CHANGES = (
    Change("one product for the four gates, one for all inputs", "other", edits={_STEPS: _ONE_PRODUCT}),
    Change("the LSTM of the library", "other", edits={_STEPS: _LIBRARY}),
    Change(
        "output layer for all steps at once",
        "remove_python",
        edits={
            "        Y = (H @ W_hq) + b_q\n        outputs.append(Y)\n": "        outputs.append(H)\n",
            "    return torch.cat(outputs, dim=0), (H, C)": "    return torch.cat(outputs, dim=0) @ W_hq + b_q, (H, C)",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        y_hat, state = net(X, state)\n        loss = ": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            y_hat, state = net(X, state)\n        y_hat = y_hat.float()\n        loss = "
        },
    ),
    Change(
        "clip without waiting for the norm",
        "clip_grad",
        edits={"        grad_clipping(net, 1)\n": "        torch.nn.utils.clip_grad_norm_(net.params, 1)\n"},
    ),
    Change("one thread", "threads", edits={"n_tokens = 0\n": "n_tokens = 0\ntorch.set_num_threads(1)\n"}),
    Change("batches of 128", "larger_batch", edits={"lr, num_epochs = 32,": "lr, num_epochs = 128,"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_tokens", seconds=9)
