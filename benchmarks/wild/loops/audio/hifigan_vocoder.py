"""A small HiFi-GAN: mel spectrograms to waveforms with period and scale discriminators, as in the repositories of GAN vocoders."""

import textwrap
from pathlib import Path

import numpy as np
from scipy.io import wavfile
from scipy.signal import lfilter

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

RATE = 16000


def utterance(rng: np.random.Generator) -> np.ndarray:
    """One to two seconds of voiced and noisy stretches through two resonances."""
    pieces, pitch = [], rng.uniform(90, 220)
    for _ in range(rng.integers(6, 11)):
        length = int(rng.uniform(0.12, 0.2) * RATE)
        f0 = pitch * (1 + 0.1 * np.sin(np.linspace(0, rng.uniform(1, 5), length)))
        pulses = np.diff(np.floor(np.cumsum(f0 / RATE)), prepend=0)
        source = pulses if rng.random() < 0.75 else rng.normal(0, 0.1, length)
        for low, high in ((300, 900), (900, 2600)):
            angle = 2 * np.pi * rng.uniform(low, high) / RATE
            source = lfilter([0.1], [1, -2 * 0.97 * np.cos(angle), 0.97**2], source)
        pieces.append(source * np.hanning(length))
    wave = np.concatenate(pieces)
    samples: np.ndarray = wave / np.abs(wave).max() * 0.9 * 32767 + rng.normal(0, 20, len(wave))
    return samples.clip(-32768, 32767).astype(np.int16)


def prepare(scale: float) -> Namespace:
    """Wave files and the file lists training.txt and validation.txt with transcripts nobody reads."""
    rng = np.random.default_rng(0)
    Path("wavs").mkdir()
    for name, count in (("training.txt", scaled(160, scale, 16)), ("validation.txt", scaled(8, scale))):
        lines = []
        for index in range(count):
            stem = f"{name[:2].upper()}{index:04d}"
            wavfile.write(f"wavs/{stem}.wav", RATE, utterance(rng))
            lines.append(f"{stem}|some words are said here, number {index}")
        Path(name).write_text("\n".join(lines) + "\n")
    return {}


