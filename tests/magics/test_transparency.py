"""A cell under %%gpuprofile is the user's cell: each probe runs it in a live kernel with the magic and without.

These are the probes that other cell magics fail: see what a cell is for, then see that nothing of it changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.front_end.kernel import Kernel, Reply

MAGIC = "%%gpuprofile probe\n"
REPORT = "gpulab"


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel]) -> Kernel:
    return shared_kernel("import torch; torch.set_num_threads(1)", "%load_ext gpulab")


def both(live: Kernel, cell: str) -> tuple[Reply, Reply]:
    """The cell without the magic, and with it."""
    return live.run(cell), live.run(MAGIC + cell)


def gpulab_displays(reply: Reply) -> list[tuple[str, str]]:
    """The cell's own outputs: all but the report, of which there is exactly one."""
    reports = [text for kind, text in reply.outputs if kind == "display_data" and "probe" in text]
    assert len(reports) == 1, reply.outputs
    return [output for output in reply.outputs if output[1] != reports[0]]


def same(unprofiled: Reply, profiled: Reply) -> None:
    assert gpulab_displays(profiled) == unprofiled.outputs
    assert profiled.status == unprofiled.status


def shown_lines(traceback: str) -> list[tuple[int, str]]:
    """The lines a traceback points at, as (number, code)."""
    return [(int(number), code.strip()) for number, code in re.findall(r"^-+> (\d+)(.*)$", traceback, re.MULTILINE)]


def test_the_last_value_goes_to_out_and_underscore(live):
    unprofiled, profiled = both(live, "6 * 7")
    assert unprofiled.value == profiled.value == "42"
    assert live.value("_") == 42
    assert live.value(f"Out[{profiled.count}]") == 42


def test_a_semicolon_silences_the_value(live):
    unprofiled, profiled = both(live, "6 * 7;")
    assert unprofiled.value is None
    same(unprofiled, profiled)


def test_variables_functions_and_imports_persist(live):
    live.run(MAGIC + "import colorsys\nkept = 5\ndef twice(x):\n    return 2 * x\nfor i in range(3): pass")
    assert live.value("twice(kept), i, colorsys.__name__") == (10, 2, "colorsys")


def test_no_names_are_leaked_into_the_user_namespace(live):
    hidden = "sorted(n for n in globals() if not n.startswith('_i') and not n[:2].strip('_').isdigit())"
    names = "names = None; names = set(" + hidden + ")"
    live.run(names)
    live.run(MAGIC + "one_name = 1")
    new = live.value(f"sorted(set({hidden}) - names)")
    assert [name for name in new if not re.fullmatch(r"_\d*", name)] == ["one_name"]


def test_an_exception_gives_status_error_and_stops_run_all(live):
    unprofiled, profiled = both(live, "1 / 0")
    assert unprofiled.status == profiled.status == "error"
    assert profiled.content["ename"] == "ZeroDivisionError"
    assert profiled.content["evalue"] == unprofiled.content["evalue"]
    same(unprofiled, profiled)


def test_a_traceback_shows_the_users_lines_once_with_the_numbers_on_the_screen(live):
    cell = "x = 1\n\ndef fail(y):\n    return y / 0\n\nfail(x)"
    unprofiled, profiled = both(live, cell)
    assert shown_lines(unprofiled.traceback) == [(6, "fail(x)"), (4, "return y / 0")]
    assert shown_lines(profiled.traceback) == [(7, "fail(x)"), (5, "return y / 0")]  # one line further down on screen
    assert len(profiled.errors) == 1
    assert profiled.traceback.count("Traceback (most recent call last)") == 1
    assert "gpulab/" not in profiled.traceback
    assert f"Cell In[{profiled.count}], line 7" in profiled.traceback


def test_blank_lines_above_the_magic_do_not_shift_the_traceback(live):
    reply = live.run("\n\n" + MAGIC + "\nx = 1\n1 / 0")
    assert shown_lines(reply.traceback) == [(6, "1 / 0")]


def test_a_function_of_a_profiled_cell_fails_later_with_the_right_lines(live):
    live.run(MAGIC + "\ndef later():\n    raise KeyError('k')")
    reply = live.run("later()")
    assert shown_lines(reply.traceback) == [(1, "later()"), (4, "raise KeyError('k')")]


