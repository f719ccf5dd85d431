"""Names are data: whatever a kernel, operator, run, thread, loader, line or GPU is called, every view shows it as text.

Two runs are alike but for their names, which are harmless in the one and hostile in the other. The HTML of both must
have the same kinds of elements with the same attributes: nothing can have come from a name.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.dom.minidom import parseString

import numpy as np
import pytest

import gpulab
from gpulab.comparison import compare
from gpulab.rules import diagnose
from gpulab.run import Failure, Gap, Gpu, Loader, Machine, Model, Optimizer, Source
from gpulab.tables import HOLDERS, HOST_SAMPLES, MEMORY, EventKind
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.info import info
from gpulab.views.perfetto import to_perfetto
from gpulab.views.report.report import report
from gpulab.views.whatif.whatif import whatif
from tests.support.runs.made_runs import (
    MS,
    event,
    gpu_samples,
    host_sample,
    launched_kernel,
    loader_call,
    on_gpu,
    stepped,
)

HACK = "window.hacked = 1"
HOSTILE = {
    "a script": f"<script>{HACK}</script>",
    "a handler": f'<img src=x onerror="{HACK}">',
    "the end of an attribute": f"\"><svg onload={HACK}>'><svg onload={HACK}>",
    "a quoted attribute": f'" autofocus onfocus="{HACK}" \' autofocus onfocus=\'{HACK}',
    "the end of a script": f"</script><script>{HACK}</script><!--<script>",
    "the end of a style": f"</style></textarea></title><script>{HACK}</script>",
    "a comment and entities": f"--><!-- ]]> &lt;script&gt;{HACK}&#60;/script&#62; &amp;",
    "an address": f"[x](javascript:{HACK}) <javascript:{HACK}> data:text/html,<script>{HACK}</script>",
    "Markdown": "`|**b**_i_~s~\n# h\n\n---\n| a | b |\n|---|---|\n<details open>",
    "right to left": "\u202eover\u202c \u2066isolate\u2069 \u200b\u200f\ufeff",
    "NUL and controls": "a\x00b\x08c\x7fd\x85e\r\nf\u2028g\u2029h",
    "an escape sequence": "\x1b[2J\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x9b1m",
    "mathematics and templates": "$\\frac{1}{0}$ ${x} {0} {x!r} %s %(x)s {{7*7}} \\N{DIGIT ONE} \\\\",
    "JSON": '"},{"ph":"X","name":"x","args":{"a":"\\u0000',
    "half a letter": "\ud800 and \udfff",
    "10 kB": "k" * 10_000 + f"<script>{HACK}</script>",
    "nothing": "",
    "spaces": "   \t  ",
}
ALL = " ".join(HOSTILE.values()).replace("k" * 10_000, "kk")


def names(hostile: bool) -> list[str]:
    return list(HOSTILE.values()) if hostile else [f"harmless {number}" for number in range(len(HOSTILE))]


def one(hostile: bool, harmless: str) -> str:
    return ALL if hostile else harmless


def step(hostile: bool, at: float) -> list[dict[str, Any]]:
    found = [loader_call(at, 40)]
    for number, name in enumerate(names(hostile)):
        begin = at + 41 + 3 * number
        key = round(100 * at) + number + 1
        found += launched_kernel(name, begin, 1.5, number=key, op=name, grid=64, shapes=[[64, 64]], dtypes=["float"])
        found += [event(EventKind.ANNOTATION, name, begin, 2), event(EventKind.PYTHON, f"{name}(1): {name}", begin, 2)]
        found.append(event(EventKind.OP, name, begin, 1, thread=1))
    found.append(event(EventKind.MEMCPY, f"Memcpy HtoD (Pageable -> Device) {one(hostile, '')}", at + 97, 2, size=1000))
    return found


def hostile_run(hostile: bool) -> Any:
    word = one(hostile, "harmless")
    loader = Loader(workers=0, batch_size=32, dataset=word, name=word, dataset_name=word, location=word)
    machine = Machine(
        gpus=(Gpu(index=0, name=word, uuid=word, compute_capability="9.0", multiprocessors=132, memory_bytes=2**36),),
        driver=word, torch=word, python=word, platform=word, cpu=word, container=word, cuda_visible_devices=word,
        cores_allowed=8.0, gaps=(Gap(what=word, why=word, fix=word),),
    )  # fmt: skip
    run = on_gpu(stepped(lambda at: step(hostile, at)), machine=machine, loaders=[loader], name=word)
    seen = [
        host_sample(at, cpu_frac=0.5, main_cpu_s=at / 1e3, frame=f"{word} ({word}:7)", called=word, others_frame=word)
        for at in range(0, 600, 25)
    ]
    memory = [[at * MS, 0, 0, 1000, 7, 1000, 2000] for at in range(0, 600, 50)]
    held = [[f"{name} in {name}()", "variable", 0, 2**30, 3, name] for name in names(hostile)]
    samples = gpu_samples({"util_frac": 0.5, "power_w": 300.0, "memory_used_bytes": 2.0**33})
    return dataclasses.replace(
        run,
        source=Source(how="recorded", device=word, date=word),
        threads=(word, f"{word} 2"),
        outcome=word,
        failure=Failure(message=word, device=0, phase=word, where=word, capacity_bytes=2**36),
        models=(Model(kind=word, name=word, dtypes=(word,), device=word),),
        optimizers=(Optimizer(kind=word, name=word, tensors=100, device=word),),
        facts={word: word},
        host_rows=HOST_SAMPLES.rows({c.name: [each[c.name] for each in seen] for c in HOST_SAMPLES.columns}),
        gpu_rows=samples,
        memory_rows=MEMORY.of(memory),
        holder_rows=HOLDERS.of(held),
        recording=dataclasses.replace(
            run.recording, options=(word,), lost={word: 1}, left_out=(Gap(what=word, why=word, fix=word),)
        ),
    )


class Structure(HTMLParser):
    """The elements of some HTML with the names of their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "formaction", "srcdoc")]

    def handle_data(self, data: str) -> None:
        self.text += data