CELL = """
import itertools
import os
import random
import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.io.wavfile import read
from torch.nn import Conv1d, Conv2d, ConvTranspose1d, AvgPool1d
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset


class AttrDict(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


h = AttrDict(batch_size=8, learning_rate=0.0002, adam_b1=0.8, adam_b2=0.99, lr_decay=0.999, seed=1234,
             upsample_rates=[8, 8, 2], upsample_kernel_sizes=[16, 16, 4], upsample_initial_channel=64,
             resblock_kernel_sizes=[3, 5], resblock_dilation_sizes=[[1, 2], [2, 6]],
             segment_size=2048, num_mels=40, n_fft=512, hop_size=128, win_size=512, sampling_rate=16000,
             fmin=0, fmax=6000, fmax_for_loss=None, num_workers=2)
a = AttrDict(input_wavs_dir='wavs', input_training_file='training.txt', input_validation_file='validation.txt',
             checkpoint_path='cp_hifigan', training_epochs=3, stdout_interval=5, checkpoint_interval=40,
             summary_interval=10, validation_interval=20)

MAX_WAV_VALUE = 32768.0
LRELU_SLOPE = 0.1
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


# ------------------------------------------------------------------ mel spectrograms
def mel_filters(sr, n_fft, n_mels, fmin, fmax):
    fmax = fmax or sr / 2
    to_mel = lambda f: 2595.0 * np.log10(1.0 + f / 700.0)
    mels = np.linspace(to_mel(fmin), to_mel(fmax), n_mels + 2)
    freqs = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    bins = np.linspace(0, sr / 2, n_fft // 2 + 1)
    lower = (bins[None] - freqs[:-2, None]) / (freqs[1:-1] - freqs[:-2])[:, None]
    upper = (freqs[2:, None] - bins[None]) / (freqs[2:] - freqs[1:-1])[:, None]
    weights = np.maximum(0, np.minimum(lower, upper))
    return weights * (2.0 / (freqs[2:] - freqs[:-2]))[:, None]


mel_basis = {}
hann_window = {}

def mel_spectrogram(y, n_fft, num_mels, sampling_rate, hop_size, win_size, fmin, fmax):
    key = str(fmax) + '_' + str(y.device)
    if key not in mel_basis:
        mel = mel_filters(sampling_rate, n_fft, num_mels, fmin, fmax)
        mel_basis[key] = torch.from_numpy(mel).float().to(y.device)
        hann_window[str(y.device)] = torch.hann_window(win_size).to(y.device)
    pad = (n_fft - hop_size) // 2
    y = F.pad(y.unsqueeze(1), (pad, pad), mode='reflect').squeeze(1)
    spec = torch.stft(y, n_fft, hop_length=hop_size, win_length=win_size, window=hann_window[str(y.device)],
                      center=False, normalized=False, onesided=True, return_complex=True)
    spec = torch.sqrt(spec.real.pow(2) + spec.imag.pow(2) + 1e-9)
    spec = torch.matmul(mel_basis[key], spec)
    return torch.log(torch.clamp(spec, min=1e-5))


def get_dataset_filelist(a):
    lists = []
    for name in (a.input_training_file, a.input_validation_file):
        with open(name, 'r', encoding='utf-8') as fi:
            lists.append([os.path.join(a.input_wavs_dir, x.split('|')[0] + '.wav')
                          for x in fi.read().split('\\n') if len(x) > 0])
    return lists


class MelDataset(Dataset):
    def __init__(self, files, h, split=True, shuffle=True):
        self.audio_files = files
        random.seed(1234)
        if shuffle:
            random.shuffle(self.audio_files)
        self.h = h
        self.split = split

    def load_wav(self, filename):
        sampling_rate, audio = read(filename)
        if sampling_rate != self.h.sampling_rate:
            raise ValueError('{} SR does not match target {} SR'.format(sampling_rate, self.h.sampling_rate))
        audio = audio / MAX_WAV_VALUE
        return audio / np.abs(audio).max() * 0.95

    def mel(self, audio, fmax):
        h = self.h
        return mel_spectrogram(audio, h.n_fft, h.num_mels, h.sampling_rate, h.hop_size, h.win_size, h.fmin, fmax)

    def __getitem__(self, index):
        audio = torch.FloatTensor(self.load_wav(self.audio_files[index])).unsqueeze(0)
        if self.split:
            if audio.size(1) >= self.h.segment_size:
                start = random.randint(0, audio.size(1) - self.h.segment_size)
                audio = audio[:, start:start + self.h.segment_size]
            else:
                audio = F.pad(audio, (0, self.h.segment_size - audio.size(1)), 'constant')
        else:
            audio = audio[:, :audio.size(1) // self.h.hop_size * self.h.hop_size]
        mel = self.mel(audio, self.h.fmax)
        mel_loss = self.mel(audio, self.h.fmax_for_loss)
        return mel.squeeze(), audio.squeeze(0), self.audio_files[index], mel_loss.squeeze()

    def __len__(self):
        return len(self.audio_files)


# ------------------------------------------------------------------ models
def get_padding(kernel_size, dilation=1):
    return (kernel_size * dilation - dilation) // 2

def init_weights(m, mean=0.0, std=0.01):
    if m.__class__.__name__.find('Conv') != -1:
        m.weight.data.normal_(mean, std)


class ResBlock(nn.Module):
    def __init__(self, channels, kernel_size=3, dilation=(1, 3)):
        super().__init__()
        self.convs = nn.ModuleList()
        for d in dilation:
            conv = Conv1d(channels, channels, kernel_size, 1, dilation=d, padding=get_padding(kernel_size, d))
            init_weights(conv)
            self.convs.append(weight_norm(conv))

    def forward(self, x):
        for c in self.convs:
            x = c(F.leaky_relu(x, LRELU_SLOPE)) + x
        return x


class Generator(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.num_kernels = len(h.resblock_kernel_sizes)
        ch = h.upsample_initial_channel
        self.conv_pre = weight_norm(Conv1d(h.num_mels, ch, 7, 1, padding=3))
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for u, k in zip(h.upsample_rates, h.upsample_kernel_sizes):
            up = ConvTranspose1d(ch, ch // 2, k, u, padding=(k - u) // 2)
            init_weights(up)
            self.ups.append(weight_norm(up))
            ch = ch // 2
            for kernel, dilation in zip(h.resblock_kernel_sizes, h.resblock_dilation_sizes):
                self.resblocks.append(ResBlock(ch, kernel, dilation))
        self.conv_post = weight_norm(Conv1d(ch, 1, 7, 1, padding=3))

    def forward(self, x):
        x = self.conv_pre(x)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, LRELU_SLOPE))
            xs = None
            for j in range(self.num_kernels):
                out = self.resblocks[i * self.num_kernels + j](x)
                xs = out if xs is None else xs + out
            x = xs / self.num_kernels
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class DiscriminatorP(nn.Module):
    def __init__(self, period, kernel_size=5, stride=3):
        super().__init__()
        self.period = period
        pad = (get_padding(kernel_size), 0)
        self.convs = nn.ModuleList([
            weight_norm(Conv2d(1, 8, (kernel_size, 1), (stride, 1), padding=pad)),
            weight_norm(Conv2d(8, 32, (kernel_size, 1), (stride, 1), padding=pad)),
            weight_norm(Conv2d(32, 64, (kernel_size, 1), (stride, 1), padding=pad)),
            weight_norm(Conv2d(64, 64, (kernel_size, 1), 1, padding=(2, 0))),
        ])
        self.conv_post = weight_norm(Conv2d(64, 1, (3, 1), 1, padding=(1, 0)))

    def forward(self, x):
        fmap = []
        b, c, t = x.shape
        if t % self.period != 0:
            n_pad = self.period - (t % self.period)
            x = F.pad(x, (0, n_pad), 'reflect')
            t = t + n_pad
        x = x.view(b, c, t // self.period, self.period)
        for layer in self.convs:
            x = F.leaky_relu(layer(x), LRELU_SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class DiscriminatorS(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([
            weight_norm(Conv1d(1, 16, 15, 1, padding=7)),
            weight_norm(Conv1d(16, 32, 41, 4, groups=4, padding=20)),
            weight_norm(Conv1d(32, 64, 41, 4, groups=16, padding=20)),
            weight_norm(Conv1d(64, 64, 5, 1, padding=2)),
        ])
        self.conv_post = weight_norm(Conv1d(64, 1, 3, 1, padding=1))

    def forward(self, x):
        fmap = []
        for layer in self.convs:
            x = F.leaky_relu(layer(x), LRELU_SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class MultiPeriodDiscriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.discriminators = nn.ModuleList([DiscriminatorP(p) for p in (2, 3, 5)])

    def forward(self, y, y_hat):
        y_d_rs, y_d_gs, fmap_rs, fmap_gs = [], [], [], []
        for d in self.discriminators:
            y_d_r, fmap_r = d(y)
            y_d_g, fmap_g = d(y_hat)
            y_d_rs.append(y_d_r)
            fmap_rs.append(fmap_r)
            y_d_gs.append(y_d_g)
            fmap_gs.append(fmap_g)
        return y_d_rs, y_d_gs, fmap_rs, fmap_gs


class MultiScaleDiscriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.discriminators = nn.ModuleList([DiscriminatorS(), DiscriminatorS()])
        self.meanpool = AvgPool1d(4, 2, padding=2)

    def forward(self, y, y_hat):
        y_d_rs, y_d_gs, fmap_rs, fmap_gs = [], [], [], []
        for i, d in enumerate(self.discriminators):
            if i != 0:
                y, y_hat = self.meanpool(y), self.meanpool(y_hat)
            y_d_r, fmap_r = d(y)
            y_d_g, fmap_g = d(y_hat)
            y_d_rs.append(y_d_r)
            fmap_rs.append(fmap_r)
            y_d_gs.append(y_d_g)
            fmap_gs.append(fmap_g)
        return y_d_rs, y_d_gs, fmap_rs, fmap_gs


def feature_loss(fmap_r, fmap_g):
    total = 0
    for dr, dg in zip(fmap_r, fmap_g):
        for rl, gl in zip(dr, dg):
            total += torch.mean(torch.abs(rl - gl))
    return total * 2

def discriminator_loss(real_outputs, generated_outputs):
    total, r_losses, g_losses = 0, [], []
    for dr, dg in zip(real_outputs, generated_outputs):
        r_loss = torch.mean((1 - dr) ** 2)
        g_loss = torch.mean(dg ** 2)
        total += r_loss + g_loss
        r_losses.append(r_loss.item())
        g_losses.append(g_loss.item())
    return total, r_losses, g_losses

def generator_loss(outputs):
    total, losses = 0, []
    for dg in outputs:
        one = torch.mean((1 - dg) ** 2)
        losses.append(one)
        total += one
    return total, losses


# ------------------------------------------------------------------ training
def train(a, h):
    torch.manual_seed(h.seed)
    generator = Generator(h).to(device)
    mpd = MultiPeriodDiscriminator().to(device)
    msd = MultiScaleDiscriminator().to(device)
    os.makedirs(a.checkpoint_path, exist_ok=True)

    optim_g = torch.optim.AdamW(generator.parameters(), h.learning_rate, betas=[h.adam_b1, h.adam_b2])
    optim_d = torch.optim.AdamW(itertools.chain(msd.parameters(), mpd.parameters()), h.learning_rate,
                                betas=[h.adam_b1, h.adam_b2])
    scheduler_g = torch.optim.lr_scheduler.ExponentialLR(optim_g, gamma=h.lr_decay)
    scheduler_d = torch.optim.lr_scheduler.ExponentialLR(optim_d, gamma=h.lr_decay)

    training_filelist, validation_filelist = get_dataset_filelist(a)
    trainset = MelDataset(training_filelist, h)
    train_loader = DataLoader(trainset, num_workers=h.num_workers, shuffle=True, batch_size=h.batch_size,
                              pin_memory=False, drop_last=True)
    validset = MelDataset(validation_filelist, h, split=False, shuffle=False)
    validation_loader = DataLoader(validset, num_workers=1, shuffle=False, batch_size=1)

    steps, segments, log = 0, 0, []
    generator.train()
    mpd.train()
    msd.train()
    for epoch in range(a.training_epochs):
        start = time.time()
        print('Epoch: {}'.format(epoch + 1))
        for i, batch in enumerate(train_loader):
            start_b = time.time()
            x, y, _, y_mel = batch
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            y_mel = y_mel.to(device, non_blocking=True)
            y = y.unsqueeze(1)

            y_g_hat = generator(x)
            y_g_hat_mel = mel_spectrogram(y_g_hat.squeeze(1), h.n_fft, h.num_mels, h.sampling_rate, h.hop_size,
                                          h.win_size, h.fmin, h.fmax_for_loss)

            # Discriminators
            optim_d.zero_grad()
            y_df_hat_r, y_df_hat_g, _, _ = mpd(y, y_g_hat.detach())
            loss_disc_f, _, _ = discriminator_loss(y_df_hat_r, y_df_hat_g)
            y_ds_hat_r, y_ds_hat_g, _, _ = msd(y, y_g_hat.detach())
            loss_disc_s, _, _ = discriminator_loss(y_ds_hat_r, y_ds_hat_g)
            loss_disc_all = loss_disc_s + loss_disc_f
            loss_disc_all.backward()
            optim_d.step()

            # Generator
            optim_g.zero_grad()
            loss_mel = F.l1_loss(y_mel, y_g_hat_mel) * 45
            _, y_df_hat_g, fmap_f_r, fmap_f_g = mpd(y, y_g_hat)
            _, y_ds_hat_g, fmap_s_r, fmap_s_g = msd(y, y_g_hat)
            loss_fm_f = feature_loss(fmap_f_r, fmap_f_g)
            loss_fm_s = feature_loss(fmap_s_r, fmap_s_g)
            loss_gen_f, _ = generator_loss(y_df_hat_g)
            loss_gen_s, _ = generator_loss(y_ds_hat_g)
            loss_gen_all = loss_gen_s + loss_gen_f + loss_fm_s + loss_fm_f + loss_mel
            loss_gen_all.backward()
            optim_g.step()

            segments += len(y)
            if steps % a.stdout_interval == 0:
                mel_error = F.l1_loss(y_mel, y_g_hat_mel.detach()).item()
                print('Steps : {:d}, Gen Loss Total : {:4.3f}, Mel-Spec. Error : {:4.3f}, s/b : {:4.3f}'.format(
                    steps, loss_gen_all.item(), mel_error, time.time() - start_b))
            if steps % a.summary_interval == 0:
                log.append(('training/gen_loss_total', loss_gen_all.item(), steps))
            if steps % a.checkpoint_interval == 0 and steps != 0:
                torch.save({'generator': generator.state_dict()}, f'{a.checkpoint_path}/g_{steps:08d}')
                torch.save({'mpd': mpd.state_dict(), 'msd': msd.state_dict(), 'optim_g': optim_g.state_dict(),
                            'optim_d': optim_d.state_dict(), 'steps': steps, 'epoch': epoch},
                           f'{a.checkpoint_path}/do_{steps:08d}')
            if steps % a.validation_interval == 0:
                generator.eval()
                val_err_tot = 0
                with torch.no_grad():
                    for j, (vx, vy, _, vy_mel) in enumerate(validation_loader):
                        v_hat = generator(vx.to(device))
                        v_hat_mel = mel_spectrogram(v_hat.squeeze(1), h.n_fft, h.num_mels, h.sampling_rate,
                                                    h.hop_size, h.win_size, h.fmin, h.fmax_for_loss)
                        val_err_tot += F.l1_loss(vy_mel.to(device), v_hat_mel).item()
                    log.append(('validation/mel_spec_error', val_err_tot / (j + 1), steps))
                generator.train()
            steps += 1
        scheduler_g.step()
        scheduler_d.step()
        print('Time taken for epoch {} is {} sec'.format(epoch + 1, int(time.time() - start)))
    return generator, loss_gen_all.item(), segments, log


generator, final_loss, segments, log = train(a, h)
"""

