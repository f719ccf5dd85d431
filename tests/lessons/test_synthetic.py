"""Made data: the same every time, of the shape that was asked for, in a folder that has a limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpulab import GpulabError, synthetic
from gpulab.synthetic import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache.LIMIT_VARIABLE, raising=False)
    return tmp_path / "cache"


def filled(name: str, kilobytes: int) -> Path:
    return cache.cached_folder(name, lambda at: (at / "data").write_bytes(bytes(1000 * kilobytes)) and None)


def test_images_are_jpeg_files_of_the_size_asked_for_and_the_same_again(folder):
    files = synthetic.images(12, 48)
    before = [file.read_bytes() for file in files]
    with Image.open(files[3]) as image:
        assert (image.format, image.size) == ("JPEG", (48, 48))
    synthetic.clear()
    assert not folder.exists()
    assert [file.read_bytes() for file in synthetic.images(12, 48)] == before
    assert before != [file.read_bytes() for file in synthetic.images(12, 48, seed=1)]


def test_images_of_a_class_share_a_colour():
    colours = [np.asarray(Image.open(file)).mean((0, 1)) for file in synthetic.images(20, 32)]
    apart = [np.abs(colours[one] - colours[one + 10]).sum() for one in range(10)]
    others = [np.abs(colours[one] - colours[(one + 1) % 10 + 10]).sum() for one in range(10)]
    assert np.mean(apart) < np.mean(others) / 2


def test_what_was_made_is_not_made_again():
    made = []
    for _ in range(2):
        cache.cached_folder("once", lambda at: made.append((at / "data").write_text("x")))
    assert len(made) == 1


def test_data_that_was_left_half_made_is_made_anew(folder):
    (folder / "half").mkdir(parents=True)
    (folder / "half" / "data").write_text("torn")
    assert (filled("half", 1) / "data").stat().st_size == 1000


def test_a_failure_while_making_leaves_nothing(folder):
    with pytest.raises(ZeroDivisionError):
        cache.cached_folder("broken", lambda at: 1 / 0)
    assert list(folder.iterdir()) == []


def test_the_cache_lets_go_of_what_was_used_longest_ago(folder, monkeypatch):
    import os

    monkeypatch.setenv(cache.LIMIT_VARIABLE, "1")
    for age, name in enumerate(["old", "used", "new"]):
        os.utime(filled(name, 400) / cache._READY, (1000 + age, 1000 + age))
    filled("used", 400)
    filled("last", 400)
    assert {each.name for each in folder.iterdir()} == {"used", "last"}


def test_one_set_larger_than_the_limit_is_kept_while_it_is_the_last(monkeypatch):
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "1")
    assert (filled("large", 1500) / "data").exists()


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(GpulabError, match=cache.VARIABLE):
        synthetic.images(1, 8)


def test_a_limit_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "much")
    with pytest.raises(GpulabError, match="GPULAB_CACHE_MB"):
        filled("any", 1)


def test_texts_have_many_short_and_few_long_documents_within_their_bounds():
    documents = synthetic.texts(2000, shortest=8, longest=400)
    lengths = np.array([len(each) for each in documents])
    assert 8 <= lengths.min() < lengths.max() <= 400
    assert np.median(lengths) < lengths.mean(), "the long ones are few"
    assert all((each > 0).all() for each in documents[:50]), "0 is padding"
    assert np.array_equal(documents[7], synthetic.texts(2000, shortest=8, longest=400)[7])


def test_tables_can_be_learnt_and_no_class_is_rare():
    features, labels = synthetic.table(2000, 8)
    assert (features.shape, features.dtype, labels.dtype) == ((2000, 8), np.float32, np.int64)
    assert np.bincount(labels).min() > 2000 / 40
    fitted, *_ = np.linalg.lstsq(features, np.eye(4)[labels], rcond=None)
    assert (np.argmax(features @ fitted, 1) == labels).mean() > 0.7


def test_sounds_carry_the_pitch_of_their_class():
    waves = synthetic.sounds(8, seconds=0.5, rate=8000)
    heard = [np.argmax(np.abs(np.fft.rfft(wave))) / 0.5 for wave in waves]
    assert np.allclose(heard, [220, 330, 440, 660] * 2, atol=2)
    assert all(wave.dtype == np.float32 and np.abs(wave).max() <= 1 for wave in waves)
