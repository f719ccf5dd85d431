"""The timeline in Python: what the front end is answered, what a notebook is sent, and what a living kernel does."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpulab.errors import GpulabError, RunError
from gpulab.views.front_end import shows_widgets
from gpulab.views.timeline import script as scripts
from gpulab.views.timeline.queries.answers import answer
from gpulab.views.timeline.scene.scene import Scene, scene
from gpulab.views.timeline.view import TimelineView, timeline
from tests.support.front_end.kernel import Kernel
from tests.support.runs.large_run import HOSTILE, RARE, judged, large_run

EVENTS = 24_000
SETUP = f"""
import json
from tests.support.runs.large_run import judged, large_run
from gpulab.views.timeline.scene.scene import scene
from gpulab.views.timeline.view import TimelineView
view = TimelineView(scene(judged(large_run({EVENTS}))))
"""


@pytest.fixture(scope="module")
def made() -> Scene:
    return scene(judged(large_run(EVENTS)))


@pytest.fixture
def view(made: Scene) -> TimelineView:
    return TimelineView(made)


@pytest.fixture(scope="module")
def living(shared_kernel: Callable[..., Kernel]) -> Kernel:
    return shared_kernel(SETUP)


def asked(made: Scene, **question: Any) -> tuple[dict[str, Any], list[bytes]]:
    return answer(lambda: made, {"kind": "ask", "id": "7", **question})


# What the front end asks.


def test_a_tile_comes_as_bytes_and_everything_else_as_json(made):
    content, [tile] = asked(made, what="tile", level=2, index=1)
    assert content == {"kind": "answer", "id": "7", "form": "tile"}
    assert tile == made.tile(2, 1)
    hit = made.search(RARE)["hits"][0]
    card = {"what": "card", "row": hit["row"], "box": hit["id"]}
    for question in ({"what": "header"}, {"what": "search", "text": "softmax"}, card):
        content, [told] = asked(made, **question)
        assert content["form"] == "json"
        assert isinstance(json.loads(told), dict)


def test_a_brush_is_the_scenes_own_ledger_whatever_end_comes_first(made):
    content, [told] = asked(made, what="brush", start_ns=90e6, end_ns=50e6)
    assert content["form"] == "json"
    assert json.loads(told) == json.loads(json.dumps(made.brush(50_000_000, 90_000_000)))


def test_what_does_not_exist_is_nothing_and_no_error(made):
    assert asked(made, what="tile", level=2, index=99)[0]["form"] == "nothing"
    assert asked(made, what="tile", level=-1, index=0)[0]["form"] == "nothing"
    assert asked(made, what="card", row=9_999, box=1)[0]["form"] == "nothing"


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
def test_a_question_that_makes_no_sense_is_answered_in_words(made, question):
    content, buffers = asked(made, **question)
    assert (content["form"], buffers) == ("error", [])
    assert "why:" in content["text"]
    assert len(content["text"]) < 400


def test_a_fault_of_gpulab_reaches_the_front_end_as_words_that_say_where():
    class Broken:
        span_ns = 10

        def search(self, text: str) -> Any:
            raise KeyError(text)

    content, _ = answer(Broken, {"what": "search", "text": "x"})
    assert content["form"] == "error"
    assert "KeyError: 'x' (test_widget.py:" in content["text"]


def test_answers_beside_the_bytes_stay_small(made):
    question = {"what": "search", "text": "", "id": "9" * 10_000}
    content, _ = asked(made, **question)
    assert len(json.dumps(content)) < 200


# What a notebook is sent.


def test_outside_a_notebook_it_is_a_picture_with_nothing_to_wait_for(view):
    assert not shows_widgets()
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "data-gpulab-timeline" not in bundle["text/html"]
    assert "data:image/svg+xml" in bundle["text/html"]
    assert "recorded on Made GPU, 2026-01-01" in bundle["text/plain"]


def test_told_to_live_it_marks_the_place_of_the_picture(made):
    view = TimelineView(made, live=True)
    html = view._repr_mimebundle_()["text/html"]
    key = re.match(r'<div data-gpulab-timeline="([0-9a-f]{32})">', html).group(1)
    assert key == view.widget().key
    assert "widget-view" not in json.dumps(view._repr_mimebundle_())
    view.widget().close()


def test_the_picture_and_its_words_are_of_the_window_in_view(view):
    view.go(0, view.scene.span_ns)
    assert repr(view).startswith("All of large, ")
    view.go(42_000_000, 84_000_000)
    assert "42 ms of large: from 42.00 to 84.00 ms" in repr(view)
    total = re.search(r"in all +([\d.]+) ", repr(view)).group(1)
    assert float(total) == 42.0


def test_python_goes_where_it_is_told_and_never_out_of_the_run(view):
    view.go(10, 5)
    start, end = view.window
    assert 0 <= start < end
    view.go(-1e18, 1e18)
    assert view.window == (0, view.scene.span_ns)
    view.show("no_workers")
    start, end = view.window
    assert any(start <= a and b <= end for a, b in view._header["findings"][0]["spans"])


def test_evidence_that_is_not_there_is_refused_with_what_there_is(view):
    with pytest.raises(RunError, match="found with a time: starving"):
        view.show("no_such_rule")


def test_a_brush_in_python_sums_to_the_window(view):
    told = view.brush(20e6, 61e6)
    assert sum(part["ns"] for part in told["sides"][0]["ledger"]) == 41_000_000


def test_what_is_no_run_has_no_timeline():
    with pytest.raises(RunError, match="A str has no timeline"):
        timeline("before")
    with pytest.raises(RunError, match="A dict has no timeline"):
        timeline(large_run(EVENTS), {})


def test_two_runs_are_shown_one_below_the_other(made):
    other = large_run(EVENTS, name="after")
    view = TimelineView(scene(made.diagnosis, other), live=False)
    text = repr(view)
    assert text.index("Run large") < text.index("Run after")
    assert view._repr_mimebundle_()["text/html"].count("<img") == 2


def test_a_hostile_name_is_text_in_the_picture(made):
    long = TimelineView(scene(judged(large_run(EVENTS, name='<img src=x onerror="alert(1)">'))))
    html = long._repr_mimebundle_()["text/html"]
    assert "<img src=x" not in html
    assert "&lt;img src=x" in html


def test_a_run_without_events_says_so_and_draws_nothing():
    from dataclasses import replace

    from gpulab.rules import diagnose
    from gpulab.tables import EVENTS as TABLE

    run = large_run(EVENTS)
    none = {"grid_rows": run.grid_rows.where([]), "shape_rows": run.shape_rows.where([])}
    bare = replace(run, event_rows=TABLE.empty(), **none)
    view = TimelineView(scene(diagnose(bare)))
    assert "no step of this run was recorded with events" in repr(view)
    assert "<img" not in view._repr_mimebundle_()["text/html"]


def test_what_is_selected_is_told_with_all_that_is_known(made):
    view = TimelineView(made, live=True)
    assert view.selected is None
    [hit] = made.search(RARE)["hits"]
    view.widget().selected = hit
    chosen = view.selected
    assert chosen["name"] == RARE
    assert chosen["dur_ns"] == hit["dur_ns"]
    assert chosen["side"] == "large"
    assert chosen["kind"] == "kernel"
    view.widget().selected = {"row": -1, "id": -1, "name": "nothing of ours", "start_ns": 0, "dur_ns": 1}
    assert view.selected["name"] == "nothing of ours"
    view.widget().close()


def test_it_is_saved_as_a_page_or_as_words(view, tmp_path):
    assert "<script>" in view.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert "recorded on Made GPU" in view.save(tmp_path / "x.txt").read_text(encoding="utf-8")
    with pytest.raises(GpulabError, match=r"x\.pdf"):
        view.save(tmp_path / "x.pdf")
    with pytest.raises(GpulabError, match="cannot be written"):
        view.save(tmp_path / "no" / "x.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.html", "x.txt"]


# The scripts.


def test_scripts_are_put_together_with_what_they_import_first():
    for name in ("widget.js", "page.js"):
        text = scripts.script(name)
        assert "import {" not in text
        assert text.count("export ") == text.count("export default") == (name == "widget.js")
        assert text.index("function mount(") < text.index("mount(", text.index("function mount(") + 20)


def test_no_name_is_used_twice_among_the_scripts():
    for name in ("widget.js", "page.js"):
        found = re.findall(r"^(?:async )?(?:const|let|class|function\*?) (\w+)", scripts.script(name), re.MULTILINE)
        assert len(found) > 10
        assert sorted({each for each in found if found.count(each) > 1}) == []


def test_no_script_or_style_can_end_the_element_it_stands_in():
    folder = Path(scripts.__file__).parent
    for path in [*folder.glob("*.js"), *folder.glob("*.css")]:
        text = path.read_text(encoding="utf-8").lower()
        assert not re.search(r"</(script|style)|<!--", text), path.name


# In a living kernel.


def test_a_notebook_that_is_watched_gets_a_place_and_a_model(living):
    reply = living.run("view", notebook=True)
    html = next(m["content"]["data"]["text/html"] for m in reply.of("execute_result"))
    assert html.startswith('<div data-gpulab-timeline="')
    [model] = [m["content"]["data"]["state"] for m in reply.of("comm_open") if "key" in m["content"]["data"]["state"]]
    assert model["key"] in html
    assert len(html) < 150_000


def test_a_notebook_that_nobody_watches_gets_the_picture_alone(living):
    living.run(SETUP)
    reply = living.run("view")
    assert reply.of("comm_open") == []
    assert "data-gpulab-timeline" not in next(m["content"]["data"]["text/html"] for m in reply.of("execute_result"))


def test_the_living_model_answers_over_its_comm(living):
    living.run(SETUP)
    reply = living.run("view", notebook=True)
    [comm] = [m["content"]["comm_id"] for m in reply.of("comm_open") if "key" in m["content"]["data"]["state"]]
    content, buffers = exchanged(living, comm, {"kind": "ask", "id": "a1", "what": "tile", "level": 3, "index": 2})
    assert content == {"kind": "answer", "id": "a1", "form": "tile"}
    [tile] = buffers
    (length,) = struct.unpack_from("<I", tile)
    assert json.loads(bytes(tile[4 : 4 + length]))["index"] == 2
    content, buffers = exchanged(living, comm, {"kind": "ask", "id": "a2", "what": "nonsense"})
    assert content["form"] == "error"


def exchanged(living: Kernel, comm: str, content: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Ask as the front end does, and wait for the answer."""
    session = living.client.session
    data = {"method": "custom", "content": content}
    living.client.shell_channel.send(session.msg("comm_msg", {"comm_id": comm, "data": data}))
    while True:
        message = living.client.get_iopub_msg(timeout=20)
        told = message["content"].get("data", {})
        if message["msg_type"] == "comm_msg" and told.get("method") == "custom":
            return told["content"], message["buffers"]


def test_hostile_names_do_not_break_an_answer(made):
    content, [told] = asked(made, what="search", text="alert(1)")
    assert content["form"] == "json"
    [name] = json.loads(told)["names"]
    assert name["name"][:20] == HOSTILE[:20]
    assert "\u202e" not in name["name"]