MEL_ITEM = """        mel = self.mel(audio, self.h.fmax)
        mel_loss = self.mel(audio, self.h.fmax_for_loss)
        return mel.squeeze(), audio.squeeze(0), self.audio_files[index], mel_loss.squeeze()
"""
MEL_BATCH = """        if self.split:
            return audio.squeeze(0)
        mel = self.mel(audio, self.h.fmax)
        mel_loss = self.mel(audio, self.h.fmax_for_loss)
        return mel.squeeze(), audio.squeeze(0), self.audio_files[index], mel_loss.squeeze()
"""
PERIOD_LOOP = """            y_d_r, fmap_r = d(y)
            y_d_g, fmap_g = d(y_hat)
            y_d_rs.append(y_d_r)
            fmap_rs.append(fmap_r)
            y_d_gs.append(y_d_g)
            fmap_gs.append(fmap_g)
        return y_d_rs, y_d_gs, fmap_rs, fmap_gs


class MultiScale"""
SCALE_LOOP = PERIOD_LOOP.replace("\n\n\nclass MultiScale", "\n\n\ndef feature_loss")
FREEZE = """            # Generator
            for p in itertools.chain(mpd.parameters(), msd.parameters()):
                p.requires_grad_(False)
"""
UNFREEZE = """            optim_g.step()
            for p in itertools.chain(mpd.parameters(), msd.parameters()):
                p.requires_grad_(True)
"""
GENERATED = "            y_g_hat = generator(x)\n"
JUDGED = CELL[CELL.index("            y_df_hat_r, y_df_hat_g") : CELL.index("            loss_disc_all.backward()")]
FOOLED = CELL[CELL.index("            _, y_df_hat_g, fmap_f_r") : CELL.index("            loss_gen_all.backward()")]


