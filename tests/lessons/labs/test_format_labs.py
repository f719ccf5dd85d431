"""Lesson 06: storage formats against other readers, the counting store, shuffling, views, broken files, the GIL."""

from __future__ import annotations

import io
import math
import random
import struct
import tarfile
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from PIL import Image  # noqa: E402

from gpulab import synthetic  # noqa: E402
from gpulab.lessons.labs.data import (  # noqa: E402
    augmentation,
    broken_files,
    image_pipeline,
    jpeg_decoding,
    loading,
    page_photos,
)
from gpulab.lessons.labs.data.formats import (  # noqa: E402
    record_files,
    sample_formats,
    shard_epochs,
    sorted_rows,
    stream_order,
)
from gpulab.lessons.labs.data.formats.counted_store import CountedStore, folder_opener  # noqa: E402

ROWS = np.random.default_rng(0).normal(0, 1, (50, 16)).astype(np.float32)


def frame(payload):
    length = struct.pack("<Q", len(payload))
    head, tail = (struct.pack("<I", record_files.masked_crc(data)) for data in (length, payload))
    return length + head + payload + tail


# TFRecord: published values, and TensorBoard's reader and writer of the same format.


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_the_crc_has_its_published_values(data, crc):
    assert record_files.castagnoli_crc(data) == crc


def test_the_masked_crc_is_that_of_tensorboard():
    theirs = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c
    for size in (0, 1, 8, 100):
        data = random.Random(size).randbytes(size)
        assert record_files.masked_crc(data) == theirs(data)


def test_tensorboard_reads_our_records_and_we_read_its(tmp_path):
    theirs = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer")
    payloads = [random.Random(size).randbytes(size) for size in (0, 1, 1000)]
    (tmp_path / "ours").write_bytes(b"".join(frame(payload) for payload in payloads))
    reader = theirs.PyRecordReader_New(str(tmp_path / "ours"))
    read = []
    for _ in payloads:
        reader.GetNext()
        read.append(reader.record())
    assert read == payloads
    file = io.BytesIO()
    for payload in payloads:
        writer.RecordWriter(file).write(payload)
    assert list(record_files.read_frames(io.BytesIO(file.getvalue()), verify=True)) == payloads


@pytest.mark.parametrize(("byte", "readable"), [(0, 0), (9, 0), (40, 0), (116, 1), (200, 1)])
def test_reading_stops_at_the_first_damaged_frame(byte, readable):
    data = bytearray(frame(bytes(100)) + frame(bytes(100)))
    data[byte] ^= 1
    assert len(list(record_files.read_frames(io.BytesIO(bytes(data)), verify=True))) == readable


def test_a_damaged_payload_passes_unless_it_is_verified():
    data = bytearray(frame(bytes(100)))
    data[50] ^= 1
    assert len(list(record_files.read_frames(io.BytesIO(bytes(data))))) == 1
    assert not list(record_files.read_frames(io.BytesIO(bytes(data)), verify=True))


@pytest.mark.parametrize("cut", [5, 12, 50, 115])
def test_a_frame_that_was_cut_off_is_not_read(cut):
    assert not list(record_files.read_frames(io.BytesIO(frame(bytes(100))[:cut])))


def test_bytes_without_frames_are_no_records():
    assert not list(record_files.read_frames(io.BytesIO(ROWS.tobytes())))


# Formats: the same rows from each, by our reader and by another one.


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    sample_formats.write_row_files(folder / "files", ROWS)
    sample_formats.write_memory_map(folder / "memory map", ROWS)
    sample_formats.write_tar_shards(folder / "tar shards", ROWS, 4)
    sample_formats.write_record_shards(folder / "TFRecord shards", ROWS, 4, frame)
    sample_formats.write_parquet(folder / "Parquet", ROWS, 5)
    return folder


@pytest.mark.parametrize(
    ("name", "opens", "reads"),
    [
        ("files", 50, 50),
        ("memory map", 1, 0),
        ("tar shards", 4, 4),
        ("TFRecord shards", 4, 4),
        ("Parquet", 1, None),  # as many as pyarrow wants
    ],
)
def test_each_format_gives_the_same_rows_in_its_opens_and_reads(formats, name, opens, reads):
    cost = sample_formats.read_cost(name, formats / name, repeats=2)
    assert np.array_equal(cost.rows, ROWS)
    assert cost.opens == opens
    assert reads is None or cost.reads == reads
    assert cost.stored_bytes >= ROWS.nbytes
    assert cost.wall_s > 0


def test_the_parquet_file_and_the_archives_are_what_others_read(formats):
    import pandas as pd

    column = pd.read_parquet(formats / "Parquet" / "rows.parquet")["row"]
    assert np.array_equal(np.stack(column.to_list()), ROWS)
    with tarfile.open(formats / "tar shards" / "shard-0001.tar") as tar:
        assert tar.getnames()[0] == "000013.f32"  # 50 rows in four shards: 13, 13, 12, 12
        assert tar.extractfile("000013.f32").read() == ROWS[13].tobytes()