def test_an_interrupt_gives_status_error_and_a_partial_report(live):
    cell = "import time\nprint('started', flush=True)\nfor _ in range(600): time.sleep(0.05)"
    unprofiled, profiled = live.interrupted(cell), live.interrupted(MAGIC + cell)
    assert unprofiled.content["ename"] == profiled.content["ename"] == "KeyboardInterrupt"
    assert (4, "for _ in range(600): time.sleep(0.05)") in shown_lines(profiled.traceback)
    same(unprofiled, profiled)
    assert live.value("__import__('gpulab').runs['probe'].outcome") == "KeyboardInterrupt"


def test_top_level_await_works(live):
    cell = "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 9\nawait f()"
    unprofiled, profiled = both(live, cell)
    assert unprofiled.value == profiled.value == "9"
    same(unprofiled, profiled)


def test_top_level_async_with_and_async_for_work(live):
    cell = (
        "async def count():\n    for i in range(3):\n        yield i\n"
        "total = 0\nasync for i in count():\n    total += i\ntotal"
    )
    unprofiled, profiled = both(live, cell)
    assert unprofiled.value == profiled.value == "3"


def test_an_interrupted_await_gives_status_error(live):
    # Short sleeps, because ipykernel notices an interrupt only when its loop wakes.
    cell = "import asyncio\nprint('started', flush=True)\nfor _ in range(600): await asyncio.sleep(0.05)"
    unprofiled, profiled = live.interrupted(cell), live.interrupted(MAGIC + cell)
    assert unprofiled.status == profiled.status == "error"
    assert unprofiled.content["ename"] == profiled.content["ename"]
    same(unprofiled, profiled)


def test_a_triple_quoted_string_stays_as_it_is(live):
    unprofiled, profiled = both(live, "'''a\n    b\n  %c\n\n\t>>> d'''")
    assert profiled.value == unprofiled.value == r"'a\n    b\n  %c\n\n\t>>> d'"


def test_an_indented_cell_is_dedented_as_ever(live):
    unprofiled, profiled = both(live, "    x = 1\n    if x:\n        x = 5\n    x")
    assert unprofiled.value == profiled.value == "5"


def test_from_future_imports_work(live):
    unprofiled, profiled = both(
        live, "from __future__ import annotations\ndef f(a: nowhere): pass\nf.__annotations__['a']"
    )
    assert unprofiled.value == profiled.value == "'nowhere'"
    same(unprofiled, profiled)


def test_shell_commands_and_inner_magics_work(live):
    cell = "files = !echo one\n!echo two\nt = %timeit -n1 -r1 -q -o pass\nfiles[0], type(t).__name__"
    unprofiled, profiled = both(live, cell)
    assert unprofiled.value == profiled.value == "('one', 'TimeitResult')"
    assert "two" in profiled.stdout
    same(unprofiled, profiled)


def test_getsource_works_while_the_cell_runs_and_after(live):
    cell = "import inspect\ndef g(x):\n    return x + 1  # a comment\nprint(inspect.getsource(g))"
    unprofiled, profiled = both(live, cell)
    assert profiled.stdout == unprofiled.stdout == "def g(x):\n    return x + 1  # a comment\n\n"
    assert live.run("print(inspect.getsource(g))").stdout == unprofiled.stdout


def test_torch_script_compiles_a_function_of_the_cell(live):
    cell = "def relu2(x: torch.Tensor):\n    return torch.relu(x) * 2\ntorch.jit.script(relu2)(torch.ones(1)).item()"
    unprofiled, profiled = both(live, "import warnings; warnings.simplefilter('ignore')\n" + cell)
    assert unprofiled.value == profiled.value == "2.0"


def test_a_cell_of_comments_runs(live):
    unprofiled, profiled = both(live, "# nothing\n# at all")
    same(unprofiled, profiled)
    assert profiled.status == "ok"


def test_under_time_the_cell_keeps_value_error_and_lines(live):
    reply = live.run("%%time\n%%gpuprofile probe\nx = 20\nx + 1")
    assert (reply.status, reply.value) == ("ok", "21")
    assert "Wall time" in reply.stdout
    assert live.run("%%time\n%%gpuprofile probe\nx + 1;").value is None
    failed = live.run("%%time\n%%gpuprofile probe\n\ndef f():\n    1 / 0\nf()")
    assert failed.status == "error"
    assert len(failed.errors) == 1
    assert shown_lines(failed.traceback)[-2:] == [(6, "f()"), (5, "1 / 0")]
    assert "gpulab/" not in failed.traceback
    gpulab_displays(failed)


