"""Metrics in OpenMetrics: printed, written and served; a real Prometheus scrapes them, and checks alerts and
dashboard. Prometheus is Debian's package (``apt-get install prometheus``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as of_textfile

from stratalog import Cluster
from stratalog.jobs.exposition import FIGURES, Exposition
from stratalog.jobs.main import main
from stratalog.partitions.errors import InconsistentClusterIdError, StratalogError, UnsignedError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.test_layers import ROOT

ALERTS, DASHBOARD = ROOT / "conf/prometheus/alerts.yml", ROOT / "conf/prometheus/dashboard.json"
PATH = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".cache/prometheus/usr/bin")])
PROMETHEUS, PROMTOOL = shutil.which("prometheus", path=PATH), shutil.which("promtool", path=PATH)
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason="apt-get install prometheus")
Key = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """A tiered topic with one untiered append, and a lagging group."""
    made = LiveCluster(tmp_path, on_disk=True)
    one = {"offsets.topic.num.partitions": "1", "health.log.dir.max.used.ratio": "1"}
    made.cluster.topics.alter_configs(None, one)
    made.tiered()
    made.fill("abc")
    made.cluster.groups.commit("g", {("t", 0): 1}).raise_for_failures()
    made.cluster.maintain().raise_for_failures()
    made.fill("d")
    return made


def samples(text: str) -> dict[Key, float]:
    found = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in found for one in family.samples}


def of(name: str, **labels: str) -> Key:
    return name, tuple(sorted({"cluster": "c", **labels}.items()))


@pytest.mark.slow
def test_metrics_are_printed(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with live.unreachable(3):
        assert main(["metrics", "--cluster", str(live.file)]) == 0
    found = samples(capsys.readouterr().out)
    assert found[of("stratalog_up")] == 1
    assert found[of("stratalog_healthy")] == 0
    assert found[of("stratalog_UnderReplicatedPartitions")] == 2
    assert found[of("stratalog_OfflinePartitionsCount")] == 0
    assert found[of("stratalog_RemoteCopyLagBytes")] > 0
    assert found[of("stratalog_records_lag", group="g", topic="t")] == 3
    assert found[of("stratalog_findings", severity="error", finding="OfflineLogDirectoryCount")] == 1
    assert found[of("stratalog_step_age_seconds", step="replicate")] >= 0


@pytest.mark.slow
def test_metrics_are_written_for_node_exporter(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    file = live.folder / "stratalog.prom"
    file.write_text("old")
    assert main(["metrics", "--textfile", str(file), "--cluster", str(live.file)]) == 0
    families = {one.name: one.type for one in of_textfile(file.read_text())}
    assert families["stratalog_OfflinePartitionsCount"] == "gauge"
    assert [path.name for path in live.folder.glob("*.prom*")] == [file.name], "nothing else is left"
    capsys.readouterr()
    assert main(["metrics", "--textfile", str(live.folder / "no" / "f"), "--cluster", str(live.file)]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "status"), [(UnsignedError("x"), 1), (InconsistentClusterIdError("x"), 2)])
def test_the_file_never_keeps_the_health_of_an_earlier_run(
    tmp_path: Path, error: StratalogError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def health(_: Cluster) -> None:
        raise error

    live = LiveCluster(tmp_path, on_disk=True)
    file = tmp_path / "stratalog.prom"
    argv = ["metrics", "--textfile", str(file), "--cluster", str(live.file)]
    assert main(argv) == 0
    assert 'stratalog_up{cluster="c"} 1.0' in file.read_text()
    monkeypatch.setattr(Cluster, "health", health)
    assert main(argv) == status
    assert 'stratalog_up{cluster="c"} 0.0' in file.read_text()
    assert "stratalog_healthy" not in file.read_text()


@pytest.mark.slow
def test_a_port_needs_a_process_that_stays(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--metrics", "0", "--cluster", str(live.file)]) == 2
    assert "--metrics needs --every" in capsys.readouterr().err


@contextmanager
def served(live: LiveCluster) -> Iterator[str]:
    """The address at which ``maintain`` serves the metrics."""
    command = [sys.executable, "-m", "stratalog.jobs.maintain", "--every", "500ms", "--metrics", "0"]
    with subprocess.Popen(
        [*command, "--cluster", str(live.file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stderr is not None
        try:
            text = process.stderr.readline()
            yield text.removeprefix("metrics: ").strip()
        finally:
            process.kill()


def asked(address: str, accept: str = "*/*") -> str:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.slow
def test_maintain_serves_what_it_has_done(live: LiveCluster) -> None:
    with served(live) as address:
        deadline = time.monotonic() + 60
        runs = of("stratalog_step_runs_total", step="tier", outcome="done")
        found: dict[Key, float] = {}
        while found.get(runs, 0) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            found = samples(asked(address, "application/openmetrics-text"))
    assert found[runs] >= 2
    assert found[of("stratalog_step_requests_total", step="tier")] > 0
    assert found[of("stratalog_RemoteCopyLagBytes")] > 0
    assert found[of("stratalog_healthy")] == 1
    names = {name for name, _ in found}
    used = set(re.findall(r"\bstratalog_\w+", ALERTS.read_text() + DASHBOARD.read_text()))
    assert used - names - {"stratalog_findings"} == set(), "alerts and dashboard name what there is"


@pytest.mark.slow
@needs_prometheus
def test_a_real_prometheus_scrapes_the_metrics(live: LiveCluster, tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    with served(live) as address:
        target = address.removeprefix("http://").removesuffix("/metrics")
        config = tmp_path / "prometheus.yml"
        scrape = {"job_name": "stratalog", "scrape_interval": "200ms", "scrape_timeout": "200ms"}
        config.write_text(
            json.dumps(
                {
                    "rule_files": [str(ALERTS)],
                    "scrape_configs": [{**scrape, "static_configs": [{"targets": [target]}]}],
                }
            )
        )
        port = free_port()
        command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        with subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
        ) as process:
            try:
                queries = [
                    panel for one in json.loads(DASHBOARD.read_text())["panels"] for panel in one["targets"]
                ]
                up = until(f"http://127.0.0.1:{port}", "stratalog_healthy")
                assert [one["metric"]["cluster"] for one in up] == ["c"]
                assert [one["value"][1] for one in up] == ["1"]
                for query in queries:
                    expression = query["expr"].replace("$cluster", "c")
                    asked(f"http://127.0.0.1:{port}/api/v1/query?query={quote(expression)}")
                rules = json.loads(asked(f"http://127.0.0.1:{port}/api/v1/rules"))
                assert [group["name"] for group in rules["data"]["groups"]] == ["stratalog"]
            finally:
                process.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(address: str, query: str) -> list[dict[str, object]]:
    """Wait for an answer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.3)
        try:
            found = json.loads(asked(f"{address}/api/v1/query?query={query}"))["data"]["result"]
        except OSError:
            continue
        if found:
            return list(found)
    raise AssertionError(f"no answer to {query}")


@needs_prometheus
def test_promtool_finds_the_alerts_and_the_dashboard_right(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 10
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    made = tmp_path / "panels.yml"
    made.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", ALERTS, made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 rules found" in done.stdout


def test_each_metric_has_a_sentence(live: LiveCluster) -> None:
    live.topic("compacted", cleanup_policy="compact")
    live.cluster.maintain(check=False)
    found = live.cluster.health()
    assert {name for name in found.totals if not name.endswith("-age-ms")} == FIGURES.keys()
    shown = Exposition("c")
    shown.look(found)
    docs = {family.name: family.documentation for family in shown.collect()}
    assert [name for name, doc in docs.items() if " " not in doc] == []
