"""Side tables equal the file: shapes, grids, communication, waits and memory."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from gpulab import trace
from gpulab.rows import TextColumn
from gpulab.tables import COLLECTIVES, EVENTS, GRIDS, MEMORY, SHAPES, SIDE_TABLES, TABLES, WAITS, EventKind
from gpulab.trace import kineto
from tests.support.oracle import HOST, KERNEL, nanoseconds
from tests.support.runs.written_traces import kinds, read, x

FIELDS = {
    EVENTS: "event_rows",
    GRIDS: "grid_rows",
    SHAPES: "shape_rows",
    COLLECTIVES: "collective_rows",
    WAITS: "wait_rows",
    MEMORY: "memory_rows",
}


def listed(rows):
    """The rows as tuples, absent text as None, NaN as nan."""
    columns = [
        values.to_list() if isinstance(values, TextColumn) else values.tolist()
        for values in (rows.columns[column.name] for column in rows.table.columns)
    ]
    return list(zip(*columns, strict=True))


def arguments_of_rows(run, rows):
    """Count the rows, each with the name and time of its event instead of its index."""
    events = run.event_rows
    names, start, dur = events.text("name").to_list(), events["start_ns"].tolist(), events["dur_ns"].tolist()
    return Counter((names[e], start[e], dur[e], *rest) for e, *rest in listed(rows))


def expected(oracle, events, values):
    """The same from the oracle's events; `values` gives what an event tells, None where that is nothing."""
    rows = ((e["name"], e["begin"] - oracle.zero, e["length"], values(e["args"])) for e in events if "args" in e)
    return Counter(
        (name, begin, length, *arguments) for name, begin, length, arguments in rows if arguments is not None
    )


def parse_count(args, key):
    return int(args.get(key, -1))


def product(sides):
    return -1 if sides is None else int(np.prod([int(side) for side in sides]))


def grid(args):
    if not {"grid", "block", "registers per thread", "shared memory"} & set(args):
        return None
    percent = args.get("est. achieved occupancy %")
    frac = None if percent is None or percent < 0 else float(np.float32(float(percent) / 100))
    sides = product(args.get("grid")), product(args.get("block"))
    return *sides, parse_count(args, "registers per thread"), parse_count(args, "shared memory"), frac


def test_launch_arguments_of_kernels_equal_the_file(both):
    run, oracle = both
    counts = Counter()
    for row, count in arguments_of_rows(run, run.grid_rows).items():
        counts[(*row[:-1], None if np.isnan(row[-1]) else row[-1])] += count
    assert counts == expected(oracle, oracle.of(KERNEL), grid)


def test_shapes_and_types_of_operators_equal_the_file(both):
    run, oracle = both
    spelled = Counter()
    for (*event, shapes, dtypes), count in arguments_of_rows(run, run.shape_rows).items():
        spelled[(*event, shapes and repr(json.loads(shapes)), dtypes and repr(json.loads(dtypes)))] += count

    def inputs(args):
        if not {"Input Dims", "Input type"} & set(args):
            return None
        return repr(args.get("Input Dims")), repr(args.get("Input type"))

    assert spelled == expected(oracle, oracle.of(HOST - {"python_function"}), inputs)


def test_arguments_of_collectives_equal_the_file(both):
    run, oracle = both

    def message_arguments(args):
        if "Collective name" not in args:
            return None
        sizes = parse_count(args, "In msg nelems"), parse_count(args, "Out msg nelems")
        group = args.get("Process Group Name"), args.get("Process Group Description"), parse_count(args, "Group size")
        return args["Collective name"], args["dtype"], *sizes, *group, parse_count(args, "Seq")

    assert arguments_of_rows(run, run.collective_rows) == expected(oracle, oracle.events, message_arguments)


def test_sync_records_equal_the_file(both):
    run, oracle = both

    def waited(args):
        if "wait_on_stream" not in args:
            return None
        values = args["wait_on_stream"], args["wait_on_cuda_event_record_corr_id"]
        return None if values == (-1, -1) else values  # such a row is not stored

    assert arguments_of_rows(run, run.wait_rows) == expected(oracle, oracle.of({"cuda_sync"}), waited)


def test_memory_events_equal_the_file(both):
    run, oracle = both
    moments = Counter(
        (
            nanoseconds(event["ts"]) - oracle.zero,
            event["args"]["Device Id"] if event["args"]["Device Type"] else -1,
            event["args"]["Bytes"],
            *(parse_count(event["args"], key) for key in ("Addr", "Total Allocated", "Total Reserved")),
        )
        for event in oracle.instants
    )
    assert Counter((at, *rest) for at, _, *rest in listed(run.memory_rows)) == moments
    assert (np.diff(run.memory_rows["at_ns"]) >= 0).all()


