"""Calls for sequences that grow: what counts as one, and what shows that earlier positions are computed again."""

from __future__ import annotations

import copy
import sys
import threading
import time
import types

import numpy as np
import pytest
import torch
from torch import nn

import gpulab
from gpulab.capture.hooks.evaluations.evaluation_calls import watched_sequences
from gpulab.capture.hooks.evaluations.growing_inputs import GrowingCalls
from gpulab.capture.hooks.evaluations.sequence_calls import SequenceCalls
from gpulab.capture.protection.guard import Guard

MOST_S = 30.0  # of a loop that waits for the sampler's thread


class Causal(nn.Module):
    """Each output depends on the positions before it; `sees_all`: on all of them."""

    def __init__(self, *, sees_all=False, last_only=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.sees_all, self.last_only = sees_all, last_only

    def forward(self, tokens, mask=None):
        hidden = self.embed(tokens)
        hidden = hidden + hidden.mean(1, keepdim=True) if self.sees_all else hidden.cumsum(1)
        return self.head(hidden[:, -1:] if self.last_only else hidden), None


class Decoder(nn.Module):
    """Of a translation: it gets the source, too. The positions are the first dimension."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(len(target))
        return self.layer(target, source, tgt_mask=mask)


def noted(module, inputs):
    """Call a module for these arguments, as a watched thread does; return what was counted."""
    calls = SequenceCalls()
    module.eval()
    with torch.no_grad():
        for arguments, options in inputs:
            call = calls.before(module, arguments, options)
            output = module(*arguments, **options)
            if call is not None:
                calls.after(call, output)
    return next(iter(calls.modules.values()), None)


def prefixes(*, count=12):
    tokens = torch.randint(50, (3, 40))
    return [((tokens[:, : 5 + length],), {}) for length in range(count)]


def test_prefixes_of_a_sequence_are_counted_with_their_lengths():
    calls = noted(Causal(), prefixes())
    assert calls.positions == list(range(6, 17))
    assert len(calls.call_ns) == 11
    assert (calls.equal, calls.unequal) == (10, 0)


def test_outputs_that_depend_on_later_positions_are_not_those_of_the_call_before():
    calls = noted(Causal(sees_all=True), prefixes())
    assert calls.equal == 0
    assert calls.unequal == 10
    assert calls.has_equal_outputs is False


def test_an_output_of_the_last_position_alone_says_nothing():
    assert noted(Causal(last_only=True), prefixes()).has_equal_outputs is None


def test_a_mask_may_grow_with_the_tokens():
    inputs = [((tokens,), {"mask": torch.ones_like(tokens)}) for (tokens,), _ in prefixes()]
    assert len(noted(Causal(), inputs).positions) == 11


def test_a_mask_that_grows_alone_belongs_to_a_cache():
    inputs = [((tokens[:, -1:],), {"mask": torch.ones_like(tokens)}) for (tokens,), _ in prefixes()]
    assert noted(Causal(), inputs) is None


class Cached(nn.Module):
    """Gets one token, and the states of the earlier ones."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, token, states):
        return self.layer(torch.cat([states, token], 1))


def test_a_cache_that_grows_is_no_sequence():
    states = torch.randn(3, 40, 16)
    assert noted(Cached(), [((states[:, -1:], states[:, :length]), {}) for length in range(5, 20)]) is None


class Opaque(Cached):
    """Gets its cache in an object."""

    def forward(self, tokens, cache):
        return self.layer(tokens)


def test_an_object_may_be_a_cache():
    states = torch.randn(3, 40, 16)
    assert noted(Opaque(), [((states[:, :length], {"keys": states}), {}) for length in range(5, 20)]) is None


class Classifier(Causal):
    """One output for a whole sequence."""

    def forward(self, tokens):
        return super().forward(tokens)[0].mean(1)


class FeatureClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, features):
        return self.layer(features).mean(1)


def test_samples_sorted_by_length_are_no_sequence():
    tokens = [torch.randint(50, (3, length)) for length in range(5, 30)]
    assert noted(Classifier(), [((each,), {}) for each in tokens]) is None
    features = [torch.randn(3, length, 16) for length in range(5, 30)]
    assert noted(FeatureClassifier(), [((each,), {}) for each in features]) is None


def test_values_that_cannot_be_read_need_many_calls_in_a_row():
    """As on a GPU; here they are of a type that is not read."""
    calls = noted(Causal(), [((tokens.int(),), {}) for (tokens,), _ in prefixes(count=20)])
    assert calls.positions == list(range(14, 25))
    lengths = [length for length in range(5, 20) for _ in range(2)]
    assert noted(Causal(), [((torch.ones(2, length).int(),), {}) for length in lengths]) is None


def test_positions_may_be_the_first_dimension():
    source, target = torch.randn(7, 3, 16), torch.randn(20, 3, 16)
    calls = noted(Decoder(), [((source, target[:length]), {}) for length in range(2, 14)])
    assert calls.positions == list(range(3, 14))
    assert calls.has_equal_outputs


