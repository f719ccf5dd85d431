"""Parts of evaluations are watched: how many rows their calls have, and what they compute again."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest
import torch
from torch import nn

import gpulab
from gpulab.capture.hooks.evaluations.call_sizes import CalledModule, CallSizes, fastest
from gpulab.capture.hooks.evaluations.evaluation_calls import watched_evaluations
from gpulab.capture.hooks.models.module_watch import ModuleWatch
from gpulab.capture.hooks.models.watched_step import WatchedStep
from gpulab.capture.protection.guard import Guard

ROWS = 16
MOST_S = 30.0  # of an evaluation


class Translator(nn.Module):
    """Encodes the source again for each token."""

    def __init__(self):
        super().__init__()
        self.embed, self.encoder = nn.Linear(8, 64), nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.decoder = nn.Linear(64, 8)

    def forward(self, source, target):
        memory = self.encoder(self.embed(source) + 1.0)  # another tensor with the same bytes
        return self.decoder(memory.mean(1, keepdim=True) + self.embed(target))


def recorded(evaluate, *, net=None, steps=8):
    """Train for some steps, evaluate, and train for some more."""
    net = net or Translator()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def train():
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(ROWS, 20, 8), torch.randn(ROWS, 5, 8)).square().mean().backward()
            optimizer.step()

    original = nn.Module.__call__
    with gpulab.profile("evaluated", level="sensors") as session:
        train()
        ends = time.monotonic() + MOST_S
        evaluate(net, lambda: time.monotonic() < ends and not has_window(session))
        train()
    assert nn.Module.__call__ is original
    assert not [gap for gap in session.run.recording.left_out if "something again" in gap.what]
    return session.run


def has_window(session):
    """Whether the sampler's thread, which a busy machine delays, has seen a part of an evaluation."""
    evaluations = session._marks.modules._evaluations
    return bool(evaluations.windows or evaluations._window)


def translate(net, goes_on, rows=1):
    """Evaluate until a part of it was watched: new sources, a few tokens for each."""
    net.eval()
    with torch.inference_mode():
        while goes_on():
            source = torch.randn(rows, 20, 8)
            for length in range(1, 6):
                net(source, torch.randn(rows, length, 8))
    net.train()


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_per_call_in_evaluations_and_in_training(rows):
    run = recorded(lambda net, goes_on: translate(net, goes_on, rows))
    module = run.evaluated_modules[0]
    assert (module.kind, module.name) == ("Translator", "net")
    assert (module.sizes[0], module.training_sizes[0]) == (rows, ROWS)
    assert not module.has_time_first
    assert 0 < module.evaluation_frac <= 1
    assert module.call_ns > 0
    assert module.training_call_ns > 0


def test_an_encoder_that_gets_the_same_bytes_for_each_token():
    run = recorded(translate)
    kinds = {work.name: work for work in run.repeated_in_evaluations}
    assert kinds["net.encoder"].calls > 0
    assert not kinds["net.encoder"].with_gradient
    assert 0 < kinds["net.encoder"].step_frac < 1
    assert "net" not in kinds  # its target differs
    assert "net.decoder" not in kinds


def test_evaluations_without_repetitions_have_none():
    def evaluate(net, goes_on):
        net.eval()
        with torch.no_grad():
            while goes_on():
                net(torch.randn(4, 20, 8), torch.randn(4, 5, 8))
        net.train()

    assert recorded(evaluate).repeated_in_evaluations == ()


def test_training_alone_has_no_evaluations():
    run = recorded(lambda net, goes_on: None, steps=20)
    assert run.evaluated_modules == ()
    assert run.repeated_in_evaluations == ()


def test_a_module_with_time_as_its_first_dimension_is_marked():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.head = nn.GRU(8, 16), nn.Linear(16, 8)

        def forward(self, source, target):
            return self.head(self.recurrent(source)[0])

    module = recorded(translate, net=Tagger()).evaluated_modules[0]
    assert module.has_time_first
    assert module.sizes == (1, 20)
    assert module.training_sizes == (ROWS, 20)


def test_a_saved_run_has_them(tmp_path):
    run = recorded(translate)
    gpulab.save(run, tmp_path / "evaluated.gpulab")
    again = gpulab.load(tmp_path / "evaluated.gpulab")
    assert again.evaluated_modules == run.evaluated_modules
    assert again.repeated_in_evaluations == run.repeated_in_evaluations


def test_an_error_in_an_evaluation_is_the_same_and_ends_watching():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.fails = False

        def forward(self, source, target):
            if self.fails:
                raise ValueError("no such token")
            return self.linear(source)

    def evaluate(net, goes_on):
        translate(net, goes_on)
        net.fails = True
        with pytest.raises(ValueError, match="no such token"):
            translate(net, lambda: True)
        net.fails = False

    assert recorded(evaluate, net=Failing()).evaluated_modules