def test_over_time_the_cell_keeps_its_value(live):
    unprofiled, profiled = both(live, "%%time\nx = 20\nx + 2")
    assert unprofiled.value == profiled.value == "22"
    assert "Wall time" in profiled.stdout


def test_help_is_shown_and_nothing_runs(live):
    for line in ("%%gpuprofile --help", "%%gpuprofile -h\nran = 1", "%gpuprofile --help"):
        reply = live.run("ran = 0")
        reply = live.run(line)
        assert reply.status == "ok"
        [(kind, text)] = reply.outputs
        assert kind == "display_data"
        assert "--level" in text
        assert live.value("ran") == 0


def test_the_report_is_stored_as_html_and_text_and_nothing_else(live):
    for notebook in (False, True):
        reply = live.run(MAGIC + "x = 1", notebook=notebook)
        [bundle] = reply.bundles
        assert set(bundle) == {"text/html", "text/plain"}
        assert reply.payload == []


def test_system_exit_is_handled_as_ever(live):
    unprofiled, profiled = both(live, "raise SystemExit(3)")
    assert unprofiled.status == profiled.status == "error"
    assert gpulab_displays(profiled)[-1] == unprofiled.outputs[-1]
    assert live.value("1") == 1, "the kernel lives"


def test_a_syntax_error_is_shown_and_nothing_is_recorded(live):
    live.run("import gpulab; before = len(gpulab.runs)")
    unprofiled, profiled = live.run("x = = 1"), live.run("%%gpuprofile never\nx = = 1")
    assert unprofiled.content["ename"] == profiled.content["ename"] == "SyntaxError"
    assert profiled.outputs == unprofiled.outputs
    assert ", line 2" in profiled.traceback
    assert "x = = 1" in profiled.traceback
    assert live.value("'never' in gpulab.runs") is False


def test_input_numbering_and_history_are_untouched(live):
    first = live.run("1")
    profiled = live.run(MAGIC + "2")
    after = live.run("3")
    assert (profiled.count, after.count) == (first.count + 1, first.count + 2)
    assert live.value(f"get_ipython().history_manager.input_hist_raw[{profiled.count}]") == MAGIC + "2"
    assert live.value(
        f"[line[2] for line in get_ipython().history_manager.get_range()][{profiled.count - 1}]"
    ).endswith("\n2")


def test_outputs_keep_their_order(live):
    cell = (
        "import sys\nprint('a', flush=True)\ndisplay({'text/plain': 'b'}, raw=True)\n"
        "print('c', file=sys.stderr, flush=True)\nfrom IPython.display import HTML\ndisplay(HTML('<b>d</b>'))\n"
        "print('e', flush=True)\n'f'"
    )
    unprofiled, profiled = both(live, cell)
    assert [text.strip() for _, text in unprofiled.outputs][:3] == ["a", "b", "c"]
    same(unprofiled, profiled)
    same(unprofiled, live.run(MAGIC + cell, notebook=True))


def test_a_figure_drawn_in_the_cell_is_shown(live):
    cell = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    unprofiled, profiled = live.run(cell), live.run(MAGIC + cell, notebook=True)
    assert sum("image/png" in bundle for bundle in unprofiled.bundles) == 1
    assert sum("image/png" in bundle for bundle in profiled.bundles) == 1


def test_nested_in_capture_the_report_is_captured_with_the_rest(live):
    reply = live.run("%%capture got\n%%gpuprofile probe\nprint('inside')\n5")
    assert reply.outputs == []
    assert live.value("got.stdout") == "inside\n"
    assert live.value("len(got.outputs)") == 2, "the report and the value"


def test_capture_inside_keeps_what_the_cell_shows_and_leaves_the_report(live):
    reply = live.run(MAGIC + "%%capture got\nprint('inside')")
    assert gpulab_displays(reply) == []
    assert live.value("got.stdout") == "inside\n"


