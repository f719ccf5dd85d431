"""The compiled parser of chunks reads what the decoder reads, or leaves the chunk to it; no input makes it fail."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpulab import trace
from gpulab.trace.reading import chunks, compiled, text_blocks
from gpulab.trace.reading.chunk_events import READ_EVERYTHING, ReadOptions
from gpulab.trace.reading.limits import Limits, Losses
from tests.support import fuzz
from tests.support.oracle import SHARED
from tests.support.tiers import examples
from tests.support.trace_parsers import assert_both_read_the_same, need_compiled, reading_with

COLUMNS = 64 * 1024
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def built():
    need_compiled()


def text_chunks(path):
    """The chunks of a file."""
    text = text_blocks.read_blocks(path, Limits(), Losses())
    start = next(chunks.find_events(text, Limits()))
    yield from chunks.ChunkReader(start.events, text, Limits())


def parsed(text, *, is_last=False, columns=COLUMNS):
    """The result for this text of events."""
    return compiled._chunk_parser.parse(text, 0, len(text), bytearray(columns), b"", False, is_last)


# The same as the decoder.


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("name", SHARED)
def test_both_parsers_read_the_same_run_of_a_real_trace(recorded, name, shapes):
    assert_both_read_the_same(recorded(f"{name}.json.gz"), shapes=shapes)


@pytest.mark.parametrize("name", SHARED)
def test_no_chunk_of_a_real_trace_is_declined(recorded, name):
    parser = compiled.CompiledParser()
    for chunk in text_chunks(recorded(f"{name}.json.gz")):
        for options in (ReadOptions(), READ_EVERYTHING):
            assert parser.parse(chunk, options, is_array=False) is not None


WORDS = st.sampled_from(["", "a", "aten::mm", "ncclDevKernel_AllReduce", "größe", 'say "x"', "C:\\x", "tab\t", "😀"])
ODD = st.sampled_from([None, True, "7", " 7", "07", "x", 1.5, -3, 2**40, 2**70, 1e300, -1e300, [], [1], {}, {"a": [1]}])
TIMES = st.sampled_from(
    [0, 7, 1000.125, 0.0005, 12.0625, -1.5, 1.7e15, 1712195495519689.047, 2**43 + 0.5, 2**60, 0.1e-7]
)
COUNTS = st.sampled_from([0, 7, -1, 2**31, 2**32 - 1, 2**33, "7", "0x0", "007"]) | ODD
SIDES = st.sampled_from([[1, 2, 3], [128], [], [0, 1, 1], [2**31, 2**31, 1], [2**21] * 3, [1] * 4, "grid(1,)"]) | ODD
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": COUNTS,
        "bytes": COUNTS,
        "device": COUNTS,
        "stream": COUNTS,
        "grid": SIDES,
        "block": SIDES,
        "est. achieved occupancy %": st.sampled_from([0, 37, 37.5, 100, 101, -1]) | ODD,
        "wait_on_stream": COUNTS,
        "Input Dims": st.just([[1, 2], []]) | ODD,
        "Collective name": WORDS | ODD,
        "In msg nelems": COUNTS,
        "Addr": COUNTS,
        "Bytes": COUNTS,
        "Device Type": COUNTS,
        "name": WORDS | ODD,
        "Call stack": WORDS,
    },
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXXiMsfBC?")},
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "cuda_sync", "gpu_memcpy", "new", ""]) | ODD,
        "name": st.sampled_from(["[memory]", "thread_name"]) | WORDS | ODD,
        "pid": st.sampled_from([0, 1, "1", "a"]) | ODD,
        "tid": st.sampled_from([1, 2, "stream 7"]) | ODD,
        "ts": TIMES | ODD,
        "dur": TIMES | ODD,
        "args": ARGUMENTS | ODD,
        "id": ODD,
    },
)
ORDINARY = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXi"),
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "gpu_memset"]),
        "name": st.sampled_from(["[memory]", "ncclDevKernel_AllReduce"]) | WORDS,
        "pid": st.sampled_from([0, 1]),
        "tid": st.sampled_from([1, 2, "stream 7"]),
        "ts": st.decimals(0, 2**42, places=3).map(float) | st.integers(0, 2**50),
        "dur": st.decimals(0, 2**20, places=3).map(float),
        "args": st.fixed_dictionaries(
            {},
            optional={
                "stream": st.integers(0, 9),
                "grid": st.lists(st.integers(1, 2**20), min_size=3, max_size=3),
                "Collective name": WORDS,
                "Input Dims": st.lists(st.lists(st.integers(0, 9))),
                "Bytes": st.integers(-(2**40), 2**40),
            },
        ),
    }
)


@given(
    st.lists(EVENTS, max_size=12) | st.lists(ORDINARY, max_size=12),
    st.randoms(use_true_random=False),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)
def test_both_parsers_read_the_same_of_odd_events_in_any_layout(events, dice, indent, ascii_only):
    shuffled = (
        [dict(dice.sample(list(event.items()), len(event))) for event in events] if dice.random() < 0.5 else events
    )
    document = {"baseTimeNanoseconds": 7, "traceEvents": shuffled, "record_shapes": 1}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert_both_read_the_same(text)


@functools.cache
def originals():
    return [text for name, text in fuzz.originals() if not name.endswith(".gpulab")]


@examples(400)
@given(st.integers(0, 2**32), st.sampled_from([2**20, 4096, 300]))
def test_both_parsers_read_the_same_of_a_damaged_trace(seed, block):
    dice = random.Random(seed)
    text = dice.choice(originals())
    for _ in range(dice.choice((1, 1, 2, 5))):
        text = dice.choice(fuzz.MAKERS)(dice, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK", block)
        patch.setattr(chunks, "BLOCK", block)
        assert_both_read_the_same(text, limits=fuzz.LIMITS)


NUMBERS = st.from_regex(r"\A-?(0|[1-9]\d{0,20})(\.\d{1,22})?([eE][+-]?\d{1,3})?\Z")


@given(st.lists(NUMBERS, min_size=1, max_size=5), NUMBERS)
@example(["1712195495519689.047"], "0.0005")
@example(["8796093022207.9996"], "0.0015")
@example(["9223372036854775807"], "4611686018427387.904")
@example(["-0.0"], "-0")
@example(["12.3450", "7.5"], "1e3")
def test_both_parsers_read_the_same_times(starts, dur):
    events = [f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{start},"dur":{dur}}}' for start in starts]
    assert_both_read_the_same(f"[{','.join(events)}]".encode())


@given(st.text('{}[]",:0123456789.eE-+\\ux nulltrfase \n\t\x00\x1fé', max_size=60))
@example('"\\ud800"')
@example('"\\u12g4"')
@example("[" * 64 + "]" * 64)
@example("[" * 65 + "]" * 65)
@example('{"a": [1, {"b": []}, null, true, false, -0.5e+3]}')
@example("01")
@example("1.")
@example("[1,]")
@example('{"a":1,}')
@example(" 1 ")
def test_both_parsers_agree_on_what_is_json(value):
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"x":%s}}'
    assert_both_read_the_same(f"[{event % (1, 7)},{event % (2, value)},{event % (3, 7)}]".encode())


@pytest.mark.parametrize(
    "member",
    [
        '"ts":1,"ts":2',
        '"args":{"stream":1,"stream":2}',
        '"n\\u0061me":"b"',
        '"args":{"stre\\u0061m":5}',
        '"ph":"X","ph":"M"',
        '"args":5',
        '"args":null',
        '"args":{ }',
        '"pid":1.0',
        '"tid":"1"',
    ],
)
def test_both_parsers_read_the_same_of_unusual_members(member):
    event = f'{{"ph":"X","cat":"kernel","name":"a","pid":1,"tid":1,"dur":1,{member}}}'
    sound = '{"ph":"X","cat":"kernel","name":"a","pid":1,"tid":1,"ts":5,"dur":1,"args":{"stream":7}}'
    assert_both_read_the_same(f"[{sound},{event},{sound}]".encode())


@pytest.mark.parametrize("value", [b'"\xff"', b'"0x\xff"', b'"\xc3\xa9"', b'["\xed\xa0\x80"]', b"9" * 5000, b'"\\t7"'])
@pytest.mark.parametrize(
    "field", ["name", "cat", "pid", "tid", "ts", "args.stream", "args.grid", "args.Bytes", "args.name"]
)
@pytest.mark.parametrize("phase", ["X", "i", "M", "s"])
def test_both_parsers_read_the_same_of_values_that_cannot_be_decoded(phase, field, value):
    outer, _, inner = field.encode().partition(b".")
    member = b'"%b":{"%b":%b}' % (outer, inner, value) if inner else b'"%b":%b' % (outer, value)
    sound = b'{"ph":"X","cat":"kernel","name":"a","pid":1,"tid":1,"ts":5,"dur":1,"args":{"stream":7}}'
    assert_both_read_the_same(b'[%b,{"ph":"%b",%b},%b]' % (sound, phase.encode(), member, sound))


@pytest.mark.parametrize(
    "events", [[], [{"ph": "i"}], [{"ph": "s", "id": 1}] * 3, [{"ph": "M", "name": "thread_name"}]]
)
def test_both_parsers_read_the_same_of_events_without_work(events):
    assert_both_read_the_same(json.dumps(events).encode())
    assert_both_read_the_same(json.dumps({"traceEvents": events}).encode())


@pytest.mark.parametrize(
    "ending",
    [
        '],"baseTimeNanoseconds":7}',
        "]}",
        "]",
        '],"traceEvents":[]}',
        '],"trace\\u0045vents":[]}',
        "]} x",
        ",]}",
        "",
        '],"a":01}',
    ],
)
def test_both_parsers_read_the_same_of_any_ending(ending):
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":5,"dur":1}'
    assert_both_read_the_same(f'{{"traceEvents":[{event}{ending}'.encode())
    assert_both_read_the_same(f"[{event}{ending}".encode())


# No input makes it fail.


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_declined(text, is_last):
    assert parsed(text, is_last=is_last) is None


@examples(300)
@given(st.integers(0, 2**32), st.booleans())
def test_damaged_events_are_parsed_or_declined(seed, is_last):
    dice = random.Random(seed)
    text = b",".join(json.dumps(event).encode() for event in list(fuzz.events())[:8])
    for _ in range(dice.choice((1, 2, 5))):
        text = dice.choice(fuzz.MAKERS[:8])(dice, text)
    result = parsed(text, is_last=is_last)
    assert result is None or 0 <= result[0] <= text.count(b'"ph"')


def test_memory_for_too_few_rows_is_reported_and_the_parser_of_chunks_gets_more():
    events = list(fuzz.events())
    text = b",".join(json.dumps(event).encode() for event in events)
    assert parsed(text, columns=8 * 8 * 3) is True
    assert parsed(text, columns=0) is True
    rows = parsed(text)[0]
    assert rows == sum(event["ph"] in "XMi" for event in events)
    text = b",".join([text] * 100)
    assert_both_read_the_same(b"[%b]" % text)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((b"{}", 0, 3, bytearray(), b"", False, False), ValueError),
        ((b"{}", -1, 2, bytearray(), b"", False, False), ValueError),
        ((b"{}", 2, 1, bytearray(), b"", False, False), ValueError),
        (("{}", 0, 2, bytearray(), b"", False, False), TypeError),
        ((memoryview(b"{}"), 0, 2, bytearray(), b"", False, False), TypeError),
        ((b"{}", 0, 2, b"", b"", False, False), TypeError),
        ((b"{}", 0, 2, bytearray(), b"c0\x05abc", False, False), ValueError),
        ((b"{}", 0, 2, bytearray(), b"c9\x01a", False, False), ValueError),
        ((b"{}", 0, 2, bytearray(), b"c0\x01a" * 65, False, False), ValueError),
    ],
)
def test_wrong_arguments_are_errors(arguments, error):
    with pytest.raises(error):
        compiled._chunk_parser.parse(*arguments)


# Which one is used.


def test_a_variable_selects_the_decoder():
    with reading_with("python"):
        assert not compiled.uses_compiled_parser()
    with reading_with("compiled"):
        assert compiled.uses_compiled_parser()


def test_without_the_compiled_module_the_decoder_reads_the_same(tmp_path):
    text = json.dumps({"traceEvents": list(fuzz.events())}).encode()
    (tmp_path / "trace.json").write_bytes(text)
    script = (
        "import sys; sys.modules['gpulab.trace.reading._chunk_parser'] = None\n"
        "from gpulab import trace; from gpulab.trace.reading.compiled import uses_compiled_parser\n"
        "print(uses_compiled_parser(), len(trace.read(sys.argv[1]).event_rows))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "trace.json")]
    root = Path(__file__).resolve().parents[2]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", str(len(trace.read(text).event_rows))]


# On other compilers and processors.


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    """The parser, compiled without what only some compilers and processors have."""
    if os.name == "nt" or shutil.which("cc") is None:
        pytest.skip("needs a C compiler called cc")
    module = tmp_path_factory.mktemp("portable") / "_chunk_parser.abi3.so"
    source = ROOT / "gpulab" / "trace" / "parser" / "chunk_parser.c"
    linking = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    include = f"-I{sysconfig.get_path('include')}"
    options = ["-std=c99", "-O1", "-fPIC", "-shared", "-DGPULAB_PORTABLE", include, *linking, "-o", str(module)]
    subprocess.run(["cc", *options, str(source)], check=True, capture_output=True, timeout=120)
    spec = importlib.util.spec_from_file_location("_chunk_parser", module)
    parser = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(parser)
    return parser


@pytest.mark.parametrize("name", SHARED)
def test_the_portable_parser_reads_the_same_run_of_a_real_trace(recorded, name, portable, monkeypatch):
    monkeypatch.setattr(compiled, "_chunk_parser", portable)
    assert_both_read_the_same(recorded(f"{name}.json.gz"), shapes=True)


@pytest.mark.parametrize("indent", [None, 2])
def test_the_portable_parser_reads_the_same_of_odd_events(portable, monkeypatch, indent):
    monkeypatch.setattr(compiled, "_chunk_parser", portable)
    text = json.dumps({"traceEvents": list(fuzz.events())}, indent=indent).encode()
    assert compiled._chunk_parser is portable
    assert len(assert_both_read_the_same(text, shapes=True).event_rows)
