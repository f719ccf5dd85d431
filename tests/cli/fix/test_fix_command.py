"""`gpulab fix` measures the fixes of a script in processes of their own; the folder of the script stays as it is."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
from contextlib import redirect_stderr
from dataclasses import replace

import pytest

from gpulab import store
from gpulab.analysis.steps.detection import find_steps
from gpulab.cli.fix.local_files import local_files
from gpulab.cli.fix.script_runner import ScriptRunner
from gpulab.cli.fix.script_trial import FixOptions, try_fixes_of_script
from gpulab.cli.main import main
from gpulab.cli.program import Program, ProgramNotFoundError
from gpulab.errors import CaptureError, GpulabError
from gpulab.trial.program_code import ProgramCode
from gpulab.views.terminal import terminal_text

TRAINING = '''
"""Trains, logs, saves and reads what it saved."""
from __future__ import annotations
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Waiting(Dataset):
    def __len__(self):
        return 800
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index)), index % 2

def main():
    out = Path("out")
    out.mkdir()
    loader = DataLoader(Waiting(), batch_size=8)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with open(out / "log.txt", "w") as log:
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            log.write(f"{step} {loss.item()}\\n")
            if step == 2:
                torch.save(model.state_dict(), out / "model.pt")
                model.load_state_dict(torch.load(out / "model.pt"))
                Path("old.txt").write_text("changed")
                assert {"old.txt", "out", "train.py"} <= {path.name for path in Path.cwd().iterdir()}
    print("the end", sys.argv[1:])

if __name__ == "__main__":
    main()
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a script and a file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    (folder / "old.txt").write_text("old")
    monkeypatch.chdir(folder)
    return folder


def runner(seconds=30.0, **options):
    """A runner; the script ends by itself before the time is up, also on a busy machine."""
    return ScriptRunner(Program("train.py", ("--epochs", "3")), seconds, **{"protected": True, **options})


def parsed(code):
    return ProgramCode(ast.parse(code), "script")


def unchanged(folder):
    names = sorted(path.name for path in folder.iterdir())
    return names == ["old.txt", "train.py"] and (folder / "old.txt").read_text() == "old"


def test_a_run_records_the_script_and_changes_no_file(project):
    tried = runner()
    run, result = tried.run(parsed(TRAINING), "train", level="trace")
    assert (run.name, run.loaders[0].dataset, run.loaders[0].name) == ("train", "Waiting", "loader")
    assert len(find_steps(run)) == 100
    assert {"out", "model.pt", "old.txt"} <= {path.rpartition("/")[2] for path in result.changed}
    assert dict(tried.effects)["discarded"].startswith("what it wrote: out")
    assert unchanged(project)


@pytest.mark.full
def test_each_fix_is_measured_and_the_script_stays_as_it_is(project, tmp_path):
    run, _ = runner().run(parsed(TRAINING), "train", level="trace")
    recording = store.save(run, tmp_path / "run.gpulab")
    lines = []
    options = FixOptions(program=Program("train.py", ()), recording=recording, rule="no_workers", seconds=30.0)
    trials = try_fixes_of_script(options, lines.append)
    assert {fix.finding.rule for fix in trials.fixes} == {"no_workers"}
    assert any(fix.comparison is not None for fix in trials.fixes)
    text = " ".join(terminal_text(trials).split())
    assert "Speed-ups of the script." in text
    assert "each in a process of its own" in text
    assert "runs train.py unchanged and with" in "".join(lines)
    assert unchanged(project)


def test_without_protection_the_script_writes_as_ever(project):
    tried = runner(protected=False)
    tried.run(parsed(TRAINING), "train")
    assert (project / "out" / "model.pt").exists()
    assert not tried.effects


@pytest.mark.parametrize(
    ("line", "problem", "why"),
    [
        ("raise ValueError('no data')", "failed in a trial", "ValueError: no data (train.py:"),
        ("sys.exit(3)", "failed in a trial", "exits with the status 3"),
        ("sys.exit('which data?')", "failed in a trial", "which data?"),
        ("input()", "failed in a trial", "EOFError"),
        ("__import__('subprocess').run(['true'])", "cannot be tried", "start a program"),
        ("__import__('os')._exit(4)", "failed in a trial", "ended with the status 4"),
        ("__import__('os').kill(__import__('os').getpid(), 11)", "failed in a trial", "SIGSEGV"),
    ],
)
def test_a_script_that_fails_says_why(project, line, problem, why):
    code = TRAINING.replace('    out = Path("out")\n', f"    {line}\n")
    with pytest.raises(CaptureError) as error:
        runner().run(parsed(code), "train")
    assert problem in error.value.problem
    assert why in error.value.why
    assert "--no-protection" in error.value.fix


def test_what_was_measured_is_shown_if_it_cannot_be_saved(project, capsys, monkeypatch):
    class Shown:
        def save(self, path):
            raise GpulabError("It cannot be saved.", why="of its name", fix="another")

    monkeypatch.setattr("gpulab.cli.fix.script_trial.try_fixes_of_script", lambda *_: Shown())
    monkeypatch.setattr("gpulab.views.terminal.terminal_text", lambda _: "the table")
    assert main(["fix", "--save", "x.pdf", "train.py"]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("the table")
    assert "It cannot be saved." in shown


def test_an_interrupt_ends_it_without_a_traceback(project, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpulab.cli.fix.script_trial.try_fixes_of_script", interrupted)
    assert main(["fix", "train.py"]) == 130
    assert capsys.readouterr().err.strip() == "gpulab: interrupted"


def test_without_caches_on_this_machine_it_runs(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "inductor"))
    run, _ = runner().run(parsed(TRAINING), "train")
    assert len(find_steps(run)) == 100


def test_a_fix_that_fails_is_named(project):
    with pytest.raises(CaptureError, match="failed with the fix for no_workers"):
        runner().run(parsed("import torch\n1 / 0"), "train", "no_workers")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["missing.py"], "cannot be read"),
        (["broken.py"], "does not compile"),
        ([], "no program to run"),
        (["-m", "no.such.module"], "cannot be run"),
        (["--recording", "none.gpulab", "train.py"], "none.gpulab"),
    ],
)
def test_a_wrong_command_says_what_to_do(project, arguments, why):
    (project / "broken.py").write_text("for\n")
    with redirect_stderr(io.StringIO()) as shown:
        assert main(["fix", *arguments]) == 2
    assert why in shown.getvalue()
    assert "fix:" in shown.getvalue()


def test_the_source_of_a_module_is_read_without_importing_it(project):
    package = project / "package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "__main__.py").write_text("1")
    for name, file in (("package", "__main__.py"), ("package.__init__", "__init__.py"), ("json.tool", "tool.py")):
        path, content = Program(name, (), is_module=True).source()
        assert path.endswith(file)
        assert content
    for name in ("math", "package.none", "none"):
        with pytest.raises(ProgramNotFoundError):
            Program(name, (), is_module=True).source()


def test_ranks_are_not_tried(project, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CaptureError, match="several ranks"):
        try_fixes_of_script(FixOptions(program=Program("train.py", ())), print)


def test_the_command_is_explained():
    done = subprocess.run(
        [sys.executable, "-m", "gpulab", "fix", "--help"], capture_output=True, text=True, check=True, timeout=120
    )
    assert "gpulab fix [options] (SCRIPT | -m MODULE)" in done.stdout


def test_a_file_that_the_script_imports_may_have_the_fix(project):
    (project / "loop.py").write_text(TRAINING.replace('if __name__ == "__main__":\n    main()', ""))
    script = "import loop\nloop.main()\n"
    (project / "train.py").write_text(script)
    code = ProgramCode(ast.parse(script), "script", local_files(project / "train.py", ast.parse(script), project))
    path = str(project / "loop.py")
    assert set(code.files) == {path}
    text = (project / "loop.py").read_text()
    changed = ast.parse(text.replace("DataLoader(Waiting(), ", "DataLoader(Waiting(), num_workers=1, "))
    run, _ = runner().run(replace(code, files={path: changed}, changed=frozenset({path})), "train")
    assert run.loaders[0].workers == 1
    run, _ = runner().run(code, "train")
    assert run.loaders[0].workers == 0