class Unchanged(nn.Module):
    """Runs no operator: in a forked process, one may wait for threads that are not there."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, rows):
        return rows


def watching():
    calls = watched_evaluations(threading.get_ident(), Guard())
    calls.sampled(True)
    return calls


def test_an_update_ends_a_window_and_what_was_seen_before_counts(monkeypatch):
    monkeypatch.setattr("gpulab.capture.hooks.evaluations.evaluation_calls._MIN_WINDOW_NS", 0)
    original = nn.Module.__call__
    calls, net = watching(), nn.Linear(4, 4).eval()
    net(torch.ones(2, 4))
    calls.sampled(True)
    net(torch.ones(3, 4))
    calls.updated()
    calls.sampled(True)
    (window,) = calls.windows
    assert [called.first for called in window.modules.values()] == [2]
    assert nn.Module.__call__ is original


def test_a_window_ends_when_watching_has_taken_long(monkeypatch):
    monkeypatch.setattr("gpulab.capture.hooks.evaluations.evaluation_calls._MIN_WINDOW_NS", 0)
    calls, net = watching(), nn.Linear(4, 4).eval()
    net(torch.ones(2, 4))
    calls.sampled(True)
    assert calls.is_watching
    calls._calls.sizes.overhead_ns = 1_000_000_000
    calls.sampled(True)
    assert not calls.is_watching
    assert len(calls.windows) == 1


def test_a_call_that_trains_does_not_count(monkeypatch):
    monkeypatch.setattr("gpulab.capture.hooks.evaluations.evaluation_calls._MIN_WINDOW_NS", 0)
    calls, net = watching(), nn.Linear(4, 4)
    net(torch.ones(2, 4))
    with torch.no_grad():
        net(torch.ones(3, 4))
    calls.sampled(True)
    calls.stop()
    (window,) = calls.windows
    assert [called.first for called in window.modules.values()] == [3]


def test_a_sample_after_the_recording_changes_nothing():
    watch, original = ModuleWatch(Guard()), nn.Module.__call__
    watch.remove()
    watch.sampled(True)
    assert nn.Module.__call__ is original


def test_calls_of_other_threads_and_of_forked_processes_do_not_count(monkeypatch):
    monkeypatch.setattr("gpulab.capture.hooks.evaluations.evaluation_calls._MIN_WINDOW_NS", 0)
    calls, net, rows = watching(), Unchanged().eval(), torch.ones(2, 4)
    thread = threading.Thread(target=net, args=(rows,))
    thread.start()
    thread.join()
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        net(rows)
        os._exit(len(calls._calls.sizes.modules))
    calls.sampled(True)
    calls.stop()
    (window,) = calls.windows
    assert window.modules == {}


def test_only_outermost_calls_count_in_evaluations():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sizes = CallSizes(outermost=True)
    outer = sizes.start(net, sizes.sizes_of(net, (torch.ones(5, 4),), {}), time.perf_counter_ns())
    inner = sizes.start(net[0], sizes.sizes_of(net[0], (torch.ones(5, 4),), {}), time.perf_counter_ns())
    sizes.leave(inner, time.perf_counter_ns())
    sizes.leave(outer, time.perf_counter_ns())
    (called,) = sizes.modules.values()
    assert (called.module(), called.calls, called.sizes) == (net, 1, (5, 4))


def test_of_two_steps_the_faster_calls_of_each_module_count():
    """An actor, for example, is trained in every second step only."""
    critic, actor = nn.Linear(4, 1), nn.Linear(4, 2)
    slow, fast = (CalledModule(weakref.ref(critic), 1, 8, 4, total_ns) for total_ns in (900, 300))
    rare = CalledModule(weakref.ref(actor), 1, 8, 4, 500)
    assert fastest({1: slow, 2: rare}, {1: fast}) == {1: fast, 2: rare}
    assert fastest({1: fast}, {1: slow, 2: rare}) == {1: fast, 2: rare}


@pytest.mark.parametrize("counts_changes", [True, False])
def test_a_tensor_of_inference_mode_that_cannot_be_read_may_have_changed(counts_changes):
    """The meta device stands for a GPU: neither bytes nor changes in inference mode are known."""
    net, step = nn.Linear(4, 4, device="meta"), WatchedStep(is_evaluation=True)
    with torch.no_grad() if counts_changes else torch.inference_mode():
        tokens = torch.ones(2, 4, device="meta")
        for _ in range(3):
            watched = step.before(net, (tokens,), {})
            step.after(watched, net(tokens))
    assert [work.calls for work in step.work.values()] == ([2] if counts_changes else [])
