"""Samples that one thread takes while others read them."""

from collections import UserDict

from gpulab.sensors.samples import Samples
from gpulab.tables import HOST_SAMPLES


def row(at_ns):
    return {
        column.name: "train.py:3" if column.dtype == "words" else 1.0 if column.dtype == "float64" else at_ns
        for column in HOST_SAMPLES.columns
    }


class ReadInBetween(UserDict):
    """A row; at each of its values, another reader asks for all rows."""

    def __init__(self, values, read):
        super().__init__(values)
        self.read, self.lengths = read, []

    def get(self, name, default=None):
        self.lengths.append(len(self.read()))
        return super().get(name, default)


def test_a_row_counts_when_all_of_its_columns_have_it():
    samples = Samples(HOST_SAMPLES)
    samples.append(row(1))
    second = ReadInBetween(row(2), lambda: HOST_SAMPLES.rows(samples.columns(0)))
    samples.append(second)
    assert second.lengths == [1] * len(HOST_SAMPLES.columns)
    rows = HOST_SAMPLES.rows(samples.columns(0))
    assert rows["at_ns"].tolist() == [1, 2]
    assert rows.text("frame").to_list() == ["train.py:3"] * 2


def test_rows_can_be_read_from_a_position_on():
    samples = Samples(HOST_SAMPLES)
    for at_ns in (5, 6, 7):
        samples.append(row(at_ns))
    assert HOST_SAMPLES.rows(samples.columns(5, 1))["at_ns"].tolist() == [1, 2]
