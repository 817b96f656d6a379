"""The page on declarative pipelines, from top to bottom: a topic as source and as sink, and a full refresh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.spark.versions import spark_version
from tests.pages import ROOT, blocks, make_cluster_file
from tests.spark_session import ON_CONNECT, connect_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(spark_version() < (4, 1), reason="pipelines need Spark 4.1"),
    pytest.mark.skipif(ON_CONNECT, reason="it starts a server of its own on either kind of session"),
]
PAGE = "docs/pipelines.md"
SERVER = "sc://localhost:15002"


@pytest.mark.long("a server of Spark Connect, and two runs of a pipeline")
@pytest.mark.nightly
def test_a_full_refresh_gives_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml", reason="spark-pipelines needs PyYAML")
    make_cluster_file(PAGE, tmp_path)
    setup, definitions, growth, look = blocks(PAGE, "python")
    [spec] = blocks(PAGE, "yaml")
    first, refresh = blocks(PAGE, "bash")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(definitions)
    (tmp_path / "spark-pipeline.yml").write_text(spec.replace("/srv/orders-pipeline", str(tmp_path / "storage")))
    (tmp_path / "server").mkdir()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(setup, names)
    cluster = names["cluster"]
    with connect_server(tmp_path / "server") as url:
        run(first, url)
        exec(growth, names)
        assert names["first_on_a_broker"] == 2
        run(refresh, url)
        printed = python(look.replace(SERVER, url) + "print([tuple(row) for row in rows])\n")
    assert printed.splitlines()[-1] == str(
        [("Oslo", 10.0, None), ("Oslo", 20.0, None), ("Oslo", 500.0, None), ("Bern", 7.0, "CHF")]
    )
    sunk = [cluster.fetch("large-orders", partition, 0).records.column("key").to_pylist() for partition in (0, 1)]
    assert sunk[0] + sunk[1] == [b"Oslo"]


def environ() -> dict[str, str]:
    import pyspark

    home = str(Path(pyspark.__file__).parent)
    added = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home}
    return {**os.environ, **added, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(command: str, url: str) -> None:
    """Run the pipeline. Its exit status is 1 in PySpark 4.2.0, as the page says."""
    program, *arguments = command.replace(SERVER, url).split()
    binary = Path(sys.executable).parent / program
    done = subprocess.run([str(binary), *arguments], env=environ(), capture_output=True, text=True, timeout=300)
    assert "Run is COMPLETED" in done.stdout + done.stderr, done.stdout + done.stderr


def python(code: str) -> str:
    """The output of a program in a separate process, because a process has one kind of session."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=120, check=True).stdout