def test_a_run_has_a_field_and_a_frame_for_every_table():
    run = read(x("cpu_op", "aten::add", 1, 1))
    assert set(FIELDS) <= set(TABLES)
    assert {table: getattr(run, field).table for table, field in FIELDS.items()} == {table: table for table in FIELDS}
    for table in (*SIDE_TABLES, MEMORY):
        assert list(getattr(run, table.name).columns) == [column.name for column in table.columns]


# By hand, where real files do not reach.


def test_a_row_of_a_side_table_points_at_its_event_whatever_the_order_in_the_file():
    run = read(
        x("kernel", "late", 9, 1, device=0, stream=7, correlation=2, grid=[2, 1, 1], block=[32, 1, 1]),
        x("cpu_op", "aten::mm", 5, 2, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}),
        x("kernel", "early", 3, 1, device=0, stream=7, correlation=1, grid=[4, 5, 6], block=[64, 2, 1]),
        x("cpu_op", "aten::t", 1, 1),
    )
    assert run.event_rows.text("name").to_list() == ["aten::t", "early", "aten::mm", "late"]
    assert run.grid_rows["event"].tolist() == [1, 3]
    assert run.grid_rows["grid"].tolist() == [120, 2]
    assert run.grid_rows.per_event("block", 4).tolist() == [-1, 128, -1, 32]
    assert listed(run.shape_rows) == [(2, "[[2, 3], [3, 4]]", '["float", "float"]')]
    joined = run.events.join(run.grids.set_index("event"))
    assert joined.loc[3, "registers"] == -1
    assert joined["grid"].isna().tolist() == [True, False, True, False]


def test_a_dropped_event_drops_its_side_table_row():
    run = read(
        x("kernel", "no time", None, 1, device=0, stream=7, correlation=2, grid=[2, 1, 1], block=[32, 1, 1]),
        x("kernel", "timed", 3, 1, device=0, stream=7, correlation=1, grid=[4, 1, 1], block=[64, 1, 1]),
    )
    assert run.event_rows.text("name").to_list() == ["timed"]
    assert listed(run.grid_rows)[0][:3] == (0, 4, 64)
    assert len(run.grid_rows) == 1


def test_a_kernel_with_collective_arguments_is_a_collective():
    arguments = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8}
    group = {"Process Group Name": 7, "Process Group Description": "mesh_dp", "Group size": 2, "Seq": 4}
    run = read(
        x("cpu_op", "record_param_comms", 1, 1, **arguments, **group),
        x("kernel", "my_exchange", 2, 1, device=0, stream=7, correlation=1, **arguments, **group),
        x("kernel", "gemm", 3, 1, device=0, stream=7, correlation=2),
    )
    assert [EventKind(kind) for kind in run.event_rows["kind"]] == [
        EventKind.OP,
        EventKind.COLLECTIVE,
        EventKind.KERNEL,
    ]
    assert listed(run.collective_rows) == [
        (0, "allreduce", "Float", 8, 8, "7", "mesh_dp", 2, 4),
        (1, "allreduce", "Float", 8, 8, "7", "mesh_dp", 2, 4),
    ]


def test_a_collective_far_behind_the_first_one_is_found_by_its_arguments():
    arguments = {"Collective name": "allreduce", "dtype": "Float"}
    padding = "x" * 400_000  # three events fill a chunk: fifty of them are more chunks than the reader looks back
    run = read(
        x("cpu_op", "record_param_comms", 1, 1, **arguments),
        x("kernel", "gemm", 2, 1, device=0, stream=7, correlation=1),
        *(x("cpu_op", "aten::add", 10 + at, 1, Note=padding) for at in range(50)),
        x("kernel", "my_exchange", 100, 1, device=0, stream=7, correlation=2, **arguments),
        x("kernel", "gemm", 200, 1, device=0, stream=7, correlation=3, grid=[2, 1, 1]),
    )
    assert kinds(run)["my_exchange"] is EventKind.COLLECTIVE
    assert [run.event_rows.text("name")[row] for row in run.collective_rows["event"].tolist()] == [
        "record_param_comms",
        "my_exchange",
    ]
    assert run.event_rows["correlation"].tolist() == [-1, 1, *[-1] * 50, 2, 3]
    assert run.grid_rows["grid"].tolist() == [2]


def test_an_event_without_arguments_does_not_get_those_of_its_neighbour():
    arguments = {"Collective name": "allreduce", "dtype": "Float"}
    run = read(
        x("cpu_op", "aten::add", 1, 1),
        x("gpu_user_annotation", "nccl:all_reduce", 2, 1, pid=0, tid=7, **arguments),
        x("user_annotation", "nccl:all_reduce", 3, 1, **arguments),
    )
    assert run.collective_rows["event"].tolist() == [1]


