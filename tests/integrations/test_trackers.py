"""A run in the trackers that people keep: what was logged is read back by their own programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from gpulab.run_summary import FIELDS, summary
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped


@pytest.fixture(scope="module")
def run():
    return run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 80)]), name="logged")


@pytest.fixture(scope="module")
def numbers(run):
    return {name: float(value) for name, value in summary(run).items() if not isinstance(value, str)}


def test_a_summary_is_flat_documented_and_has_only_what_was_measured(run):
    fields = summary(run)
    assert fields == run.summary()
    for name, value in fields.items():
        assert name in FIELDS or name.startswith("share_")
        assert isinstance(value, (int, float, str))
    assert "energy_j" not in fields
    assert json.loads(json.dumps(fields)) == fields
    assert sum(value for name, value in fields.items() if name.startswith("share_")) == pytest.approx(1)


def test_tensorboard_reads_the_scalars_and_the_report(run, numbers, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from gpulab.integrations.tensorboard import log_run

    with SummaryWriter(tmp_path) as writer:
        log_run(run, writer, step=3)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for name, value in numbers.items():
        (scalar,) = events.Scalars(f"gpulab/{name}")
        assert (scalar.step, scalar.value) == (3, pytest.approx(value, rel=1e-5))
    (text,) = events.Tensors("gpulab/report/text_summary")
    assert summary(run)["verdict"].split()[0] in text.tensor_proto.string_val[0].decode()


def leveldb_records(log):
    """The records of a log file in LevelDB's format, in which W&B stores an offline run."""
    record, at, begun = b"", 0, 7  # the header of W&B counts to the first block
    while at + 7 <= len(log):
        if 32768 - (at + begun) % 32768 < 7:  # a block ends with less than a header
            at += 32768 - (at + begun) % 32768
            continue
        length, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        record += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or its last part
            yield record
            record = b""


@pytest.mark.full
def test_wandb_reads_an_offline_run_back(run, numbers, tmp_path):
    """In a process of its own: W&B starts threads and a service."""
    pytest.importorskip("wandb", reason="pip install wandb")
    code = """
import glob, json, sys
import wandb
from gpulab.integrations.wandb import log_run
from gpulab.errors import GpulabError
from tests.integrations.test_trackers import EventKind, event, leveldb_records, run_of, stepped
run = run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 80)]), name="logged")
try:
    log_run(run)
    sys.exit("no error without an active run")
except GpulabError as problem:
    assert "wandb.init" in problem.fix
with wandb.init(mode="offline", project="gpulab") as active:
    log_run(run)
wandb.teardown()  # on a busy machine its service still writes the file
from wandb.proto import wandb_internal_pb2
(path,) = glob.glob("wandb/offline-run-*/*.wandb")
found = {}
for data in leveldb_records(open(path, "rb").read()[7:]):  # after the header of W&B
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    for item in [*record.summary.update, *record.history.item]:
        found["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
print("RESULT" + json.dumps(found))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WANDB_SILENT": "true", "WANDB_DIR": "."}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=180)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("RESULT")[2])
    assert found["gpulab/step_s"] == pytest.approx(numbers["step_s"])
    assert found["gpulab/verdict"] == summary(run)["verdict"]
    assert found["gpulab/report/_type"] == "html-file"


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory):
    """A tracking server with a database."""
    pytest.importorskip("mlflow.server", reason="pip install mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{folder / 'runs.db'}",
               "--artifacts-destination", str(folder / "artifacts")]  # fmt: skip
    log = (folder / "log").open("w")
    server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    deadline_s = time.monotonic() + 150
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                break
        except OSError:
            time.sleep(0.3)
    else:
        raise AssertionError((folder / "log").read_text()[-3000:])
    yield address
    os.killpg(server.pid, 9)
    server.wait()
    log.close()


@pytest.mark.night
def test_an_mlflow_server_has_metrics_tags_and_report(run, numbers, mlflow_server, tmp_path):
    import mlflow

    from gpulab import load
    from gpulab.integrations.mlflow import log_run

    mlflow.set_tracking_uri(mlflow_server)
    with mlflow.start_run() as active:
        log_run(run, recording=True)
    client = mlflow.MlflowClient(mlflow_server)
    stored = client.get_run(active.info.run_id).data
    assert {name.removeprefix("gpulab/"): value for name, value in stored.metrics.items()} == pytest.approx(numbers)
    assert stored.tags["gpulab.verdict"].startswith(summary(run)["verdict"][:50])
    path = client.download_artifacts(active.info.run_id, "gpulab/run.gpulab", str(tmp_path))
    assert load(path).name == "logged"
    names = [artifact.path for artifact in client.list_artifacts(active.info.run_id, "gpulab")]
    assert sorted(names) == ["gpulab/report.html", "gpulab/run.gpulab"]
