"""Timbre of a violin by DDSP: a small decoder drives harmonic oscillators, the loss compares six spectra."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A recording at 16 kHz made of notes with vibrato, with its pitch and loudness at 100 Hz."""
    rng = np.random.default_rng(0)
    seconds, rate, hop = 40, 16000, 160
    notes = np.repeat(rng.choice([196, 220, 247, 294, 330, 392, 440, 494], seconds * 2), 50).astype(np.float64)
    times = np.arange(len(notes)) / 100
    pitch = notes * (1 + 0.006 * np.sin(2 * np.pi * 5.5 * times))
    loudness = 0.5 + 0.4 * np.sin(2 * np.pi * times / 2.3)
    phase = np.cumsum(2 * np.pi * np.repeat(pitch, hop) / rate)
    audio = sum(np.sin(k * phase) / k**1.3 for k in range(1, 16)) * np.repeat(loudness, hop) * 0.2
    audio += 0.003 * rng.normal(size=len(audio))
    np.savez(
        "violin.npz",
        audio=audio.astype(np.float32),
        pitch=pitch.astype(np.float32),
        loudness=np.log(loudness).astype(np.float32),
    )
    return {"NUM_CROPS": scaled(192, scale, 16)}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.fft as fft

SAMPLE_RATE, BLOCK, N_FRAMES, N_HARMONIC, N_BANDS, HIDDEN, BATCH = 16000, 160, 100, 60, 33, 128, 4
SCALES, OVERLAP, LR = [2048, 1024, 512, 256, 128, 64], .75, 1e-3

def random_crops(path, batch):
    f = np.load(path)
    audio, pitch, loudness = f['audio'], f['pitch'], f['loudness']
    mean, std = loudness.mean(), loudness.std()
    while True:
        s, p, l = [], [], []
        for _ in range(batch):
            i = np.random.randint(len(pitch) - N_FRAMES)
            s.append(audio[i * BLOCK:(i + N_FRAMES) * BLOCK])
            p.append(pitch[i:i + N_FRAMES])
            l.append((loudness[i:i + N_FRAMES] - mean) / std)
        yield (torch.from_numpy(np.stack(s)), torch.from_numpy(np.stack(p)).unsqueeze(-1),
               torch.from_numpy(np.stack(l)).unsqueeze(-1))

def mlp(in_size, hidden_size, n_layers):
    net = []
    for i in range(n_layers):
        net += [nn.Linear(in_size if i == 0 else hidden_size, hidden_size), nn.LayerNorm(hidden_size), nn.LeakyReLU()]
    return nn.Sequential(*net)

def scale_function(x):
    return 2 * torch.sigmoid(x) ** np.log(10) + 1e-7

def upsample(signal, factor):
    signal = signal.permute(0, 2, 1)
    signal = nn.functional.interpolate(signal, size=signal.shape[-1] * factor, mode='linear')
    return signal.permute(0, 2, 1)

def remove_above_nyquist(amplitudes, pitch):
    pitches = pitch * torch.arange(1, N_HARMONIC + 1).to(pitch)
    return amplitudes * ((pitches < SAMPLE_RATE / 2).float() + 1e-4)

def harmonic_synth(pitch, amplitudes):
    omega = torch.cumsum(2 * np.pi * pitch / SAMPLE_RATE, 1)
    omegas = omega * torch.arange(1, N_HARMONIC + 1).to(omega)
    return (torch.sin(omegas) * amplitudes).sum(-1)

