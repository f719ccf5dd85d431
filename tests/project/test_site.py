"""The documentation site: everything public has its page, documents link to what exists, and the link check works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpulab
from gpulab.replay.job.job_catalogue import COMMUNICATION_OF_JOBS
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.rules import RULES
from tools.site import api_pages, cause_pages, option_pages
from tools.site.cause_pages import RELATED, TOPICS
from tools.site.change_pages import what_if_pages
from tools.site.documents import documents, in_both_themes, relative_links, resolved, sidebar
from tools.site.examples import example_finding
from tools.site.link_check import problems
from tools.site.notebook_pages import notebook_pages
from tools.site.page import Page, write_pages
from tools.site.symptoms import symptoms
from tools.site.targets import ROOT, change_pages

# Run by tests of their own: worker processes of Dask import the script, and the self-test takes half a minute.
RUN_ELSEWHERE = ("gpulab.fleet", "gpulab.virtual.selftest")


@pytest.fixture(scope="module")
def pages():
    """Text of the generated pages without runs: not those of causes, which need 70 diagnoses."""
    generated = [*what_if_pages(), *api_pages.api_pages(), *option_pages.option_pages()]
    return {page.path: page.content for page in generated}


def test_every_rule_belongs_to_a_topic_of_the_index_and_has_a_symptom():
    assert {rule.topic for rule in RULES} == set(TOPICS)
    missing = {rule.name for rule in RULES} ^ set(symptoms())
    assert not missing, f"add to docs/symptoms.md what people see and search for: {missing}"


def test_a_page_of_a_cause_has_what_it_looks_like_the_proof_and_the_fix():
    rule = next(rule for rule in RULES if rule.name == "no_workers")
    finding = example_finding(rule)
    text = cause_pages._page(rule, finding)
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert headings[:3] == ["What it looks like", "How to be sure", "What to do"]
    assert finding.fix in text
    assert finding.claim.split(":")[0] in text
    assert "(../course/05_data_loading.md)" in text
    assert "[`slow_storage`](slow_storage.md)" in text


@pytest.mark.full  # 70 rules, each with runs that provoke it: about 5 s
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_an_example_for_its_page(rule):
    assert example_finding(rule).rule == rule.name


def test_changes_that_pages_of_causes_name_exist():
    assert set(RELATED) <= {rule.name for rule in RULES}
    assert {name for names in RELATED.values() for name in names} <= set(change_pages())


def test_every_change_has_a_page_with_the_line_that_predicts_it(pages):
    for change in (*REWRITES, *COMMUNICATION_OF_JOBS):
        assert f"the replayed speed-up with {change.bound_label}" in pages[change_pages()[change.name]].replace(
            "The r", "the r"
        )
    for change in REWRITES:
        assert f"%gpuwhatif before {change.name}" in pages[change_pages()[change.name]]


def test_every_public_name_has_a_section_with_its_signature_and_an_example(pages):
    described = "\n".join(text for path, text in pages.items() if path.startswith("api/"))
    names = [f"gpulab.{name}" for name in gpulab.__all__]
    names += [f"gpulab.charts.{name}" for name in gpulab.charts.__all__ if name != "CHARTS"]
    names += [f"gpulab.virtual.{name}" for name in gpulab.virtual.__all__]
    assert [name for name in names if f"\n## {name}\n" not in described] == []
    modules = {"gpulab.charts", "gpulab.virtual", "gpulab.charts.Chart"}  # their members have the examples
    assert [name for name in names if name not in api_pages.examples() and name not in modules] == []
    assert set(api_pages.examples()) <= set(names)


def test_every_public_function_is_still_callable_after_everything_was_imported(pages):
    for entry in api_pages.public_entries():
        owner, _, name = entry.rpartition(".")
        if owner in ("gpulab", "gpulab.virtual", "gpulab.charts") and name not in ("charts", "virtual", "runs"):
            assert callable(getattr(eval(owner, {"gpulab": gpulab}), name)), entry


def test_every_magic_command_and_option_is_described(pages):
    magics, options = pages["reference/magics.md"], pages["reference/options.md"]
    for name in option_pages.magic_names():
        assert f"(magic-{name})=" in magics
        parser = getattr(option_pages.GpuProfileMagics, name).parser
        section = magics.split(f"(magic-{name})=")[1].split("(magic-")[0]
        assert_describes(section, parser)
    for name, _, parser in option_pages.command_parsers():
        assert_describes(options.split(f"(command-{name})=")[1].split("(command-")[0], parser)


def assert_describes(section, parser):
    words = {word for action in parser._actions for word in action.option_strings} - {"-h", "--help"}
    described = set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", "\n".join(re.findall(r"\{option\} (.*)", section))))
    assert described == words


def test_every_environment_variable_is_described():
    page = (ROOT / "docs" / "environment_variables.md").read_text(encoding="utf-8")
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "gpulab").rglob("*.py"))
    variables = {name for source in sources for name in re.findall(r"\bGPULAB_[A-Z0-9_]+\b", source)}
    assert set(re.findall(r"`(GPULAB_[A-Z0-9_]+)`", page)) == variables


@pytest.mark.parametrize(("source", "path"), documents(), ids=[source for source, _ in documents()])
def test_every_link_of_a_document_leads_to_a_file_and_to_a_page(source, path):
    for target in relative_links((ROOT / source).read_text(encoding="utf-8")):
        assert resolved(source, target)
        assert (ROOT / source).parent.joinpath(target.partition("#")[0]).exists(), target


def test_every_document_is_in_the_sidebar_once():
    entries = [line for line in sidebar().splitlines() if re.fullmatch(r"[\w/]+", line)]
    assert len(entries) == len(set(entries))
    assert {path.removesuffix(".md") for _, path in documents()} - {"index"} <= set(entries)


def test_every_external_link_of_a_document_is_https():
    for source, _ in documents():
        for target in re.findall(r"\]\(([a-z]+:[^)\s]*)\)", (ROOT / source).read_text(encoding="utf-8")):
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?", target), f"{source}: {target}"


def test_a_notebook_becomes_a_page_with_solution_outputs_and_pictures(tmp_path):
    path = ROOT / "notebooks" / "01_what_is_utilisation.ipynb"
    page, *pictures = notebook_pages(path, "INTRODUCTION")
    assert page.content.startswith("# 01 ")
    assert page.content.index("INTRODUCTION") < page.content.index("````{raw} html")
    assert "<blank>" not in page.content
    assert "Your turn" in page.content
    assert "data:image/svg+xml;base64" in page.content
    assert not pictures


def test_a_png_of_a_notebook_becomes_a_file_that_its_page_shows(tmp_path):
    output = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": "a plot"}}
    cell = {"cell_type": "code", "source": ["1"], "outputs": [output]}
    path = tmp_path / "00_plot.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# 00"]}, cell]}), encoding="utf-8")
    page, picture = notebook_pages(path, "INTRODUCTION")
    assert picture.data.startswith(b"\x89PNG")
    assert picture.path.removeprefix("course/") in page.content


def test_an_empty_picture_is_a_problem(tmp_path):
    (tmp_path / "x.png").write_bytes(b"")
    (tmp_path / "index.html").write_text('<img src="x.png">', encoding="utf-8")
    (line,) = problems(tmp_path)
    assert "x.png is empty" in line


def test_writing_pages_touches_only_what_changed(tmp_path):
    first, second = Page("a.md", "one"), Page("b/c.md", "two")
    assert write_pages(tmp_path, [first, second]) == 2
    os.utime(tmp_path / "a.md", (1, 1))
    assert write_pages(tmp_path, [first, Page("b/d.md", "three")]) == 2  # one written, one deleted
    assert (tmp_path / "a.md").stat().st_mtime == 1
    assert not (tmp_path / "b" / "c.md").exists()


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="gone.html">x</a>', "leads to no file"),
        ('<a href="index.html#gone">x</a>', "leads to no anchor"),
        ('<a href="http://example.com">x</a>', "not a well-formed https link"),
        ('<img src="gone.png">', "is missing"),
        ('<img src="https://example.com/x.png">', "loaded from another host"),
        ('<script src="//cdn.example.com/x.js"></script>', "loaded from another host"),
        ('<link rel="stylesheet" href="https://fonts.example.com/x.css">', "loaded from another host"),
        ("<style>@import 'https://fonts.example.com/x.css';</style>", "loaded from another host"),
        ('<p style="background:url(https://example.com/x.png)">x</p>', "loaded from another host"),
    ],
)
def test_the_link_check_reports(tmp_path, html, problem):
    (tmp_path / "index.html").write_text(f"<h1 id='top'>x</h1>{html}", encoding="utf-8")
    (line,) = problems(tmp_path)
    assert problem in line


def test_the_link_check_accepts_what_exists(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "x.png").write_bytes(b"x")
    (tmp_path / "sub" / "page.html").write_text("<h2 id='there'>x</h2>", encoding="utf-8")
    good = (
        '<img src="x.png"><a href="sub/page.html#there">x</a><a href="https://example.com/a">x</a><a href="#top">x</a>'
    )
    (tmp_path / "index.html").write_text(f"<h1 id='top'>x</h1>{good}", encoding="utf-8")
    (tmp_path / "site.css").write_text("a { background: url(x.png) }", encoding="utf-8")
    assert problems(tmp_path) == []


@pytest.mark.full  # records, trains on a virtual GPU and draws all charts: about 15 s
def test_the_examples_of_the_api_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for variable in ("GPULAB_SPOOL", "GPULAB_HISTORY", "GPULAB_PROGRESS"):
        monkeypatch.setenv(variable, "off")
    monkeypatch.setenv("GPULAB_WATCH", str(tmp_path / "watch.sqlite"))
    text = (ROOT / api_pages.EXAMPLES).read_text(encoding="utf-8")
    setup = re.search(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(setup[1], names)
    for name, code in api_pages.examples().items():
        if name not in RUN_ELSEWHERE:
            exec(compile(code, f"{api_pages.EXAMPLES}: {name}", "exec"), names)
    assert Path("slow.html").stat().st_size > 10_000
    assert "no_workers" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.browser
def test_no_page_scrolls_sideways_at_any_width(tmp_path, chromium):
    (tmp_path / "index.md").write_text("# One page\n\n## Part\n\n" + "many words " * 200)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "-c", str(ROOT / "tools" / "site")]
    subprocess.run([*command, str(tmp_path), str(tmp_path / "site")], check=True, timeout=240)
    page = chromium.new_page()
    page.goto((tmp_path / "site" / "index.html").as_uri())
    scrolling = []
    for width in range(360, 1700, 20):
        page.set_viewport_size({"width": width, "height": 800})
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            scrolling.append(width)
    page.close()
    assert not scrolling


def cells(line):
    """The number of cells in a row of a Markdown table; a bar within code or after a backslash separates none."""
    bare = re.sub(r"`[^`]*`", "code", line.strip().removeprefix("|").removesuffix("|"))
    return len(re.split(r"(?<!\\)\|", bare))


@pytest.mark.parametrize("source", [source for source, _ in documents()])
def test_every_row_of_a_table_has_as_many_cells_as_its_header(source):
    """With another number in the line below the header, the table is shown as text."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / source).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [len(set(map(cells, table.splitlines()))) for table in tables] == [1] * len(tables)


def test_a_picture_is_shown_in_the_theme_of_the_page():
    text = in_both_themes("![Steps](chart-light-wide.png)")
    assert "](chart-dark-wide.png){.only-dark}" in text
    assert "](chart-light-wide.png){.only-light}" in text


def test_every_picture_for_light_pages_has_a_dark_twin():
    for picture in (ROOT / "docs").glob("*-light*.png"):
        assert picture.with_name(picture.name.replace("-light", "-dark")).is_file()
