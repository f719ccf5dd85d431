"""Loops that compute features from each batch before the model, and loops that must do such work in every step."""

from dataclasses import replace

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.cases.host.work_outside_model.case import passes, small, update
from tests.support.runs.made_runs import event, loader_call, mark, run_of, stepped

LOADER = Loader(name="train_loader", kind="DataLoader", workers=0, batch_size=16, batches=5, iterable=False)


def trained(step, *, loader=LOADER, epochs=2):
    """Ten steps of 100 ms, each after a short fetch: forward and backward take 50 ms, the optimizer 5 ms."""
    marks = [replace_epoch(mark(100 * number, 0.1), number * epochs // 10) for number in range(10)]
    events = stepped(lambda at: [loader_call(at, 0.1), *step(at + 0.2)], count=10)
    return run_of(events, marks=marks, loaders=[loader])


def replace_epoch(row, epoch):
    return {**row, "epoch": epoch}


def features(at, dur_ms=40.0, name="aten::exp"):
    return small(at, dur_ms, name, count=100)


def provoked_by_features_of_each_batch():
    return trained(lambda at: [*features(at), *passes(at + 40), *update(at + 92, 5)])


def provoked_in_a_single_epoch():
    return trained(lambda at: [*features(at), *passes(at + 40), *update(at + 92, 5)], epochs=1)


def spared_where_only_an_evaluation_computes_them():
    """After each update, a batch of another DataLoader is evaluated."""

    def step(at):
        evaluation = [loader_call(at + 57, 0.1), *features(at + 57.2, 38.0)]
        return [*passes(at), *update(at + 51, 5), *evaluation]

    return trained(step)


def spared_as_the_features_are_random():
    def step(at):
        noise = event(EventKind.OP, "aten::bernoulli_", at, 1.0)
        return [noise, *features(at + 1), *passes(at + 41), *update(at + 93, 5)]

    return trained(step)


def spared_as_the_work_follows_the_forward_pass():
    return trained(lambda at: [*passes(at), *features(at + 52), *update(at + 93, 5)])


def spared_as_it_is_short():
    return trained(lambda at: [*features(at, 5.0), *passes(at + 5), *update(at + 57, 5)])


def spared_as_a_stream_does_not_repeat():
    stream = replace(LOADER, iterable=True)
    return trained(lambda at: [*features(at), *passes(at + 40), *update(at + 92, 5)], loader=stream)


def spared_as_it_is_a_layer_without_gradients():
    """A frozen model in front of the trained one."""

    def step(at):
        layers = [event(EventKind.OP, "aten::addmm", at + 4 * number, 3.9) for number in range(10)]
        return [*layers, *passes(at + 40), *update(at + 92, 5)]

    return trained(step)


def spared_without_a_data_loader():
    return run_of(stepped(lambda at: [*features(at), *passes(at + 40), *update(at + 92, 5)], count=10))
