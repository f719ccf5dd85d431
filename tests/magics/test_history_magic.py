"""%gpuhistory and the alerts of %gpumonitor in a live kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.front_end.kernel import Kernel


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel], tmp_path_factory) -> Kernel:
    path = tmp_path_factory.mktemp("history") / "watch.sqlite"
    return shared_kernel(
        f"import os, time, torch, gpulab; os.environ['GPULAB_WATCH'] = {str(path)!r}",
        "%load_ext gpulab",
    )


def output_of(reply) -> str:
    """What a cell shows: its outputs, and the lines of an error."""
    errors = ["\n".join(message["content"]["traceback"]) for message in reply.of("error")]
    return "\n".join([*(text or "" for _, text in reply.outputs), *errors])


def test_without_a_history_it_says_how_to_start_one(live):
    text = output_of(live.run("%gpuhistory", notebook=True))
    assert "gpulab watch" in text
    assert "Traceback" not in text


def test_a_monitor_keeps_a_history_that_is_shown_afterwards(live):
    live.run("%gpumonitor watched --keep --every 0.1", notebook=True)
    live.run("time.sleep(2.5)")
    live.run("gpulab.views.live.monitor.current().stop(quietly=True)")
    reply = live.run("%gpuhistory 1h", notebook=True)
    assert "GPU" in output_of(reply)
    assert "Traceback" not in output_of(reply)


@pytest.mark.parametrize(("line", "part"), [
    ("%gpuhistory 5y", "cannot be looked back on"),
    ("%gpuhistory 1h --price cheap", "cannot be read"),
    ('%gpumonitor --alert "bogus"', "cannot be read"),
    ("%gpumonitor other --webhook ftp://x --alert throttled", "webhook cannot be used"),
])  # fmt: skip
def test_bad_input_is_a_clear_error(live, line, part):
    text = output_of(live.run(line, notebook=True))
    assert part in text
    assert "Traceback" not in text


def test_help_is_shown(live):
    assert "Look back on all GPUs" in output_of(live.run("%gpuhistory --help", notebook=True))
    assert "--alert" in output_of(live.run("%gpumonitor --help", notebook=True))