def test_shapes_of_a_large_file_are_not_read_by_default():
    event = x("cpu_op", "aten::mm", 5, 2, **{"Input Dims": [[2, 3]], "Input type": ["float"]})
    text = json.dumps({"traceEvents": [event]}).encode()
    assert len(trace.read(text).shape_rows) == 1
    assert len(trace.read(text, shapes=False).shape_rows) == 0


def test_shapes_of_a_large_file_are_read_on_request(tmp_path, monkeypatch):
    event = x("cpu_op", "aten::mm", 5, 2, **{"Input Dims": [[2, 3]], "Input type": ["float"]})
    plain_one = x("cpu_op", "aten::mm", 5, 2)
    path, other = tmp_path / "shaped.json", tmp_path / "unshaped.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    other.write_text(json.dumps({"traceEvents": [plain_one]}))
    assert len(trace.read(path).shape_rows) == 1
    assert not trace.read(path).recording.left_out

    monkeypatch.setattr(kineto, "_CHEAP_BYTES", 64)
    run = trace.read(path)
    assert len(run.shape_rows) == 0
    assert [gap.fix for gap in run.recording.left_out] == ["gpulab.load(path, shapes=True)"]
    assert len(trace.read(path, shapes=True).shape_rows) == 1
    assert not trace.read(path, shapes=False).recording.left_out, "shapes that were declined are not a gap"
    assert not trace.read(other).recording.left_out


def test_oversized_shapes_are_absent_and_their_types_are_kept():
    event = x("cpu_op", "aten::cat", 5, 2, **{"Input Dims": [[1, 2]] * 5000, "Input type": ["TensorList"]})
    assert listed(read(event).shape_rows) == [(0, None, '["TensorList"]')]


def test_freed_memory_is_negative_and_missing_values_are_absent():
    def moment(ts, **args):
        return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}

    run = read(
        x("cpu_op", "aten::empty", 1, 1),
        moment(3, Bytes=-512, Addr=2**47, **{"Device Type": 1, "Device Id": 1, "Total Allocated": 0}),
        moment(2, Bytes=512, **{"Device Type": 0, "Device Id": -1}),
        moment("x", Bytes=512, **{"Device Type": 0, "Device Id": -1}),
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": 1, "tid": 1, "ts": 1},
    )
    assert listed(run.memory_rows) == [
        (1000, 0, -1, 512, -1, -1, -1),
        (2000, 0, 1, -512, 2**47, 0, -1),
    ]
    assert run.recording.lost == {"event without a usable time": 1}
    assert list(run.memory["bytes"]) == [512, -512]


@pytest.mark.parametrize("value", [None, True, "7", "x", 1.5, -3, 2**70, 1e300, [], [1], {}, {"a": [1]}, [[1], 2]])
@pytest.mark.parametrize(
    "key",
    [
        *("registers per thread", "shared memory", "Input Dims", "Input type", "Collective name", "dtype", "Seq"),
        *("In msg nelems", "Process Group Name", "wait_on_stream", "Bytes", "Addr", "Device Id", "Device Type"),
    ],
)
def test_any_type_in_any_argument_is_survived(key, value):
    communication = {"Collective name": "allreduce"} | {key: value}
    run = read(
        x("cpu_op", "record_param_comms", 1, 1, **communication),
        x("kernel", "k", 2, 1, device=0, stream=7, correlation=1, **communication),
        x("cuda_sync", "Event Sync", 3, 1, device=0, stream=7, correlation=2, wait_on_stream=7) | {},
        x("cuda_sync", "Event Sync", 4, 1, device=0, stream=7, correlation=3, **{key: value}),
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {key: value}},
    )
    assert len(run.event_rows) == 4
    assert len(run.memory_rows) == 1
    for table, field in FIELDS.items():
        table.rows(dict(getattr(run, field).columns))
    for table in SIDE_TABLES:
        events = getattr(run, FIELDS[table])["event"]
        assert ((events >= 0) & (events < 4)).all()


def test_the_last_of_duplicate_keys_wins():
    event = b'{"ph": "X", "cat": "kernel", "name": "one", "name": "two", "pid": 0, "tid": 7, "ts": 1, "ts": 2,'
    args = b'"dur": 3, "args": {"device": 0, "stream": 7, "stream": 9, "grid": [1, 1, 1], "grid": [2, 2, 1]}}'
    run = trace.read(b'{"traceEvents": [%b%b]}' % (event, args))
    assert run.event_rows.text("name").to_list() == ["two"]
    assert run.event_rows["stream"].tolist() == [9]
    assert run.grid_rows["grid"].tolist() == [4]
    assert not run.recording.lost
