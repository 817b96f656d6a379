"""Metrics pushed by OTLP over HTTP, to a receiver that reads OpenTelemetry's protocol; counters of operations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from stratalog.jobs.exposition import Exposition
from stratalog.jobs.main import main
from stratalog.jobs.otlp import OtlpPush
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import StorageError
from stratalog.partitions.version import VERSION
from tests.unit.cluster_harness import LiveCluster


class Receiver(ThreadingHTTPServer):
    """Accepts metrics at ``/v1/metrics``, and answers with ``status``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.status = 200
        self.got: list[ExportMetricsServiceRequest] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"

    def metrics(self) -> dict[str, Metric]:
        """The metrics of the latest push, by name."""
        ((scope,),) = [of.scope_metrics for of in self.got[-1].resource_metrics]
        return {one.name: one for one in scope.metrics}


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.server.status == 200 and self.path == "/v1/metrics":
            self.server.got.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None: ...


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    made = LiveCluster(tmp_path, on_disk=True)
    made.tiered()
    return made


def value(metric: Metric, **labels: str) -> float:
    """The value of the point with these labels."""
    points = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
    (found,) = [
        point.as_double or point.as_int
        for point in points
        if {one.key: one.value.string_value for one in point.attributes} == labels
    ]
    return float(found)


def test_the_job_pushes_what_it_would_print(
    live: LiveCluster, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    live.fill("ab")
    assert main(["metrics", "--cluster", str(live.file), "--otlp", receiver.address]) == 0
    assert "stratalog_up" not in capsys.readouterr().out
    found = receiver.metrics()
    assert value(found["stratalog_up"], cluster="c") == 1
    assert value(found["stratalog_OfflinePartitionsCount"], cluster="c") == 0
    assert value(found["stratalog_RemoteCopyLagBytes"], cluster="c") > 0
    (resource,) = receiver.got[0].resource_metrics
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (named["service.name"], named["service.version"]) == ("stratalog", VERSION)


def test_counters_are_cumulative_sums_of_what_all_drivers_did(live: LiveCluster, receiver: Receiver) -> None:
    clock = ManualClock(1_000)
    shown = Exposition("c")
    push = OtlpPush(shown, clock, receiver.address)
    new_events = live.cluster.new_events()
    assert new_events() == []
    live.fill("abc")
    live.driver().tier().raise_for_failures()
    live.cluster.topics.delete("t")
    shown.count(new_events())
    assert new_events() == []
    clock.sleep(5)
    push.push()
    found = receiver.metrics()
    runs = found["stratalog_operation_runs"]
    assert runs.sum.is_monotonic
    assert {point.start_time_unix_nano for point in runs.sum.data_points} == {1_000_000_000}
    assert {point.time_unix_nano for point in runs.sum.data_points} == {6_000_000_000}
    assert value(runs, cluster="c", operation="tier", outcome="done") == 1
    # One start and one end count once.
    assert value(runs, cluster="c", operation="topics delete", outcome="done") == 1
    assert value(found["stratalog_operation_requests"], cluster="c", operation="tier") > 0
    assert 'stratalog_operation_runs_total{cluster="c",operation="tier",outcome="done"} 1.0' in shown.text()


def test_a_receiver_that_does_not_take_them_is_an_error(
    live: LiveCluster, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.status = 400
    push = OtlpPush(Exposition("c"), ManualClock(), receiver.address)
    with pytest.raises(StorageError, match="did not accept them"):
        push.push()
    file = live.folder / "stratalog.prom"
    argv = ["metrics", "--cluster", str(live.file), "--otlp", receiver.address, "--textfile", str(file)]
    assert main(argv) == 1
    assert "were not pushed" in capsys.readouterr().err
    assert 'stratalog_up{cluster="c"} 1.0' in file.read_text(), "the file does not depend on the receiver"


def test_a_push_needs_a_process_that_stays(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--otlp", "http://127.0.0.1:1", "--cluster", str(live.file)]) == 2
    assert "--otlp needs --every" in capsys.readouterr().err
