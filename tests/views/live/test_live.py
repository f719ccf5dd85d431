"""The live panel: its content; and in a live kernel, its updates, its Stop button and its clean-up."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.views.live.html_panel import panel_html
from gpulab.views.live.panel_content import TRAIL_POINTS, PanelContentBuilder
from gpulab.views.live.tiles import INTERRUPT_HINT
from gpulab.wording import clock_time
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


def tiles(state: LiveSnapshot) -> dict[str, tuple[str, str]]:
    return {tile.label: (tile.value, tile.note) for tile in PanelContentBuilder("r").build(state).tiles}


# Content.


def test_the_panel_shows_progress_waiting_time_and_load():
    glance = PanelContentBuilder("r").build(live_state())
    assert (glance.phase, glance.progress, glance.elapsed) == ("recording", ("step 1,234", "7.91 steps/s"), "1:15")
    assert glance.line == "at train (cell line 7)"
    assert tiles(live_state()) == {
        "waiting for data": ("41 %", "2 workers"),
        "CPU": ("1.5 of 2", "cores busy"),
        "memory": ("3 GiB", "RSS of this process"),
    }


def test_a_gpu_has_tiles_for_utilisation_memory_and_power():
    tile_texts = tiles(live_state(gpus=(gpu(),)))
    assert tile_texts["GPU busy"] == ("34 %", "A GPU")
    assert tile_texts["GPU memory"] == ("16 GiB", "of 64 GiB")
    assert tile_texts["GPU power"] == ("312 W", "")


def test_with_many_gpus_each_gpu_has_one_tile():
    tile_texts = tiles(live_state(gpus=tuple(gpu(util_frac=index / 8) for index in range(8))))
    values = [tile_texts[f"GPU {index}"][0] for index in range(8)]
    assert values == [f"{round(100 * index / 8)} %" for index in range(8)]


def test_a_value_that_was_not_measured_is_never_shown_as_zero():
    silent = gpu(util_frac=None, memory_used_bytes=None, memory_bytes=None, power_w=None)
    state = live_state(gpus=(silent,), waiting_frac=None, core_fracs=(), rss_bytes=None, steps_per_s=None, frame=None)
    tile_texts = tiles(state)
    assert {value for value, _ in tile_texts.values()} == {"not measured", "none"}
    assert tile_texts["waiting for data"][0] == "none"
    glance = PanelContentBuilder("r").build(state)
    assert all(tile.frac is None and set(tile.trail) <= {None} for tile in glance.tiles)
    assert not re.search(r"\b0\b", glance.sentence().replace("GPU 0", ""))


@pytest.mark.parametrize(
    ("steps", "rate", "progress"),
    [
        (0, None, ("no step yet",)),
        (1, None, ("step 1",)),
        (9, 0.4, ("step 9", "2.5 s per step")),
        (9, 431.7, ("step 9", "432 steps/s")),
    ],
)
def test_slow_steps_are_shown_as_time_per_step_and_fast_ones_as_a_rate(steps, rate, progress):
    assert PanelContentBuilder("r").build(live_state(steps=steps, steps_per_s=rate)).progress == progress


@pytest.mark.parametrize(("elapsed_s", "text"), [(0.4, "0:00"), (75, "1:15"), (3600, "1:00:00"), (90061, "25:01:01")])
def test_elapsed_time_is_formatted_like_a_clock(elapsed_s, text):
    assert clock_time(elapsed_s) == text


def test_sparklines_have_a_maximum_length_and_end_with_the_newest_value():
    glances = PanelContentBuilder("r")
    for step in range(3 * TRAIL_POINTS):
        glance = glances.build(live_state(waiting_frac=step / (3 * TRAIL_POINTS)))
    trail = glance.tiles[0].trail
    assert len(trail) == TRAIL_POINTS
    assert list(trail) == sorted(trail)
    assert trail[-1] == 100


def test_the_last_values_stay_after_the_cell_has_ended():
    glances = PanelContentBuilder("r")
    last = glances.build(live_state())
    assert glances.processing().tiles == last.tiles
    assert glances.processing().phase != last.phase


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


def test_the_html_panel_shows_the_content_without_scripts_and_escapes_foreign_text():
    evil = "<script>alert(1)</script>"
    parser = _Tags()
    parser.feed(panel_html(PanelContentBuilder(evil).build(live_state(frame=evil, gpus=(gpu(name=evil),)))))
    assert set(parser.tags) == {"div", "span", "b", "code"}
    assert parser.attributes == {"style", "role", "aria-label", "aria-hidden"}
    assert parser.text.count(evil) == 3
    for text in ("41 %", "34 %", "312 W", "step 1,234", INTERRUPT_HINT):
        assert text in parser.text


# In a kernel.


def states(reply: Reply) -> list[dict[str, Any]]:
    """Return the states sent to the widget, in order."""
    updates = [message["content"]["data"].get("state", {}) for message in reply.of("comm_open", "comm_msg")]
    return [state for state in updates if "now" in state or "stop" in state]


def update_count(reply: Reply) -> int:
    """Count the different elapsed times that the panel showed."""
    return len({state["now"]["elapsed_s"] for state in states(reply) if state.get("now")})


def panel_comm(reply: Reply) -> str:
    """Return the comm id of the panel, once it is open and displayed."""
    comms = [m["content"] for m in reply.of("comm_open") if "_esm" in m["content"]["data"]["state"]]
    return comms[0]["comm_id"] if comms and reply.of("display_data") else ""


def sends(front: Front, *kinds: str) -> Callable[[Reply], None]:
    """Return a callback that sends these messages one by one, each after an update of the panel."""
    remaining = list(kinds)
    state_count = [0]

    def during(reply: Reply) -> None:
        comm = panel_comm(reply)
        if comm and remaining and len(states(reply)) > state_count[0] + 1:
            state_count[0] = len(states(reply))
            front.say(comm, remaining.pop(0))

    return during


def test_the_panel_is_displayed_before_the_output_of_the_cell(live):
    reply = live.run("%%gpuprofile panel --level sensors\nprint('first', flush=True)", notebook=True)
    assert [message["msg_type"] for message in reply.of("display_data", "stream")] == ["display_data", "stream"]


def test_the_widget_updates_while_the_main_thread_is_busy_and_the_report_replaces_it(live):
    reply = live.run(BUSY, notebook=True)
    assert update_count(reply) >= 4
    first, final = reply.of("display_data"), reply.of("update_display_data")
    assert len(first) == len(final) == 1
    assert "application/vnd.jupyter.widget-view+json" in first[0]["content"]["data"]
    assert set(final[0]["content"]["data"]) == {"text/plain", "text/html"}
    assert first[0]["content"]["transient"] == final[0]["content"]["transient"]
    assert first[0]["content"]["data"]["text/plain"] == "gpulab live panel"


def test_every_opened_comm_is_closed(live):
    for cell in (BUSY, "%%gpuprofile panel\n1 / 0"):
        reply = live.run(cell, notebook=True)
        opened = [message["content"]["comm_id"] for message in reply.of("comm_open")]
        closed = [message["content"]["comm_id"] for message in reply.of("comm_close")]
        assert opened
        assert sorted(opened) == sorted(closed)


def test_without_an_answer_from_the_front_end_the_panel_names_the_interrupt_button(live):
    stop_states = [state["stop"] for state in states(live.run(BUSY, notebook=True)) if "stop" in state]
    assert stop_states == ["", "words", "done"]


def test_stop_ends_the_cell_with_a_partial_report(live, front):
    reply = live.run(ENDLESS, notebook=True, during=sends(front, "hello", "stop"))
    assert reply.content["ename"] == "KeyboardInterrupt"
    assert len(reply.errors) == 1
    assert [state["stop"] for state in states(reply) if state.get("stop")][-1] == "done"
    assert live.value("gpulab.runs['panel'].outcome") == "KeyboardInterrupt"
    assert live.value("1") == 1, "one press interrupts one cell"


def test_stop_works_while_the_cell_sleeps(live, front):
    cell = "%%gpuprofile panel --level sensors\nimport time\ntime.sleep(600)"
    reply = live.run(cell, notebook=True, during=sends(front, "hello", "stop"))
    assert reply.content["ename"] == "KeyboardInterrupt"


def test_stop_works_under_another_magic(live, front):
    reply = live.run("%%time\n" + ENDLESS, notebook=True, during=sends(front, "hello", "stop"))
    assert reply.content["ename"] == "KeyboardInterrupt"
    assert len(reply.errors) == 1


def test_stop_is_ignored_before_the_kernel_has_received_hello(live, front):
    reply = live.run(BUSY, notebook=True, during=sends(front, "stop"))
    assert reply.status == "ok"


def test_a_stop_message_that_arrives_after_the_cell_has_no_effect(live):
    front_without_subshell = Front(live, subshell=False)
    reply = live.run(BUSY, notebook=True, during=sends(front_without_subshell, "hello", "stop"))
    assert reply.status == "ok"
    assert "button" not in [state.get("stop") for state in states(reply)]
    assert live.run("1 + 1").value == "2"


def test_an_open_figure_survives_a_message_from_the_front_end(live, front):
    cell = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    reply = live.run(BUSY.replace("import time\n", "import time\n" + cell), notebook=True, during=sends(front, "hello"))
    assert sum("image/png" in bundle for bundle in reply.bundles) == 1


def test_without_anywidget_the_panel_is_updated_as_plain_html(live):
    live.run("blocked = {n: sys.modules.pop(n, None) for n in ('anywidget', 'gpulab.views.live.widget')}")
    live.run("sys.modules['anywidget'] = None")
    try:
        _assert_html_updates(live)
    finally:
        live.run("sys.modules.update({n: m for n, m in blocked.items() if m}) if blocked['anywidget'] else None")
        live.run("sys.modules['anywidget'] or sys.modules.pop('anywidget')")
    assert update_count(live.run(BUSY, notebook=True)) >= 4


def test_in_vs_code_the_panel_is_updated_as_plain_html(live):
    live.run("__vsc_ipynb_file__ = 'x.ipynb'")
    try:
        _assert_html_updates(live)
    finally:
        live.run("del __vsc_ipynb_file__")


def _assert_html_updates(live: Kernel) -> None:
    reply = live.run(BUSY, notebook=True)
    assert reply.of("comm_open") == []
    updates = [message["content"]["data"] for message in reply.of("update_display_data")]
    assert len({bundle["text/html"] for bundle in updates}) >= 4
    assert INTERRUPT_HINT in updates[0]["text/html"]
    assert INTERRUPT_HINT not in updates[-1]["text/html"], "the report replaces the panel"


CLEARING = {
    "draws and waits to clear": "display({'text/plain': f'curve {i}'}, raw=True)\n    clear_output(wait=True)",
    "waits to clear and draws": "clear_output(wait=True)\n    display({'text/plain': f'curve {i}'}, raw=True)",
    "clears and draws": "clear_output()\n    display({'text/plain': f'curve {i}'}, raw=True)",
    "clears and prints": "clear_output()\n    print(f'curve {i}', flush=True)",
    "waits to clear and prints": "clear_output(wait=True)\n    print(f'curve {i}', flush=True)",
    "clears in the end": "print(i)\nclear_output()\nprint('curve 3')",
}


@pytest.mark.full
@pytest.mark.parametrize("body", CLEARING.values(), ids=CLEARING)
@pytest.mark.parametrize("widget", [True, False])
def test_a_cell_that_clears_its_output_keeps_its_last_one_and_gets_the_report(live, body, widget):
    cell = "%%gpuprofile panel --level sensors\nimport time\nfrom IPython.display import clear_output\n"
    cell += f"for i in range(4):\n    {body}\n".replace("\n    ", "\n    time.sleep(0.15); ", 1)
    live.run("" if widget else "__vsc_ipynb_file__ = 'x.ipynb'")
    try:
        outputs = [text.strip() for _, text in live.run(cell, notebook=True).outputs]
    finally:
        live.run("" if widget else "del __vsc_ipynb_file__")
    assert outputs.count("curve 3") == 1, outputs
    [report] = [text for text in outputs if text not in ("curve 3", "3")]
    assert "panel" in report
    assert "live panel" not in report


@pytest.mark.parametrize("setting", ["headless", "console", "--no-live", "%config"])
def test_without_a_viewer_only_the_report_is_displayed(live, setting):
    cell = BUSY.replace("panel ", "panel --no-live ") if setting == "--no-live" else BUSY
    if setting == "%config":
        live.run("%config GpuProfileMagics.live = False")
    try:
        if setting == "console":  # interactive input without a notebook
            request = live.client.execute(cell, allow_stdin=True)
            reply = live.end(request)
        else:
            reply = live.run(cell, notebook=setting != "headless")
    finally:
        live.run("%config GpuProfileMagics.live = True")
    assert [message["msg_type"] for message in reply.messages] == ["execute_input", "display_data"]
    assert set(reply.bundles[0]) == {"text/plain", "text/html"}


def test_an_error_in_the_panel_affects_neither_the_cell_nor_the_report(live):
    builder, method = (
        PanelContentBuilder.__name__,
        f"{PanelContentBuilder.__name__}.{PanelContentBuilder.build.__name__}",
    )
    live.run(
        f"from {PanelContentBuilder.__module__} import {builder}\noriginal = {method}\n{method} = lambda self, live: 1 "
        "/ 0"
    )
    try:
        reply = live.run(BUSY + "5", notebook=True)
    finally:
        live.run(f"{method} = original")
    assert (reply.status, reply.value) == ("ok", "5")
    assert reply.stderr == ""
    assert "panel" in reply.of("update_display_data")[-1]["content"]["data"]["text/plain"]
