"""Pairs of loops, before and after one change, and the what-if that should predict it.

Half of them existed when the priors of the rewrites were chosen; the others were held out until the end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.predictions import loops
from gpulab.workloads.data.audio import train_on_audio
from gpulab.workloads.data.images import train_on_images
from gpulab.workloads.data.label_service import train_on_service_labels
from gpulab.workloads.data.slow_items import RemoteImages, train_from_storage
from gpulab.workloads.data.word_pairs import BATCH, Documents, PrecountedDocuments, train_on_documents
from gpulab.workloads.host.garbage import train_with_gc_collect
from gpulab.workloads.kernels.handwritten_layers import train_feed_forward
from gpulab.workloads.kernels.many_parameters import train_many_parameters

Loop = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A loop, the same loop with one change, and the what-if that predicts the change."""

    name: str
    kind: str
    spec: str  # "{f}": the cost of a batch after the change over that before, timed alone, without any model
    before: Loop
    after: Loop
    about: str
    held_out: bool = False  # not looked at before the priors were chosen
    work: int = 1  # how many times as many samples a step has afterwards
    alone: tuple[Callable[[], Iterable[Any]], Callable[[], Iterable[Any]]] | None = None  # the batches of both


def _pieces(mapped: bool) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        yield from loops.pieces(Path(folder), 40, mapped=mapped)


def _rows(quick: bool) -> Iterable[Any]:
    collate = loops.plain_collate if quick else loops.slow_collate
    return loops.loading(loops.Rows(128 * 40), 128, collate_fn=collate)


def _digests(rounds: int) -> Iterable[Any]:
    return loops.loading(loops.Digests(16 * 40, rounds), 16)


def _documents(counted: bool) -> Iterable[Any]:
    return loops.loading((PrecountedDocuments if counted else Documents)(40 * BATCH), BATCH)


def _stored(wait_s: float) -> Iterable[Any]:
    return loops.loading(RemoteImages(8 * 30, wait_s=wait_s), 8)