def test_a_format_table_shows_all_formats(formats):
    costs = {name: sample_formats.read_cost(name, formats / name, repeats=1) for name in sample_formats.READERS}
    text = repr(sample_formats.format_table(costs))
    assert all(name in text for name in sample_formats.READERS)
    assert "page faults" in text


# The store: its counters against the calls that were made.


def test_a_store_counts_opens_reads_and_bytes_and_its_clock_follows(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10_000))
    store = CountedStore(tmp_path, latency_s=0.5, bytes_per_s=1000)
    with store.open("a", 4000) as file:
        while file.read(4000):
            pass
    with store.open("a") as file:
        assert file.read() == bytes(10_000)
    assert (store.opens, store.reads, store.bytes_read) == (2, 3 + 1, 20_000)
    assert store.clock_s == pytest.approx(6 * 0.5 + 20)
    store.reset()
    assert (store.requests, store.clock_s) == (0, 0)


def test_a_store_without_latency_and_limit_costs_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    store = CountedStore(tmp_path)
    with store.open("a") as file:
        file.seek(-2, io.SEEK_END)
        assert (file.read(), file.tell()) == (b"bc", 3)
    assert store.clock_s == 0
    assert store.bytes_per_s == math.inf


def test_a_folder_opener_opens_the_same_files(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    with folder_opener(tmp_path)("a", 8192) as file:
        assert file.read() == b"abc"


# Order of a stream.


def test_label_runs_and_labels_per_batch_by_hand():
    assert stream_order.label_runs([]) == 0
    assert stream_order.label_runs([1, 1, 2, 2, 1]) == 3
    assert stream_order.labels_per_batch([0, 0, 1, 1, 0, 1, 2, 3, 9], batch=4) == 3  # 2 and 4; the ninth is left over
    assert stream_order.labels_per_batch([1], batch=4) == 0
    assert stream_order.position_correlation(range(10)) == pytest.approx(1)
    assert stream_order.position_correlation(range(9, -1, -1)) == pytest.approx(-1)


def test_a_full_shuffle_has_the_runs_and_labels_that_chance_predicts():
    labels = np.random.default_rng(0).permutation(np.arange(20_000) % 10)
    assert stream_order.label_runs(labels) == pytest.approx(0.9 * 20_000, rel=0.02)
    assert stream_order.labels_per_batch(labels) == pytest.approx(10 * (1 - 0.9**32), rel=0.01)


def test_rows_are_sorted_and_their_order_decides_what_a_network_learns():
    rows = sorted_rows.labelled_rows(2000)
    assert rows[:, 0].tolist() == sorted(index % 10 for index in range(2000))
    assert np.array_equal(rows, sorted_rows.labelled_rows(2000))
    assert not np.array_equal(rows, sorted_rows.labelled_rows(2000, seed=1))
    mixed = sorted_rows.accuracy_after(rows, np.random.default_rng(0).permutation(2000))
    assert mixed > 0.8
    assert sorted_rows.accuracy_after(rows, range(2000)) < mixed - 0.3


# The exercise.


@pytest.fixture(scope="module")
def shard_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    sample_formats.write_tar_shards(folder, sorted_rows.labelled_rows(2000), 20)
    return shard_epochs.ShardStore(folder)


def in_memory(store, epoch):
    samples = [sample for name in store.names for sample in store.shard(name)]
    random.Random(epoch).shuffle(samples)
    yield from samples


def one_by_one(store, epoch):
    for index in random.Random(epoch).sample(range(store.count), store.count):
        yield store.sample(index)


def in_stored_order(store, epoch):
    for name in store.names:
        yield from store.shard(name)


def same_order(store, epoch):
    yield from one_by_one(store, 0)


def incomplete(store, epoch):
    yield store.sample(epoch)


def buffered(store, epoch):
    choice, buffer = random.Random(epoch), []
    for name in choice.sample(store.names, len(store.names)):
        for sample in store.shard(name):
            buffer.append(sample)
            if len(buffer) > 400:
                yield buffer.pop(choice.randrange(len(buffer)))
    choice.shuffle(buffer)
    yield from buffer


@pytest.mark.parametrize(
    ("read_epoch", "requests", "most", "reason"),
    [
        (one_by_one, 4000, 1, ""),
        (buffered, 40, 500, ""),
        (in_memory, 40, 2000, "2,000 samples were in memory"),
        (in_stored_order, 40, 100, "same order"),
        (same_order, 4000, 1, "same order"),
        (incomplete, 2, 1, "1 samples"),
    ],
)
def test_an_epoch_is_counted_and_judged(shard_store, read_epoch, requests, most, reason):
    check = shard_epochs.check_epochs(read_epoch, shard_store)
    assert (check.requests, check.most_samples) == (requests, most)
    assert reason in check.problem
    assert check.score == (None if reason else requests)


def test_an_epoch_of_few_labels_in_a_batch_is_a_problem(shard_store):
    def by_shard(store, epoch):
        for name in random.Random(epoch).sample(store.names, len(store.names)):
            yield from store.shard(name)

    assert "labels on average" in shard_epochs.check_epochs(by_shard, shard_store).problem


def test_a_sample_is_the_one_of_its_shard(shard_store):
    samples = [sample for name in shard_store.names for sample in shard_store.shard(name)]
    for index in (0, 99, 100, 1999):
        assert np.array_equal(shard_store.sample(index), samples[index])


# Photographs.


@pytest.fixture(scope="module")
def photographs():
    return synthetic.images(count=20, side=128)


def test_the_stages_give_what_decoding_a_file_gives(photographs):
    pixels = image_pipeline.decode_resized(photographs[0].read_bytes())
    assert np.array_equal(pixels, page_photos.decode_image(photographs[0]))
    assert pixels.shape == (page_photos.SIDE, page_photos.SIDE, 3)


def test_a_random_view_is_a_crop_that_may_be_flipped():
    pixels = np.random.default_rng(0).integers(0, 256, (page_photos.SIDE, page_photos.SIDE, 3)).astype(np.uint8)
    flips = set()
    for seed in range(20):
        view = image_pipeline.random_view(pixels, np.random.default_rng(seed))
        values = ((view * page_photos.STD + page_photos.MEAN) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        matches = [
            flip
            for flip in (False, True)
            for top in range(17)
            for left in range(17)
            if np.array_equal(values[:, ::-1] if flip else values, pixels[top : top + 64, left : left + 64])
        ]
        assert len(matches) == 1
        flips.add(matches[0])
    assert flips == {False, True}


@pytest.mark.parametrize("crop", [8, 64])
def test_images_are_augmented_by_their_own_choices(crop):
    side = crop * 5 // 4
    pixels, choices = augmentation.random_pixels(32, side), augmentation.draw_choices(32, side, crop)
    views = augmentation.augment_one_by_one(pixels, choices, crop)
    assert views.shape == (32, 3, crop, crop)
    for index in range(32):
        top, left = int(choices.top[index]), int(choices.left[index])
        expected = pixels[index].numpy().astype(np.float64)[:, top : top + crop, left : left + crop] / 255
        if choices.flip[index]:
            expected = expected[:, :, ::-1]
        expected = (expected * float(choices.gain[index]) - page_photos.MEAN) / page_photos.STD
        assert np.allclose(views[index].numpy(), expected, atol=1e-5)
    assert 0 < int(choices.flip.sum()) < 32
    assert int(choices.left.max()) <= side - crop
    assert torch.equal(choices.to("cpu").gain, choices.gain)


def test_one_file_in_ten_is_damaged_and_skipped_in_every_epoch(photographs, tmp_path):
    copies = broken_files.write_damaged_copies(photographs, tmp_path / "copies")
    good = []
    for copy in copies:
        try:
            with Image.open(copy) as image:
                image.load()
            good.append(copy)
        except OSError:
            pass
    assert [index for index, copy in enumerate(copies) if copy not in good] == [9, 19]
    for _ in range(2):
        assert broken_files.read_epoch_of_files(copies) == broken_files.EpochOfFiles(failures=2, repeats=2)
    assert broken_files.read_epoch_of_files(good) == broken_files.EpochOfFiles(failures=0, repeats=0)
    assert broken_files.SkippingDataset(copies)[9] == copies[10]


def test_pillow_verifies_nothing_of_a_jpeg_that_was_cut_off(photographs, tmp_path):
    copies = broken_files.write_damaged_copies(photographs, tmp_path / "copies")
    with Image.open(copies[9]) as image:
        image.verify()
    with pytest.raises(OSError, match="truncated"), Image.open(copies[9]) as image:
        image.load()
    with pytest.raises(OSError, match="cannot identify"):
        Image.open(copies[19])


def test_a_dataset_that_only_holds_broken_files_has_no_item(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with pytest.raises(IndexError):
        broken_files.SkippingDataset([tmp_path / "a.jpg"])[0]


# Threads.


def test_sleep_releases_the_gil_and_python_code_does_not():
    import sys

    interval_s = sys.getswitchinterval()
    assert jpeg_decoding.count_gil_turns(lambda: time.sleep(0.02)) > 0
    assert jpeg_decoding.count_gil_turns(lambda: loading.burn_cpu(0.02)) == 0
    assert sys.getswitchinterval() == interval_s


def test_decoded_files_give_the_pixels_and_know_their_threads(photographs):
    data = jpeg_decoding.DecodedFiles(photographs[:4])
    assert len(data) == 4
    assert np.array_equal(data[1].numpy(), page_photos.decode_image(photographs[1]))
    assert len(data.threads) == 1
    rate = jpeg_decoding.files_per_s(lambda: time.sleep(0.01), count=10)
    assert 0 < rate <= 1000
    batches = [torch.zeros(3), torch.zeros(1)]
    assert jpeg_decoding.loader_files_per_s(batches) > 0
