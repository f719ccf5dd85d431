"""Exporters of the watch against their real counterparts: Prometheus from Debian, OpenTelemetry's SDK."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from gpulab.errors import GpulabError
from gpulab.sensors.nvidia.gpu_processes import GpuProcess
from gpulab.watch.observation import Device, DeviceReading, Observation
from gpulab.watch.process_names import ProcessName

prometheus = pytest.importorskip("gpulab.integrations.prometheus", reason="pip install prometheus-client")
DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "examples" / "grafana_dashboard.json"
GIB = 2**30
NAMES = {7: ProcessName(pid=7, started_s=1.0, user="ada", name="train.py", job="7")}


def observation():
    host = DeviceReading(
        device=Device(uid="node", kind="host", name="node"), values={"cpu_frac": 0.25, "iowait_frac": float("nan")}
    )
    values = {
        "util_frac": 0.61, "memory_used_bytes": 40 * GIB, "power_w": 512.3, "energy_j": 9876.5, "sm_clock_mhz": 1755,
        "temperature_c": 43, "throttle_bits": 4, "sm_active_frac": float("nan"), "power_held_s": 1.5,
        "thermal_held_s": 0.25,
    }  # fmt: skip
    processes = (GpuProcess(pid=7, memory_bytes=32 * GIB, sm_frac=0.6),)
    gpu = Device(uid="GPU-1", kind="gpu", name="NVIDIA H100", memory_bytes=80 * GIB)
    lost = Device(uid="GPU-2", kind="gpu", name="NVIDIA H100", memory_bytes=80 * GIB)
    readings = (
        host,
        DeviceReading(device=gpu, values=values, processes=processes),
        DeviceReading(device=lost, values={}, why="the GPU has fallen off the bus"),
    )
    return Observation(at_s=int(time.time()), readings=readings)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def scraped_text(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def served():
    port = free_port()
    collector = prometheus.serve("127.0.0.1", port, "node")
    collector(observation(), NAMES)
    return port


def test_a_reading_has_the_name_the_labels_and_the_unit_of_the_dcgm_exporter(served):
    text = scraped_text(served)
    labels = 'gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100",Hostname="node"'
    sample = re.search(r"^DCGM_FI_DEV_GPU_UTIL\{([^}]*)\} (\S+)$", text, re.M)
    assert set(sample[1].split(",")) == set(labels.split(","))
    assert float(sample[2]) == 61
    assert float(re.search(r"^DCGM_FI_DEV_FB_USED\{[^}]*\} (\S+)$", text, re.M)[1]) == 40 * 1024
    assert float(re.search(r"^DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\{[^}]*\} (\S+)$", text, re.M)[1]) == 9_876_500


def test_what_was_not_measured_is_not_served(served):
    text = scraped_text(served)
    assert not re.search(r"^DCGM_FI_PROF_SM_ACTIVE\{", text, re.M)
    assert "GPU-2" not in text
    assert "NaN" not in text


def test_a_port_that_is_taken_is_named():
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        with pytest.raises(GpulabError, match="cannot be served"):
            prometheus.serve("0.0.0.0", listener.getsockname()[1], "node")


def test_the_dashboard_shows_metrics_that_are_served():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    names = set(re.findall(r"\b(?:DCGM_FI|gpulab)_\w+", queries))
    own = {prometheus.PROCESS_MEMORY, prometheus.PROCESS_UTIL, prometheus.HOST_CPU, prometheus.MEMORY_FREE}
    assert len(names) >= 9
    assert names <= {served.name for served in prometheus.SERVED} | own


@pytest.fixture
def scraping(served, tmp_path):
    """A Prometheus that scrapes the exporter every second; returns a function that asks it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus (apt-get install prometheus)")
    settings = tmp_path / "prometheus.yml"
    settings.write_text(
        f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: gpulab, static_configs: "
        f"[{{targets: ['127.0.0.1:{served}']}}]}}]\n"
    )
    port = free_port()
    command = [program, f"--config.file={settings}", f"--storage.tsdb.path={tmp_path / 'data'}",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(query):
        """The result of a query, once there is one."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            try:
                address = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
                with urllib.request.urlopen(address, timeout=10) as answer:
                    result = json.load(answer)["data"]["result"]
                if result:
                    return result
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"Prometheus has no result of {query}")

    yield ask
    server.kill()
    server.wait()


@pytest.mark.full
def test_prometheus_scrapes_readings_and_processes(scraping):
    (power,) = scraping("DCGM_FI_DEV_POWER_USAGE")
    assert float(power["value"][1]) == 512.3
    assert power["metric"]["UUID"] == "GPU-1"
    (memory,) = scraping('gpulab_process_memory_bytes{user="ada"}')
    assert float(memory["value"][1]) == 32 * GIB
    (up,) = scraping("up == 1")
    assert up["metric"]["job"] == "gpulab"


@pytest.mark.full
def test_every_query_of_the_dashboard_is_valid_for_prometheus(scraping):
    scraping("DCGM_FI_DEV_POWER_USAGE")
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            scraping(f"({target['expr'].replace('$host', '.*')}) or vector(1)")


def test_opentelemetry_receives_readings_under_the_names_of_its_conventions():
    exporter = pytest.importorskip("gpulab.integrations.opentelemetry", reason="pip install opentelemetry-api")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    listener = exporter.WatchMetrics(MeterProvider([reader]))
    listener(observation(), NAMES)
    points = {
        metric.name: [(dict(point.attributes)["hw.id"], point.value) for point in metric.data.data_points]
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert points["hw.gpu.utilization"] == [("GPU-1", 0.61)]
    assert points["hw.energy"] == [("GPU-1", 9876.5)]
    assert "gpulab.gpu.sm_active" not in points


def test_opentelemetry_sends_a_run_over_otlp(tmp_path):
    """A server that decodes OTLP stands for a collector, of which there is no package here."""
    exporter = pytest.importorskip("gpulab.integrations.opentelemetry", reason="pip install opentelemetry-api")
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from gpulab.tables import EventKind
    from tests.support.runs.made_runs import MS, event, run_of, stepped

    received = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            received.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}/v1/metrics"
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint), export_interval_millis=3_600_000)
    provider = MeterProvider([reader])
    run = run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 80)]))
    exporter.log_run(run, provider)
    provider.force_flush()
    provider.shutdown()
    server.shutdown()
    server.server_close()
    values = {
        metric.name: metric.gauge.data_points[0].as_double
        for request in received
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert values["gpulab.run.step_s"] == pytest.approx(100 * MS / 1e9)
