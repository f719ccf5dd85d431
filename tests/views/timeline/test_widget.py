"""The timeline in Python: answers to the front end, output in a notebook, and the widget in a running kernel."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from gpulab.errors import GpulabError, RunError
from gpulab.views.front_end import shows_widgets
from gpulab.views.timeline import script as scripts
from gpulab.views.timeline.queries.requests import answer_question
from gpulab.views.timeline.scene.scene import Scene, build_scene
from gpulab.views.timeline.view import TimelineView, timeline
from tests.support.front_end.kernel import Kernel
from tests.support.runs.large_run import HOSTILE, RARE, diagnosis_of, large_run

EVENTS = 24_000
SETUP = f"""
import json
from tests.support.runs.large_run import diagnosis_of, large_run
from {build_scene.__module__} import {build_scene.__name__} as build
from {TimelineView.__module__} import {TimelineView.__name__}
view = {TimelineView.__name__}(build(diagnosis_of(large_run({EVENTS}))))
"""


@pytest.fixture(scope="module")
def large_scene() -> Scene:
    return build_scene(diagnosis_of(large_run(EVENTS)))


@pytest.fixture
def view(large_scene: Scene) -> TimelineView:
    return TimelineView(large_scene)


@pytest.fixture(scope="module")
def kernel(shared_kernel: Callable[..., Kernel]) -> Kernel:
    return shared_kernel(SETUP)


def ask_scene(run_scene: Scene, **question: Any) -> tuple[dict[str, Any], list[bytes]]:
    return answer_question(lambda: run_scene, {"kind": "ask", "id": "7", **question})


# Questions of the front end.


def test_a_tile_is_answered_as_bytes_and_everything_else_as_json(large_scene):
    content, [tile] = ask_scene(large_scene, what="tile", level=2, index=1)
    assert content == {"kind": "answer", "id": "7", "form": "tile"}
    assert tile == large_scene.tile(2, 1)
    hit = large_scene.search(RARE)["hits"][0]
    card = {"what": "card", "row": hit["row"], "box": hit["id"]}
    for question in ({"what": "header"}, {"what": "search", "text": "softmax"}, card):
        content, [text] = ask_scene(large_scene, **question)
        assert content["form"] == "json"
        assert isinstance(json.loads(text), dict)


def test_a_brush_accepts_its_ends_in_any_order(large_scene):
    content, [text] = ask_scene(large_scene, what="brush", start_ns=90e6, end_ns=50e6)
    assert content["form"] == "json"
    assert json.loads(text) == json.loads(json.dumps(large_scene.brush(50_000_000, 90_000_000)))


def test_a_tile_or_box_that_does_not_exist_is_answered_with_nothing(large_scene):
    assert ask_scene(large_scene, what="tile", level=2, index=99)[0]["form"] == "nothing"
    assert ask_scene(large_scene, what="tile", level=-1, index=0)[0]["form"] == "nothing"
    assert ask_scene(large_scene, what="card", row=9_999, box=1)[0]["form"] == "nothing"


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"what": "shell"},
        {"what": "tile", "level": "0; drop", "index": 0},
        {"what": "tile", "level": float("nan"), "index": 0},
        {"what": "tile", "level": True, "index": 0},
        {"what": "brush", "start_ns": 1e300, "end_ns": 0},
        {"what": "card", "row": None, "box": []},
    ],
)
def test_an_invalid_question_is_answered_with_an_error_message(large_scene, question):
    content, buffers = ask_scene(large_scene, **question)
    assert (content["form"], buffers) == ("error", [])
    assert "why:" in content["text"]
    assert len(content["text"]) < 400


def test_an_internal_error_reaches_the_front_end_with_its_source_line():
    class Broken:
        span_ns = 10

        def search(self, text: str) -> Any:
            raise KeyError(text)

    content, _ = answer_question(Broken, {"what": "search", "text": "x"})
    assert content["form"] == "error"
    assert "KeyError: 'x' (test_widget.py:" in content["text"]


def test_the_content_of_an_answer_stays_small(large_scene):
    question = {"what": "search", "text": "", "id": "9" * 10_000}
    content, _ = ask_scene(large_scene, **question)
    assert len(json.dumps(content)) < 200


# Output in a notebook.


def test_outside_a_notebook_it_is_a_static_picture(view):
    assert not shows_widgets()
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "data-gpulab-timeline" not in bundle["text/html"]
    assert "data:image/svg+xml" in bundle["text/html"]
    assert "recorded on Made GPU, 2026-01-01" in bundle["text/plain"]


def test_a_live_timeline_marks_the_element_of_the_picture(large_scene):
    view = TimelineView(large_scene, live=True)
    html = view._repr_mimebundle_()["text/html"]
    key = re.match(r'<div data-gpulab-timeline="([0-9a-f]{32})">', html).group(1)
    assert key == view.widget().key
    assert "widget-view" not in json.dumps(view._repr_mimebundle_())
    view.widget().close()


def test_picture_and_text_show_the_visible_window(view):
    view.go(0, view.scene.span_ns)
    assert "42.00" not in repr(view).splitlines()[0]
    view.go(42_000_000, 84_000_000)
    for number in ("42 ms", "42.00", "84.00 ms"):
        assert number in repr(view).splitlines()[0]
    total = re.search(r"total +([\d.]+) ", repr(view)).group(1)
    assert float(total) == 42.0


def test_python_can_move_the_window_but_not_out_of_the_run(view):
    view.go(10, 5)
    start, end = view.window
    assert 0 <= start < end
    view.go(-1e18, 1e18)
    assert view.window == (0, view.scene.span_ns)
    view.show("no_workers")
    start, end = view.window
    assert any(start <= a and b <= end for a, b in view._header["findings"][0]["spans"])


def test_a_finding_without_evidence_is_refused_with_the_findings_that_have_some(view):
    with pytest.raises(RunError, match=r"'no_such_rule'[\s\S]*no_workers"):
        view.show("no_such_rule")


def test_a_brush_in_python_sums_to_the_window(view):
    contents = view.brush(20e6, 61e6)
    assert sum(part["ns"] for part in contents["sides"][0]["ledger"]) == 41_000_000


def test_an_object_that_is_no_run_has_no_timeline():
    with pytest.raises(RunError, match=r"\bint\b"):
        timeline(3)
    with pytest.raises(RunError, match=r"\bdict\b"):
        timeline(large_run(EVENTS), {})


def test_two_runs_are_shown_one_below_the_other(large_scene):
    other = large_run(EVENTS, name="after")
    view = TimelineView(build_scene(large_scene.diagnosis, other), live=False)
    text = repr(view)
    assert text.index('Run "large"') < text.index('Run "after"')
    assert view._repr_mimebundle_()["text/html"].count("<img") == 2


def test_a_hostile_name_is_text_in_the_picture():
    view = TimelineView(build_scene(diagnosis_of(large_run(EVENTS, name='<img src=x onerror="alert(1)">'))))
    html = view._repr_mimebundle_()["text/html"]
    assert "<img src=x" not in html
    assert "&lt;img src=x" in html


def test_a_run_without_events_has_no_picture():
    from dataclasses import replace

    from gpulab.rules import diagnose
    from gpulab.tables import EVENTS as TABLE

    run = large_run(EVENTS)
    empty_tables = {"grid_rows": run.grid_rows.select([]), "shape_rows": run.shape_rows.select([])}
    without_events = replace(run, event_rows=TABLE.empty(), **empty_tables)
    view = TimelineView(build_scene(diagnose(without_events)))
    assert "no events" in repr(view)
    assert "<img" not in view._repr_mimebundle_()["text/html"]


def test_python_can_read_the_details_of_the_selection(large_scene):
    view = TimelineView(large_scene, live=True)
    assert view.selected is None
    [hit] = large_scene.search(RARE)["hits"]
    view.widget().selected = hit
    selection = view.selected
    assert selection["name"] == RARE
    assert selection["dur_ns"] == hit["dur_ns"]
    assert selection["side"] == "large"
    assert selection["kind"] == "kernel"
    view.widget().selected = {"row": -1, "id": -1, "name": "unknown", "start_ns": 0, "dur_ns": 1}
    assert view.selected["name"] == "unknown"
    view.widget().close()


def test_it_is_saved_as_a_page_or_as_text(view, tmp_path):
    assert "<script>" in view.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert "recorded on Made GPU" in view.save(tmp_path / "x.txt").read_text(encoding="utf-8")
    with pytest.raises(GpulabError, match=r"x\.pdf"):
        view.save(tmp_path / "x.pdf")
    with pytest.raises(GpulabError, match=r"x\.html"):
        view.save(tmp_path / "no" / "x.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.html", "x.txt"]


# The scripts.


def test_a_bundled_script_follows_the_files_that_it_imports():
    for name in ("widget.js", "page.js"):
        text = scripts.bundle_script(name)
        assert "import {" not in text
        assert text.count("export ") == text.count("export default") == (name == "widget.js")
        assert text.index("function mount(") < text.index("mount(", text.index("function mount(") + 20)


def test_top_level_names_of_a_bundled_script_are_unique():
    for name in ("widget.js", "page.js"):
        names = re.findall(
            r"^(?:async )?(?:const|let|class|function\*?) (\w+)", scripts.bundle_script(name), re.MULTILINE
        )
        assert len(names) > 10
        assert sorted({each for each in names if names.count(each) > 1}) == []


def test_no_script_or_style_can_end_its_html_element():
    paths = [path for path in scripts.SCRIPT_FOLDER.rglob("*") if path.suffix in (".js", ".css")]
    assert len(paths) > 10
    for path in paths:
        text = path.read_text(encoding="utf-8").lower()
        assert not re.search(r"</(script|style)|<!--", text), path.name


# In a running kernel.


def test_a_notebook_gets_an_html_element_and_a_model(kernel):
    reply = kernel.run("view", notebook=True)
    html = next(m["content"]["data"]["text/html"] for m in reply.of("execute_result"))
    assert html.startswith('<div data-gpulab-timeline="')
    [model] = [m["content"]["data"]["state"] for m in reply.of("comm_open") if "key" in m["content"]["data"]["state"]]
    assert model["key"] in html
    assert len(html) < 150_000


def test_without_a_front_end_the_output_is_the_picture_alone(kernel):
    kernel.run(SETUP)
    reply = kernel.run("view")
    assert reply.of("comm_open") == []
    assert "data-gpulab-timeline" not in next(m["content"]["data"]["text/html"] for m in reply.of("execute_result"))


def test_the_model_answers_over_its_comm(kernel):
    kernel.run(SETUP)
    reply = kernel.run("view", notebook=True)
    [comm] = [m["content"]["comm_id"] for m in reply.of("comm_open") if "key" in m["content"]["data"]["state"]]
    content, buffers = exchange(kernel, comm, {"kind": "ask", "id": "a1", "what": "tile", "level": 3, "index": 2})
    assert content == {"kind": "answer", "id": "a1", "form": "tile"}
    [tile] = buffers
    (length,) = struct.unpack_from("<I", tile)
    assert json.loads(bytes(tile[4 : 4 + length]))["index"] == 2
    content, buffers = exchange(kernel, comm, {"kind": "ask", "id": "a2", "what": "nonsense"})
    assert content["form"] == "error"


def exchange(kernel: Kernel, comm: str, content: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Send a question like the front end, and wait for the answer."""
    session = kernel.client.session
    data = {"method": "custom", "content": content}
    kernel.client.shell_channel.send(session.msg("comm_msg", {"comm_id": comm, "data": data}))
    while True:
        message = kernel.client.get_iopub_msg(timeout=20)
        data = message["content"].get("data", {})
        if message["msg_type"] == "comm_msg" and data.get("method") == "custom":
            return data["content"], message["buffers"]


def test_hostile_names_do_not_break_an_answer(large_scene):
    content, [text] = ask_scene(large_scene, what="search", text="alert(1)")
    assert content["form"] == "json"
    [name] = json.loads(text)["names"]
    assert name["name"][:20] == HOSTILE[:20]
    assert "\u202e" not in name["name"]