def joined(loop: str) -> str:
    """The body of a discriminators' loop with one pass over the real and the generated waves."""
    start, end = loop.index("            y_d_r,"), loop.index("            y_d_rs")
    return (
        loop[:start]
        + "            both, fmaps = d(torch.cat([y, y_hat]))\n"
        + "            y_d_r, y_d_g = both.chunk(2)\n"
        + "            fmap_r, fmap_g = zip(*(f.chunk(2) for f in fmaps))\n"
        + loop[end:]
    )


CHANGES = (
    Change(
        "mels of whole batches, wave files read once",
        "batch_whole",
        edits={
            MEL_ITEM: MEL_BATCH,
            "    def load_wav(self, filename):\n": "    @functools.lru_cache(maxsize=None)\n    def load_wav(self, filename):\n",
            "import itertools\n": "import functools\nimport itertools\n",
            "num_workers=2)": "num_workers=0)",
            "            x, y, _, y_mel = batch\n": ""
            "            x, y, y_mel = trainset.mel(batch, h.fmax), batch, trainset.mel(batch, h.fmax_for_loss)\n",
        },
    ),
    Change(
        "no gradients of the discriminators in the generator's step",
        "no_grad",
        edits={"            # Generator\n": FREEZE, "            optim_g.step()\n": UNFREEZE},
    ),
    Change(
        "real and generated waves in one pass",
        "other",
        edits={PERIOD_LOOP: joined(PERIOD_LOOP), SCALE_LOOP: joined(SCALE_LOOP)},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            GENERATED: "            autocast = torch.autocast(device.type, dtype=torch.bfloat16)\n"
            "            with autocast:\n"
            "                y_g_hat = generator(x)\n"
            "            y_g_hat = y_g_hat.float()\n",
            JUDGED: "            with autocast:\n" + textwrap.indent(JUDGED, "    "),
            FOOLED: "            with autocast:\n" + textwrap.indent(FOOLED, "    "),
        },
    ),
    Change("batches of 16", "larger_batch", edits={"batch_size=8": "batch_size=16"}),
    Change("no workers", "num_workers", edits={"num_workers=2)": "num_workers=0)"}),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={
            "h.learning_rate, betas=[h.adam_b1, h.adam_b2])\n    optim_d": ""
            "h.learning_rate, betas=[h.adam_b1, h.adam_b2],\n                                fused=True)\n    optim_d",
            "                                betas=[h.adam_b1, h.adam_b2])": ""
            "                                betas=[h.adam_b1, h.adam_b2], fused=True)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="segments", loss="final_loss", seconds=7)