def amp_to_impulse_response(amp, target_size):
    amp = torch.view_as_complex(torch.stack([amp, torch.zeros_like(amp)], -1))
    amp = fft.irfft(amp)
    filter_size = amp.shape[-1]
    amp = torch.roll(amp, filter_size // 2, -1)
    amp = amp * torch.hann_window(filter_size, dtype=amp.dtype, device=amp.device)
    amp = nn.functional.pad(amp, (0, target_size - filter_size))
    return torch.roll(amp, -filter_size // 2, -1)

def fft_convolve(signal, kernel):
    signal = nn.functional.pad(signal, (0, signal.shape[-1]))
    kernel = nn.functional.pad(kernel, (kernel.shape[-1], 0))
    output = fft.irfft(fft.rfft(signal) * fft.rfft(kernel))
    return output[..., output.shape[-1] // 2:]

def multiscale_fft(signal):
    stfts = []
    for s in SCALES:
        S = torch.stft(signal, s, int(s * (1 - OVERLAP)), s, torch.hann_window(s).to(signal), True,
                       normalized=True, return_complex=True).abs()
        stfts.append(S)
    return stfts

class DDSP(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_mlps = nn.ModuleList([mlp(1, HIDDEN, 3), mlp(1, HIDDEN, 3)])
        self.gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.out_mlp = mlp(HIDDEN + 2, HIDDEN, 3)
        self.proj_harmonic = nn.Linear(HIDDEN, N_HARMONIC + 1)
        self.proj_noise = nn.Linear(HIDDEN, N_BANDS)

    def forward(self, pitch, loudness):
        hidden = torch.cat([self.in_mlps[0](pitch), self.in_mlps[1](loudness)], -1)
        hidden = torch.cat([self.gru(hidden)[0], pitch, loudness], -1)
        hidden = self.out_mlp(hidden)
        param = scale_function(self.proj_harmonic(hidden).float())
        total_amp, amplitudes = param[..., :1], param[..., 1:]
        amplitudes = remove_above_nyquist(amplitudes, pitch)
        amplitudes = amplitudes / amplitudes.sum(-1, keepdim=True) * total_amp
        amplitudes = upsample(amplitudes, BLOCK)
        pitch = upsample(pitch, BLOCK)
        harmonic = harmonic_synth(pitch, amplitudes)

        param = scale_function(self.proj_noise(hidden).float() - 5)
        impulse = amp_to_impulse_response(param, BLOCK)
        noise = torch.rand(impulse.shape[0], impulse.shape[1], BLOCK).to(impulse) * 2 - 1
        noise = fft_convolve(noise, impulse).contiguous()
        return harmonic + noise.reshape(noise.shape[0], -1)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = DDSP().to(device)
opt = torch.optim.Adam(model.parameters(), lr=LR)
dataloader = random_crops('violin.npz', BATCH)

n_crops, mean_loss = 0, 0
for step in range(NUM_CROPS // BATCH):
    s, p, l = next(dataloader)
    s, p, l = s.to(device), p.to(device), l.to(device)
    y = model(p, l)
    ori_stft = multiscale_fft(s)
    rec_stft = multiscale_fft(y)
    loss = 0
    for s_x, s_y in zip(ori_stft, rec_stft):
        lin_loss = (s_x - s_y).abs().mean()
        log_loss = (torch.log(s_x + 1e-7) - torch.log(s_y + 1e-7)).abs().mean()
        loss = loss + lin_loss + log_loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    n_crops += len(s)
    mean_loss += (loss.item() - mean_loss) / (step + 1)
    if step % 10 == 0:
        print(f'step {step}: loss {loss.item():.3f}, mean {mean_loss:.3f}')
"""

CHANGES = (
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    y = model(p, l)\n": "    with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "        y = model(p, l)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=LR)": "lr=LR, fused=True)"}),
    Change(
        "batches of 16",
        "larger_batch",
        edits={"HIDDEN, BATCH = 16000, 160, 100, 60, 33, 128, 4": "HIDDEN, BATCH = 16000, 160, 100, 60, 33, 128, 16"},
    ),
    Change(
        "harmonics by einsum",
        "other",
        edits={
            "    return (torch.sin(omegas) * amplitudes).sum(-1)\n": "    return torch.einsum('bth,bth->bt', "
            "torch.sin(omegas), amplitudes)\n"
        },
    ),
    Change(
        "sum of losses as a tensor, print once",
        "remove_syncs",
        edits={
            "mean_loss += (loss.item() - mean_loss)": "mean_loss += (loss.detach() - mean_loss)",
            "if step % 10 == 0:": "if step == 0:",
        },
    ),
    Change(
        "windows of the STFT once",
        "remove_python",
        edits={
            "def multiscale_fft(signal):": "WINDOWS = {s: torch.hann_window(s) for s in SCALES}\n\n"
            "def multiscale_fft(signal):",
            "torch.hann_window(s).to(signal)": "WINDOWS[s].to(signal)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_crops", seconds=6)
