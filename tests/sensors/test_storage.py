"""The file system of a dataset's files, from its attributes, without calling its code."""

from __future__ import annotations

from collections import namedtuple

import psutil
import pytest

from gpulab.sensors.host import storage
from gpulab.sensors.host.storage import dataset_file_system, file_system_type

Part = namedtuple("Part", "mountpoint fstype")


@pytest.fixture(autouse=True)
def mounts(tmp_path, monkeypatch):
    """A system with different file systems for / and two folders of the test."""
    for name in ("far", "far/near"):
        (tmp_path / name).mkdir()
    mounts = [Part("/", "ext4"), Part(str(tmp_path / "far"), "nfs4"), Part(str(tmp_path / "far/near"), "xfs")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    monkeypatch.setattr(storage, "_mounts", storage._mounts.__wrapped__)  # without its memory of other mounts
    return tmp_path


class Pictures:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


def test_the_innermost_mount_decides_the_file_system(mounts):
    assert file_system_type(mounts) == "ext4"
    assert file_system_type(mounts / "far") == "nfs4"
    assert file_system_type(mounts / "far" / "near" / "a.jpg") == "xfs"
    assert file_system_type(mounts / "farther") == "ext4", "a longer name is another folder"


def test_links_are_followed_to_the_real_file_system(mounts):
    (mounts / "data").symlink_to(mounts / "far")
    assert file_system_type(mounts / "data" / "a.jpg") == "nfs4"


@pytest.mark.parametrize("name", ["root", "path", "folder", "data_dir"])
def test_path_attributes_of_a_dataset_are_used(mounts, name):
    assert dataset_file_system(Pictures(**{name: mounts / "far"})) == "nfs4"
    assert dataset_file_system(Pictures(**{name: str(mounts / "far")})) == "nfs4"


def test_the_first_file_of_a_list_is_used(mounts):
    file = mounts / "far" / "a.jpg"
    file.touch()
    assert dataset_file_system(Pictures(files=[str(file), "b.jpg"])) == "nfs4"
    assert dataset_file_system(Pictures(samples=[(str(file), 3)])) == "nfs4", "as torchvision keeps them"


def test_wrapped_datasets_are_searched(mounts):
    inner = Pictures(root=str(mounts / "far"))
    assert dataset_file_system(Pictures(dataset=inner, indices=[1, 2])) == "nfs4"
    assert dataset_file_system(Pictures(datasets=[Pictures(dataset=inner)])) == "nfs4"


@pytest.mark.parametrize(
    "attributes", [{}, {"root": "no such folder"}, {"root": 7}, {"files": []}, {"path": "a" * 10_000}, {"path": "a\0b"}]
)
def test_a_dataset_without_paths_has_no_file_system(attributes):
    assert dataset_file_system(Pictures(**attributes)) is None


def test_a_dataset_that_contains_itself_ends_the_search():
    dataset = Pictures()
    dataset.__dict__["dataset"] = dataset
    assert dataset_file_system(dataset) is None


def test_anything_can_be_a_dataset():
    assert [dataset_file_system(each) for each in ([1, 2], range(3), None, object())] == [None] * 4
