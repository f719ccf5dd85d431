"""The live panel: what it says, and that it moves, can be stopped, and leaves nothing, in a live kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from gpulab.capture.live.snapshot import Live
from gpulab.views.live.html_panel import markup
from gpulab.views.live.panel_content import TRAIL, Glances
from gpulab.views.live.tiles import clock
from tests.support.front_end.kernel import Kernel, Reply
from tests.support.front_end.live_panel import Front, gpu, live_state

BUSY = """%%gpuprofile panel --level sensors
import time
end = time.monotonic() + 1.2
while time.monotonic() < end: sum(range(1000))
"""
ENDLESS = """%%gpuprofile panel --level sensors
import time
print('started', flush=True)
while True: sum(range(1000))
"""


def tiles(state: Live) -> dict[str, tuple[str, str]]:
    return {tile.label: (tile.value, tile.note) for tile in Glances("r").of(state).tiles}


# What it says.


def test_a_glance_tells_progress_waiting_and_load():
    glance = Glances("r").of(live_state())
    assert (glance.phase, glance.progress, glance.elapsed) == ("recording", ("step 1,234", "7.91 steps/s"), "1:15")
    assert glance.line == "at train (cell line 7)"
    assert tiles(live_state()) == {
        "waiting for data": ("41 %", "2 workers"),
        "CPU": ("1.5 of 2", "cores busy"),
        "memory": ("3.00 GiB", "of this process"),
    }


def test_a_gpu_gives_its_load_memory_and_power():
    shown = tiles(live_state(gpus=(gpu(),)))
    assert shown["GPU busy"] == ("34 %", "A GPU")
    assert shown["GPU memory"] == ("16.0 GiB", "of 64 GiB")
    assert shown["GPU power"] == ("312 W", "")


def test_many_gpus_get_one_tile_each():
    shown = tiles(live_state(gpus=tuple(gpu(util_frac=index / 8) for index in range(8))))
    assert [shown[f"GPU {index}"][0] for index in range(8)] == [f"{round(100 * index / 8)} %" for index in range(8)]


def test_what_is_not_measured_is_never_shown_as_zero():
    silent = gpu(util_frac=None, memory_used_bytes=None, memory_bytes=None, power_w=None)
    state = live_state(gpus=(silent,), waiting_frac=None, core_fracs=(), rss_bytes=None, steps_per_s=None, frame=None)
    shown = tiles(state)
    assert {value for value, _ in shown.values()} == {"not measured", "none"}
    assert shown["waiting for data"] == ("none", "no DataLoader so far")
    glance = Glances("r").of(state)
    assert all(tile.frac is None and set(tile.trail) <= {None} for tile in glance.tiles)
    assert not re.search(r"\b0\b", glance.sentence().replace("GPU 0", ""))


@pytest.mark.parametrize(
    ("steps", "rate", "said"),
    [
        (0, None, ("no step yet",)),
        (1, None, ("step 1",)),
        (9, 0.4, ("step 9", "2.5 s a step")),
        (9, 431.7, ("step 9", "432 steps/s")),
    ],
)
def test_progress_is_told_in_the_unit_that_reads_well(steps, rate, said):
    assert Glances("r").of(live_state(steps=steps, steps_per_s=rate)).progress == said


@pytest.mark.parametrize(("elapsed_s", "said"), [(0.4, "0:00"), (75, "1:15"), (3600, "1:00:00"), (90061, "25:01:01")])
def test_elapsed_time_reads_like_a_clock(elapsed_s, said):
    assert clock(elapsed_s) == said


def test_trails_are_bounded_and_end_with_now():
    glances = Glances("r")
    for step in range(3 * TRAIL):
        glance = glances.of(live_state(waiting_frac=step / (3 * TRAIL)))
    trail = glance.tiles[0].trail
    assert len(trail) == TRAIL
    assert list(trail) == sorted(trail)
    assert trail[-1] == 100


def test_when_the_cell_has_ended_the_last_values_stand():
    glances = Glances("r")
    last = glances.of(live_state())
    assert glances.processing().tiles == last.tiles
    assert glances.processing().phase == "reading the recording"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_panel_says_the_same_without_any_script_and_escapes_what_it_is_given():
    evil = "<script>alert(1)</script>"
    parser = _Tags()
    parser.feed(markup(Glances(evil).of(live_state(frame=evil, gpus=(gpu(name=evil),)))))
    assert set(parser.tags) == {"div", "span", "b", "code"}
    assert parser.attributes == {"style", "role", "aria-label", "aria-hidden"}
    assert parser.text.count(evil) == 3
    for words in ("41 %", "34 %", "312 W", "step 1,234", "to stop: the interrupt button"):
        assert words in parser.text


# In a kernel.


def states(reply: Reply) -> list[dict[str, Any]]:
    """What the widget was told, in order."""
    told = [message["content"]["data"].get("state", {}) for message in reply.of("comm_open", "comm_msg")]
    return [state for state in told if "now" in state or "stop" in state]


def moved(reply: Reply) -> int:
    """How many different times the panel showed."""
    return len({state["now"]["elapsed_s"] for state in states(reply) if state.get("now")})


def panel_comm(reply: Reply) -> str:
    """The comm of the panel, once it is open and shown."""
    opened = [m["content"] for m in reply.of("comm_open") if "_esm" in m["content"]["data"]["state"]]
    return opened[0]["comm_id"] if opened and reply.of("display_data") else ""


def saying(front: Front, *kinds: str) -> Callable[[Reply], None]:
    """Say these in turn, each after the panel moved since the one before."""
    left = list(kinds)
    at = [0]

    def during(reply: Reply) -> None:
        comm = panel_comm(reply)
        if comm and left and len(states(reply)) > at[0] + 1:
            at[0] = len(states(reply))
            front.say(comm, left.pop(0))

    return during


def test_the_panel_comes_before_anything_the_cell_shows(live):
    reply = live.run("%%gpuprofile panel --level sensors\nprint('first', flush=True)", notebook=True)
    assert [message["msg_type"] for message in reply.of("display_data", "stream")] == ["display_data", "stream"]


def test_the_widget_moves_while_the_main_thread_is_busy_and_the_report_takes_its_place(live):
    reply = live.run(BUSY, notebook=True)
    assert moved(reply) >= 4
    shown, final = reply.of("display_data"), reply.of("update_display_data")
    assert len(shown) == len(final) == 1
    assert "application/vnd.jupyter.widget-view+json" in shown[0]["content"]["data"]
    assert set(final[0]["content"]["data"]) == {"text/plain", "text/html"}
    assert shown[0]["content"]["transient"] == final[0]["content"]["transient"]
    assert shown[0]["content"]["data"]["text/plain"] == "gpulab live panel"


def test_every_comm_that_was_opened_is_closed(live):
    for cell in (BUSY, "%%gpuprofile panel\n1 / 0"):
        reply = live.run(cell, notebook=True)
        opened = [message["content"]["comm_id"] for message in reply.of("comm_open")]
        closed = [message["content"]["comm_id"] for message in reply.of("comm_close")]
        assert opened
        assert sorted(opened) == sorted(closed)


def test_without_an_answer_from_the_front_end_the_panel_names_the_interrupt_button(live):
    said = [state["stop"] for state in states(live.run(BUSY, notebook=True)) if "stop" in state]
    assert said == ["", "words", "done"]


def test_stop_ends_the_cell_with_a_partial_report(live, front):
    reply = live.run(ENDLESS, notebook=True, during=saying(front, "hello", "stop"))
    assert reply.content["ename"] == "KeyboardInterrupt"
    assert len(reply.errors) == 1
    assert [state["stop"] for state in states(reply) if state.get("stop")][-1] == "done"
    assert live.value("gpulab.runs['panel'].outcome") == "KeyboardInterrupt"
    assert live.value("1") == 1, "one press interrupts one cell"


def test_stop_works_while_the_cell_sleeps(live, front):
    cell = "%%gpuprofile panel --level sensors\nimport time\ntime.sleep(600)"
    reply = live.run(cell, notebook=True, during=saying(front, "hello", "stop"))
    assert reply.content["ename"] == "KeyboardInterrupt"


def test_stop_works_under_another_magic(live, front):
    reply = live.run("%%time\n" + ENDLESS, notebook=True, during=saying(front, "hello", "stop"))
    assert reply.content["ename"] == "KeyboardInterrupt"
    assert len(reply.errors) == 1


def test_only_a_panel_that_was_heard_can_stop(live, front):
    reply = live.run(BUSY, notebook=True, during=saying(front, "stop"))
    assert reply.status == "ok"


def test_a_message_that_waited_for_the_cell_stops_nothing(live):
    late = Front(live, subshell=False)
    reply = live.run(BUSY, notebook=True, during=saying(late, "hello", "stop"))
    assert reply.status == "ok"
    assert "button" not in [state.get("stop") for state in states(reply)]
    assert live.run("1 + 1").value == "2"


def test_a_figure_being_drawn_survives_a_message_of_the_front_end(live, front):
    cell = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    reply = live.run(
        BUSY.replace("import time\n", "import time\n" + cell), notebook=True, during=saying(front, "hello")
    )
    assert sum("image/png" in bundle for bundle in reply.bundles) == 1


def test_without_anywidget_plain_html_moves_instead(live):
    live.run("blocked = {n: sys.modules.pop(n, None) for n in ('anywidget', 'gpulab.views.live.widget')}")
    live.run("sys.modules['anywidget'] = None")
    try:
        _moves_as_html(live)
    finally:
        live.run("sys.modules.update({n: m for n, m in blocked.items() if m}) if blocked['anywidget'] else None")
        live.run("sys.modules['anywidget'] or sys.modules.pop('anywidget')")
    assert moved(live.run(BUSY, notebook=True)) >= 4


def test_in_vs_code_plain_html_moves_instead(live):
    live.run("__vsc_ipynb_file__ = 'x.ipynb'")
    try:
        _moves_as_html(live)
    finally:
        live.run("del __vsc_ipynb_file__")


def _moves_as_html(live: Kernel) -> None:
    reply = live.run(BUSY, notebook=True)
    assert reply.of("comm_open") == []
    updates = [message["content"]["data"] for message in reply.of("update_display_data")]
    assert len({bundle["text/html"] for bundle in updates}) >= 4
    assert "interrupt button" in updates[0]["text/html"]
    assert "interrupt button" not in updates[-1]["text/html"], "the report stands in its place"


CLEARING = {
    "draws and waits to clear": "display({'text/plain': f'curve {i}'}, raw=True)\n    clear_output(wait=True)",
    "waits to clear and draws": "clear_output(wait=True)\n    display({'text/plain': f'curve {i}'}, raw=True)",
    "clears and draws": "clear_output()\n    display({'text/plain': f'curve {i}'}, raw=True)",
    "clears and prints": "clear_output()\n    print(f'curve {i}', flush=True)",
    "waits to clear and prints": "clear_output(wait=True)\n    print(f'curve {i}', flush=True)",
    "clears in the end": "print(i)\nclear_output()\nprint('curve 3')",
}


@pytest.mark.parametrize("body", CLEARING.values(), ids=CLEARING)
@pytest.mark.parametrize("widget", [True, False])
def test_a_cell_that_clears_its_output_keeps_its_last_one_and_gets_the_report(live, body, widget):
    cell = "%%gpuprofile panel --level sensors\nimport time\nfrom IPython.display import clear_output\n"
    cell += f"for i in range(4):\n    {body}\n".replace("\n    ", "\n    time.sleep(0.15); ", 1)
    live.run("" if widget else "__vsc_ipynb_file__ = 'x.ipynb'")
    try:
        shown = [text.strip() for _, text in live.run(cell, notebook=True).outputs]
    finally:
        live.run("" if widget else "del __vsc_ipynb_file__")
    assert shown.count("curve 3") == 1, shown
    [report] = [text for text in shown if text not in ("curve 3", "3")]
    assert "panel" in report
    assert "live panel" not in report


@pytest.mark.parametrize("how", ["headless", "console", "--no-live", "%config"])
def test_where_nobody_could_see_it_nothing_moves_and_the_report_comes_in_the_end(live, how):
    cell = BUSY.replace("panel ", "panel --no-live ") if how == "--no-live" else BUSY
    if how == "%config":
        live.run("%config GpuProfileMagics.live = False")
    try:
        if how == "console":  # somebody types, in no notebook
            request = live.client.execute(cell, allow_stdin=True)
            reply = live.end(request)
        else:
            reply = live.run(cell, notebook=how != "headless")
    finally:
        live.run("%config GpuProfileMagics.live = True")
    assert [message["msg_type"] for message in reply.messages] == ["execute_input", "display_data"]
    assert set(reply.bundles[0]) == {"text/plain", "text/html"}


def test_a_fault_in_the_panel_does_not_reach_cell_or_report(live):
    live.run(
        "from gpulab.views.live.panel_content import Glances\nkept = Glances.of\nGlances.of = lambda self, live: 1 / 0"
    )
    try:
        reply = live.run(BUSY + "5", notebook=True)
    finally:
        live.run("Glances.of = kept")
    assert (reply.status, reply.value) == ("ok", "5")
    assert reply.stderr == ""
    assert "panel" in reply.of("update_display_data")[-1]["content"]["data"]["text/plain"]
