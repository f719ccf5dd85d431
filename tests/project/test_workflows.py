"""Workflows and forms for GitHub: least permissions, no secrets, current actions, and commands that exist here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
ACTIONS = {  # one version of each action everywhere
    "actions/checkout": "v6",
    "actions/deploy-pages": "v4",
    "actions/download-artifact": "v7",
    "actions/setup-python": "v6",
    "actions/upload-artifact": "v6",
    "actions/upload-pages-artifact": "v4",
    "pypa/gh-action-pypi-publish": "release/v1",
}
WRITING = {("docs.yml", "publish"): {"pages", "id-token"}, ("release.yml", "publish"): {"id-token"}}


def loaded(path: Path) -> dict:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["on"] = content.pop(True)  # YAML 1.1 reads "on" as true
    return content


def steps(job: dict) -> list[dict]:
    return job.get("steps", [])


def test_the_workflows_are_these():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_only_publishing_jobs_may_write(path):
    content = loaded(path)
    assert content["permissions"] == {"contents": "read"}
    for name, job in content["jobs"].items():
        permissions = job.get("permissions", {})
        assert {key for key, value in permissions.items() if value == "write"} == WRITING.get((path.name, name), set())
        assert "uses" in job or job["timeout-minutes"] <= (300 if name == "everything" else 60)
    assert "secrets." not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, ROOT / "docs" / "examples" / "performance.yml"], ids=lambda path: path.stem
)
def test_actions_are_known_and_of_one_version(path):
    used = [step["uses"].split("@") for job in loaded(path)["jobs"].values() for step in steps(job) if "uses" in step]
    assert used
    assert [(name, version) for name, version in used if ACTIONS.get(name) != version] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_checkout_leaves_no_credentials(path):
    for job in loaded(path)["jobs"].values():
        for step in steps(job):
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_exists(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = "\n".join(step.get("run", "") for job in loaded(path)["jobs"].values() for step in steps(job))
    for target in re.findall(r"\bmake ([a-z-]+)", commands):
        assert f"\n{target}:" in makefile, target
    for file in re.findall(r"\b(?:tools|tests)/[\w/]+\.py", commands):
        assert (ROOT / file).is_file(), file
    assert "${{" not in commands, "values reach a shell as variables, so that they cannot be code"


def test_every_supported_python_is_tested():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r"Python :: (3\.\d+)", pyproject)
    assert loaded(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"] == supported


def test_a_release_is_published_by_the_environment_that_pypi_trusts():
    jobs = loaded(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["needs"] == "wheels"
    assert jobs["wheels"]["needs"] == "version"
    assert "password" not in str(jobs)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_labelled_fields_with_unique_names(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    assert all(field["attributes"]["label"] for field in form["body"])
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)


def test_git_does_not_ignore_the_files_for_github():
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert not {".github", ".github/", "*.yml", ".*"} & set(ignored)