def test_a_batch_that_grows_is_no_sequence():
    rows = torch.randn(40, 16)
    assert noted(nn.Linear(16, 4), [((rows[:size],), {}) for size in range(10, 30)]) is None


def test_a_window_that_slides_is_counted_apart():
    tokens = torch.arange(60)[None].remainder(50)
    calls = noted(Causal(), [((tokens[:, start : start + 16],), {}) for start in range(10)])
    assert (len(calls.positions), calls.sliding) == (0, 9)
    assert calls.sliding_ns > 0


@pytest.mark.parametrize("change", [0, 2, -1])
def test_other_changes_of_the_length_are_no_growth(change):
    tokens = torch.randint(50, (3, 60))
    assert noted(Causal(), [((tokens[:, : 30 + change * step],), {}) for step in range(10)]) is None


def test_calls_that_train_and_inner_calls_do_not_count():
    calls, module = SequenceCalls(), Causal()
    assert calls.before(module, (torch.ones(2, 5, dtype=torch.int64),), {}) is None
    module.eval()
    outer = calls.before(module, (torch.ones(2, 5, dtype=torch.int64),), {})
    assert outer is not None
    assert calls.before(module.head, (torch.ones(2, 16),), {}) is None
    calls.after(outer, None)
    assert calls.before(module.head, (torch.ones(2, 16),), {}) is not None


def timed(time_of, lengths):
    return GrowingCalls(lambda: None, None, list(lengths), [round(time_of(length)) for length in lengths])


@pytest.mark.parametrize("slope", [0.0, 1e4, 1e6])
def test_the_time_per_position_is_that_of_a_straight_line(slope):
    low, high = timed(lambda length: 2e6 + slope * length, range(10, 100)).position_range_ns()
    assert low <= slope + 1 <= high + 2
    assert high - low <= 2


def test_a_few_disturbed_calls_change_little():
    rng = np.random.default_rng(0)
    noise = {length: 1e9 * (rng.random() < 0.1) for length in range(10, 130)}
    low, high = timed(lambda length: 1e6 + 1e5 * length + noise[length], range(10, 130)).position_range_ns()
    assert 0.5e5 < low < 1.1e5
    assert 0.9e5 < high < 2e5


def test_noise_as_large_as_the_difference_leaves_the_time_per_position_open():
    rng = np.random.default_rng(1)
    low, high = timed(lambda length: rng.uniform(1e6, 9e6), range(50, 62)).position_range_ns()
    assert low == 0
    assert high > 0


def test_a_copy_keeps_its_calls_while_others_are_added():
    calls = timed(lambda length: length, range(5))
    copied = copy.copy(calls)
    calls.positions.append(9)
    assert copied.positions == list(range(5))
    both = copied + copied
    assert len(both.positions) == len(both.call_ns) == 10


def recorded(generate):
    """Generate until the sampler's thread has watched a part of it, in a thread: a test evaluates, by its name."""
    runs = []

    def work():
        with gpulab.profile("generated", level="sensors") as session:
            parts = session._marks.modules._other_sequences
            ends = time.monotonic() + MOST_S
            while time.monotonic() < ends and not any(window.growing for window in parts.windows):
                generate()
        runs.append(session.run)

    original = nn.Module.__call__
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert nn.Module.__call__ is original
    return runs[0]


def test_a_program_that_only_generates_is_watched():
    model = Causal().eval()

    def generate():
        tokens = torch.randint(50, (2, 4))
        with torch.inference_mode():
            for _ in range(60):
                tokens = torch.cat([tokens, model(tokens)[0][:, -1:].argmax(-1)], 1)

    (growing,) = recorded(generate).growing_inputs
    assert growing.kind == "Causal"
    assert growing.location.startswith("generate (")
    assert growing.has_equal_outputs
    assert 4 < growing.least_positions < growing.most_positions <= 63
    assert 0 < growing.samples <= growing.run_samples


def test_generated_tokens_are_the_same_while_watched():
    model = Causal().eval()

    def generate():
        tokens = torch.arange(4)[None]
        with torch.no_grad():
            for _ in range(40):
                tokens = torch.cat([tokens, model(tokens)[0][:, -1:].argmax(-1)], 1)
        results.append(tokens)

    results = []
    generate()
    recorded(generate)
    assert all(torch.equal(tokens, results[0]) for tokens in results)


def test_nothing_is_watched_while_another_thread_imports_the_compiler(monkeypatch):
    module = types.ModuleType("torch._dynamo")
    module.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch._dynamo", module)
    original = nn.Module.__call__
    parts = watched_sequences(threading.get_ident(), Guard())
    parts.sampled(True)
    assert not parts.is_watching
    assert nn.Module.__call__ is original


def test_watching_ends_where_the_compiler_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    original, model = nn.Module.__call__, Causal().eval()
    parts = watched_sequences(threading.get_ident(), Guard())
    parts.sampled(True)
    assert nn.Module.__call__ is not original
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys)
    model(torch.ones(1, 3, dtype=torch.int64))
    assert nn.Module.__call__ is original
    parts.stop()