WORKERS = (
    Pair(
        name="jpeg_2_workers",
        kind="workers",
        spec="workers=2",
        before=partial(train_on_images, steps=44),
        after=partial(train_on_images, steps=44, workers=2),
        about="JPEG files decoded by two workers",
    ),
    Pair(
        name="storage_8_workers",
        kind="workers",
        spec="workers=8",
        before=partial(train_from_storage, steps=36, workers=1),
        after=partial(train_from_storage, steps=80, workers=8),
        about="items that wait for storage, by eight workers and not one",
    ),
    Pair(
        name="storage_4_workers",
        kind="workers",
        spec="workers=4",
        before=partial(train_from_storage, steps=36),
        after=partial(train_from_storage, steps=60, workers=4),
        about="items that wait for storage, by four workers",
        held_out=True,
    ),
    Pair(
        name="digests_1_worker",
        kind="workers",
        spec="workers=1",
        before=partial(loops.train_on_digests, rounds=24, steps=60),
        after=partial(loops.train_on_digests, rounds=24, steps=60, workers=1),
        about="items worked out in Python, by one worker",
        held_out=True,
    ),
    Pair(
        name="words_2_workers",
        kind="workers",
        spec="workers=2",
        before=partial(train_on_documents, steps=36),
        after=partial(train_on_documents, steps=44, workers=2),
        about="items worked out in Python, by two workers on as many cores",
        held_out=True,
    ),
)
ITEMS = (
    Pair(
        name="mapped_file",
        kind="item cost",
        spec="item_cost={f}",
        before=partial(loops.train_on_pieces, mapped=False),
        after=partial(loops.train_on_pieces, mapped=True, steps=160),
        about="one mapped file instead of many small ones",
        alone=(partial(_pieces, False), partial(_pieces, True)),
    ),
    Pair(
        name="half_the_rounds",
        kind="item cost",
        spec="item_cost={f}",
        before=partial(loops.train_on_digests, rounds=24),
        after=partial(loops.train_on_digests, rounds=12, steps=80),
        about="items that take half as long to work out",
        alone=(partial(_digests, 24), partial(_digests, 12)),
    ),
    Pair(
        name="nearer_storage",
        kind="item cost",
        spec="item_cost={f}",
        before=partial(train_from_storage, steps=36),
        after=partial(train_from_storage, steps=50, wait_s=0.003),
        about="storage that answers in 3 ms instead of 8",
        alone=(partial(_stored, 0.008), partial(_stored, 0.003)),
    ),
    Pair(
        name="quick_collate",
        kind="item cost",
        spec="item_cost={f}",
        before=partial(loops.train_on_rows, quick=False),
        after=partial(loops.train_on_rows, quick=True, steps=90),
        about="samples put together at once instead of one by one",
        held_out=True,
        alone=(partial(_rows, False), partial(_rows, True)),
    ),
    Pair(
        name="counted_once",
        kind="item cost",
        spec="item_cost={f}",
        before=partial(train_on_documents, steps=36),
        after=partial(train_on_documents, steps=120, count_once=True),
        about="words counted once, before training",
        held_out=True,
        alone=(partial(_documents, False), partial(_documents, True)),
    ),
    Pair(
        name="half_and_a_worker",
        kind="workers and item cost",
        spec="workers=1 item_cost={f}",
        before=partial(loops.train_on_digests, rounds=24),
        after=partial(loops.train_on_digests, rounds=12, workers=1, steps=100),
        about="items that take half as long, by one worker",
        held_out=True,
        alone=(partial(_digests, 24), partial(_digests, 12)),
    ),
)
PYTHON = (
    Pair(
        name="sound_by_table",
        kind="Python moved out",
        spec="no_python",
        before=partial(train_on_audio, steps=44),
        after=partial(train_on_audio, steps=150, by_table=True),
        about="sound decoded by a table and not in the loop's Python",
    ),
    Pair(
        name="labels_ahead",
        kind="Python moved out",
        spec="no_python",
        before=partial(train_on_service_labels, steps=50),
        after=partial(train_on_service_labels, steps=50, beforehand=True),
        about="a service asked ahead, in a thread",
    ),
    Pair(
        name="half_the_python",
        kind="Python made cheaper",
        spec="python=0.5",
        before=partial(loops.train_on_digested, rounds=32),
        after=partial(loops.train_on_digested, rounds=16, steps=80),
        about="half as much Python in the loop",
    ),
    Pair(
        name="worked_out_before",
        kind="Python moved out",
        spec="no_python",
        before=partial(loops.train_on_digested, rounds=32),
        after=partial(loops.train_on_digested, rounds=32, beforehand=True, steps=200),
        about="samples worked out before the loop",
        held_out=True,
    ),
    Pair(
        name="seldom_logged",
        kind="log in every step (a host's sync)",
        spec="no_python",
        before=partial(loops.train_with_log, every=1, steps=80),
        after=partial(loops.train_with_log, every=1000, steps=80),
        about="histograms of all weights no longer counted after every step",
        held_out=True,
    ),
)
GARBAGE = (
    Pair(
        name="collecting_seldom",
        kind="garbage collection off",
        spec="no_gc",
        before=partial(train_with_gc_collect, steps=30),
        after=partial(train_with_gc_collect, steps=120, every=1000),
        about="gc.collect() no longer called in every step",
    ),
    Pair(
        name="collator_frozen",
        kind="garbage collection off",
        spec="no_gc",
        before=partial(loops.train_collating, collected=True, steps=36),
        after=partial(loops.train_collating, collected=False, steps=60),
        about="many small objects a batch, the collector switched off",
        held_out=True,
    ),
)
OPTIMIZER = (
    Pair(
        name="adamw_fused",
        kind="optimizer",
        spec="optimizer=fused",
        before=partial(train_many_parameters, steps=60),
        after=partial(train_many_parameters, steps=80, fused=True),
        about="82 parameters updated by one operator",
    ),
    Pair(
        name="adam_large_fused",
        kind="optimizer",
        spec="optimizer=fused",
        before=partial(loops.train_updating, "Adam", width=1024, depth=4, steps=90),
        after=partial(loops.train_updating, "Adam", width=1024, depth=4, steps=120, fused=True),
        about="few large parameters updated by one operator",
    ),
    Pair(
        name="momentum_fused",
        kind="optimizer",
        spec="optimizer=fused",
        before=partial(loops.train_updating, "SGD", width=512, depth=20, steps=90, momentum=0.9),
        after=partial(loops.train_updating, "SGD", width=512, depth=20, steps=90, momentum=0.9, fused=True),
        about="SGD with momentum by one operator",
    ),
    Pair(
        name="adam_images_fused",
        kind="optimizer",
        spec="optimizer=fused",
        before=partial(loops.train_convolving_with, "Adam", steps=80),
        after=partial(loops.train_convolving_with, "Adam", steps=120, fused=True),
        about="Adam on convolutions and a wide layer by one operator",
        held_out=True,
    ),
    Pair(
        name="adagrad_fused",
        kind="optimizer",
        spec="optimizer=fused",
        before=partial(loops.train_updating, "Adagrad", width=192, depth=50, steps=80),
        after=partial(loops.train_updating, "Adagrad", width=192, depth=50, steps=100, fused=True),
        about="Adagrad on 200 small parameters by one operator",
        held_out=True,
    ),
)
BATCHES = (
    Pair(
        name="deep_x16",
        kind="batch",
        spec="batch=x16",
        before=partial(loops.train_deep, batch=4),
        after=partial(loops.train_deep, batch=64),
        about="many small layers, 64 samples and not 4",
        work=16,
    ),
    Pair(
        name="images_x4",
        kind="batch",
        spec="batch=x4",
        before=partial(loops.train_images, batch=4, steps=120),
        after=partial(loops.train_images, batch=16, steps=80),
        about="convolutions, 16 images and not 4",
        work=4,
    ),
    Pair(
        name="wide_x4",
        kind="batch",
        spec="batch=x4",
        before=partial(loops.train_wide, batch=16, steps=120),
        after=partial(loops.train_wide, batch=64, steps=90),
        about="few large layers, 64 samples and not 16",
        work=4,
        held_out=True,
    ),
    Pair(
        name="digests_x2",
        kind="batch",
        spec="batch=x2",
        before=partial(loops.train_on_digests, rounds=12, batch=16, steps=80),
        after=partial(loops.train_on_digests, rounds=12, batch=32),
        about="items worked out in Python, 32 and not 16",
        work=2,
        held_out=True,
    ),
)
COMPILE = (
    Pair(
        name="activation_compiled",
        kind="compile",
        spec="compile",
        before=partial(loops.train_elementwise, compiled=False, batch=4096),
        after=partial(loops.train_elementwise, compiled=True, batch=4096),
        about="an activation in many passes over memory, fused",
    ),
    Pair(
        name="small_compiled",
        kind="compile",
        spec="compile",
        before=partial(loops.train_elementwise, compiled=False, batch=32, layers=20, steps=120),
        after=partial(loops.train_elementwise, compiled=True, batch=32, layers=20, steps=200),
        about="many small operators, fused",
    ),
    Pair(
        name="by_hand_compiled",
        kind="compile",
        spec="compile",
        before=partial(train_feed_forward, steps=44),
        after=partial(loops.train_by_hand_compiled, steps=70),
        about="GELU and normalisation by hand, fused",
        held_out=True,
    ),
)
PAIRS: tuple[Pair, ...] = (*WORKERS, *ITEMS, *PYTHON, *GARBAGE, *OPTIMIZER, *BATCHES, *COMPILE)