def test_a_second_gpuprofile_inside_is_explained_and_runs_unprofiled(live):
    reply = live.run(MAGIC + "%%gpuprofile inner\nx = 5\nx")
    assert reply.value == "5"
    assert any("being profiled" in text for _, text in reply.outputs)
    assert live.value("'inner' in gpulab.runs") is False
    by_code = live.run(MAGIC + "get_ipython().run_cell('%%gpuprofile inner\\nx = 6')\nx")
    assert by_code.value == "6"
    assert live.value("'inner' in gpulab.runs") is False


def test_an_empty_body_is_a_usage_error(live):
    for cell in ("%%gpuprofile probe", "%%gpuprofile probe\n\n  \n"):
        reply = live.run(cell)
        assert reply.content["ename"] == "UsageError"


def test_a_bad_option_does_not_run_the_cell(live):
    live.run("ran = 0")
    for line in (
        "--nope",
        "--level loud",
        "--steps 0",
        "--steps x",
        "-o 1x",
        "two words",
        "1name",
        "--save run.txt",
        "'",
    ):
        reply = live.run(f"%%gpuprofile {line}\nran = 1")
        assert reply.content["ename"] == "UsageError", line
        assert live.value("ran") == 0, line
    assert "nowhere" in live.run("%%gpuprofile --save nowhere/run.gpulab\nran = 1").content["evalue"]
    assert live.value("ran") == 0


def test_braces_and_dollars_in_code_are_not_expanded(live):
    cell = "x = 3\n'{x} $x', f'{x}', {1: 2}"
    unprofiled, profiled = both(live, cell)
    assert profiled.value == unprofiled.value == "('{x} $x', '3', {1: 2})"
    assert live.run("%gpuprofile '{x} $x'").value == "'{x} $x'"


def test_loading_and_reloading_change_nothing(live):
    hooks = (
        "(sum(type(t).__name__ == 'CellHook' for t in get_ipython().input_transformers_cleanup),"
        " [sum('CellHook' in repr(f) for f in get_ipython().events.callbacks[e]) for e in"
        " ('pre_run_cell', 'post_run_cell')],"
        " sum(getattr(m, 'matcher_identifier', '') == 'gpulab.matcher' for m in"
        " get_ipython().Completer.custom_matchers),"
        " sum(type(c).__name__ == 'GpuProfileMagics' for c in get_ipython().configurables))"
    )
    assert live.value(hooks) == (1, [1, 2], 1, 1)
    live.run("%load_ext gpulab\n%reload_ext gpulab\n%reload_ext gpulab")
    assert live.value(hooks) == (1, [1, 2], 1, 1)
    live.run("%unload_ext gpulab")
    assert live.value(hooks) == (0, [0, 0], 0, 0)
    assert live.run("%%gpuprofile x\n1").content["ename"] == "UsageError"
    live.run("%load_ext gpulab")
    gpulab_displays(live.run(MAGIC + "1"))


def test_reloading_inside_a_profiled_cell_ends_the_recording_and_not_the_cell(live):
    reply = live.run(MAGIC + "%reload_ext gpulab\nx = 7\nx")
    assert (reply.status, reply.value) == ("ok", "7")
    gpulab_displays(live.run(MAGIC + "1"))


@pytest.mark.parametrize("body", ["x = 1", "1 / 0", "import time\nprint('started', flush=True)\ntime.sleep(60)"])
def test_nothing_is_left_behind(live, body):
    live.run(
        "import threading, os, signal, sys, gc\n"
        "def state():\n"
        "    return (sorted(t.name for t in threading.enumerate()), sorted(os.listdir('.')),"
        " repr(signal.getsignal(signal.SIGINT)), sys.gettrace(), sys.getprofile(), torch.get_num_threads(),"
        " gc.isenabled(), torch._C._autograd._profiler_enabled(), sorted(vars(get_ipython())))"
    )
    run = live.interrupted if "started" in body else live.run
    run(MAGIC + body, notebook=True)  # objects created once, such as the widget's class, are created now
    live.run("before = state()")
    for notebook in (False, True):
        run(MAGIC + body, notebook=notebook)
    assert live.value("(state() == before) or [pair for pair in zip(before, state()) if pair[0] != pair[1]]") is True
    widgets = "len(__import__('ipywidgets').Widget.widgets) if 'ipywidgets' in sys.modules else 0"
    assert live.value(widgets) == 0