def shape(html: str) -> list[tuple[str, ...]]:
    """Which elements there are, with which attributes, depends on no name; how many rows a table has may."""
    return sorted(set(Structure(html).elements))


@pytest.fixture(scope="module")
def runs() -> tuple[Any, Any]:
    return hostile_run(True), hostile_run(False)


def views(run: Any) -> Iterator[tuple[str, Any]]:
    yield "report", report(run)
    yield "comparison", comparison_view(compare(run, dataclasses.replace(run, name=f"{run.name} 2")))
    yield "what-if", whatif(run)
    yield "info", info(run.machine)


@pytest.fixture(scope="module")
def both(runs: tuple[Any, Any]) -> dict[str, tuple[Any, Any]]:
    hostile, harmless = map(dict, map(views, runs))
    return {name: (hostile[name], harmless[name]) for name in hostile}


def unseen(text: str) -> set[str]:
    """What moves the cursor, reorders a line or is not seen."""
    return {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} - {"\n"}


VIEWS = ("report", "comparison", "what-if", "info")


@pytest.mark.parametrize("name", VIEWS)
def test_no_element_and_no_attribute_comes_from_a_name(both, name):
    hostile, harmless = both[name]
    for form in (lambda view: view._repr_html_(), lambda view: view.html_page()):
        assert shape(form(hostile)) == shape(form(harmless))
        assert all(link.startswith("data:image/svg+xml;base64,") for link in Structure(form(hostile)).links)


@pytest.mark.parametrize("name", VIEWS)
def test_a_name_cannot_reorder_a_line_or_move_the_cursor(both, name, tmp_path):
    view, _ = both[name]
    markdown = view.save(tmp_path / "view.md").read_text(encoding="utf-8")
    for text in (repr(view), Structure(view._repr_html_()).text, markdown):
        assert unseen(text) == set()


def test_what_a_thing_is_called_is_still_read(both):
    text = Structure(both["report"][0]._repr_html_()).text
    assert f"<script>{HACK}</script>" in text
    assert "\\x1b[2J" in text
    assert "\\u202e" in text


@pytest.mark.parametrize("name", VIEWS)
def test_in_markdown_a_name_is_no_markup(both, name, tmp_path):
    view, _ = both[name]
    markdown = view.save(tmp_path / "view.md").read_text(encoding="utf-8")
    prose = [line for line in markdown.splitlines() if not line.startswith("    ")]
    assert not [line for line in prose if "<" in line.replace("&lt;", "") or re.search(r"(?<!\\)(\[x\]|\*\*b|`)", line)]


def test_pictures_hold_no_text_at_all(both):
    html = both["report"][0]._repr_html_()
    drawings = [base64.b64decode(link.partition(",")[2]).decode() for link in Structure(html).links]
    assert len(drawings) >= 2
    for drawing in drawings:
        root = parseString(drawing).documentElement
        assert {node.tagName for node in root.getElementsByTagName("*")} <= {"g", "path"}
        assert not "".join(node.data for node in _texts(root)).strip()


def _texts(node: Any) -> Iterator[Any]:
    for child in node.childNodes:
        if child.nodeType == child.TEXT_NODE:
            yield child
        yield from _texts(child)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_such_a_run_is_not_much_larger(both, name):
    hostile, harmless = both[name]
    assert len(hostile._repr_html_()) < 30 * len(harmless._repr_html_()) + 100_000
    assert len(hostile._repr_html_()) < 600_000


@pytest.mark.night
def test_charts_show_names_as_text(runs):
    from gpulab.views.charts.catalogue import CHARTS

    hostile, harmless = runs
    for draw in CHARTS:
        drawn = draw(hostile)
        assert drawn.png().startswith(b"\x89PNG"), draw.__name__
        assert shape(drawn._repr_html_()) == shape(draw(harmless)._repr_html_()), draw.__name__
        text = Structure(drawn._repr_html_()).text
        assert unseen(text) | unseen(drawn.alt) == set(), draw.__name__


def test_the_picture_of_a_report_is_drawn(runs):
    from gpulab.views.charts.report_png import report_png

    assert report_png(diagnose(runs[0])).startswith(b"\x89PNG")


def test_what_a_timeline_is_told_has_names_that_can_be_shown(runs):
    from gpulab.views.timeline.scene.scene import build_scene

    seen = build_scene(diagnose(runs[0]))
    told = [seen.header(), seen.search("script"), seen.brush(0, 100 * MS), seen.search("")]
    heads = []
    for level in range(4):
        blob = seen.tile(level, 0)
        length = int.from_bytes(blob[:4], "little")
        heads.append(json.loads(blob[4 : 4 + length]))
    assert unseen("".join(_strings([told, heads]))) == set()
    assert max(len(name) for head in heads for name in head["names"]) <= 200
    assert any("<script>" in name for head in heads for name in head["names"]), "as data: the page writes it as text"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def test_a_page_with_the_timeline_has_no_element_from_a_name(runs, tmp_path):
    hostile, harmless = (
        report(run).save(tmp_path / f"{n}.html").read_text(encoding="utf-8") for n, run in enumerate(runs)
    )
    assert shape(hostile) == shape(harmless)
    assert hostile.count("<script") == harmless.count("<script")
    assert hostile.count("</script") == harmless.count("</script")


def test_in_a_trace_for_perfetto_every_name_is_the_one_it_was(runs, tmp_path):
    path = to_perfetto(runs[0], tmp_path / "out.json")
    events = json.loads(path.read_text(encoding="ascii"))["traceEvents"]
    called = {each["name"] for each in events if each.get("cat") == "kernel"}
    expected = {name.encode("utf-8", "replace").decode() for name in HOSTILE.values()}
    assert called == expected
    assert {"x"} & {each["name"] for each in events} == set(), "nothing was smuggled in"
    again = gpulab.load(path)
    assert len(again.event_rows) == len(runs[0].event_rows)
    notes = [text for each in events if each.get("cat") == "Trace" for text in _strings(each)]
    assert unseen("".join(notes)) == set(), "what gpulab says itself is clean"


# In a browser.


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    opened = chromium.new_page(viewport={"width": 900, "height": 800})
    yield opened
    opened.close()


@pytest.mark.full
@pytest.mark.browser
def test_in_a_browser_nothing_runs_and_nothing_is_asked_for(both, runs, page, tmp_path):
    heard: list[str] = []
    page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: heard.append(asked.url) if asked.url.startswith(("http", "ws")) else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    files = [view.save(tmp_path / f"{name}.html") for name, (view, _) in both.items()]
    files.append(_charts(runs[0], tmp_path / "charts.html"))
    for path in files:
        page.goto(path.as_uri())
        page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
        page.wait_for_timeout(100)
        assert page.evaluate("window.hacked") is None, path.name
        assert not page.evaluate(
            "[...document.querySelectorAll('*')].some(e => [...e.attributes].some(a => /^on/.test(a.name)))"
        )
    assert heard == []


def _charts(run: Any, path: Path) -> Path:
    from gpulab.views.charts.catalogue import CHARTS

    path.write_text("<!doctype html>" + "".join(draw(run)._repr_html_() for draw in CHARTS), encoding="utf-8")
    return path


def test_the_table_of_hostile_names_is_hostile():
    assert {"Cc", "Cf", "Cs", "Zl", "Zp"} <= {unicodedata.category(each) for each in ALL}
    assert max(map(len, HOSTILE.values())) > 10_000
    assert np.sum(["<script>" in name for name in HOSTILE.values()]) >= 4
    assert "script" in {tag for tag, *_ in Structure(HOSTILE["a script"]).elements}, "unescaped it would be one"
