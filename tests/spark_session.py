"""The one Spark session of a test run: a classic one, or with ``$STRATALOG_TEST_CONNECT`` one of Spark Connect.

A process cannot have both kinds. ``make test`` runs the tests marked ``connect`` a second time, on the other kind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ON_CONNECT = bool(os.environ.get("STRATALOG_TEST_CONNECT"))
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""Only the first compiler: tests end before the second one pays off. Its share of the code cache would be 48 MB,
which a hundred tests in one JVM fill; then the JVM stops compiling, and tasks die. The serial collector has no
threads that compete with the tests of other JVMs.
"""


@pytest.fixture(scope="session")
def spark(s3_endpoint: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A session on two cores, set up as jobs set theirs up; reach a server with ``reach_stores``.

    It comes after the S3 server, whose credentials must be in the JVM's environment when that starts. Tests share
    the session and its JVM: they change only session settings, and restore them.
    """
    from stratalog.jobs.session import spark_session
    from tests.class_archive import session_option

    if ON_CONNECT:
        with connect_server(tmp_path_factory.mktemp("connect")) as url:
            session = spark_session("tests", master=url)
            yield session
            session.stop()
        return
    folder = tmp_path_factory.mktemp("jvm")
    with session_option(folder) as classes:
        options = {"spark.driver.extraJavaOptions": java_options(folder, classes)}
        session = spark_session("tests", master="local[2]", settings=options)
        yield session
        session.stop()


def java_options(folder: Path, classes: str) -> str:
    """Options of a JVM that keeps its and Spark's temporary files in a folder, because a killed JVM removes
    none. ``classes`` are those of ``class_archive``."""
    from stratalog.jobs.session import log_option

    return f'"{log_option()}" -Djava.io.tmpdir={folder} {QUICK} {classes}'


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server of Spark Connect on two cores, in a separate process with Delta's jars; yields its address.
    ``settings`` take precedence over its own.
    """
    log = folder / "server.log"
    import pyspark

    from stratalog.jobs.jars import jar_folder, session_jars
    from tests.class_archive import archive_option

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = {
        "spark.master": "local[2]",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, session_jars(jar_folder()))),
        "spark.driver.extraJavaOptions": java_options(folder, archive_option()),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.connect.grpc.binding.port": str(port),
        **(settings or {}),
    }
    home = Path(pyspark.__file__).parent
    # Workers of streams import PySpark from here, compiled: from its archive that takes seconds, and a server
    # waits for ten. Compiled modules are beside it: below a prefix they would be separate for each folder.
    (folder / "pyspark").symlink_to(home)
    command = [str(home / "bin" / "spark-submit"), "--properties-file", str(ROOT / "conf/spark-defaults.conf")]
    command += [part for pair in chosen.items() for part in ("--conf", "=".join(pair))]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environ.pop("PYTHONPYCACHEPREFIX", None)
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environ, cwd=folder)
    try:
        until = time.monotonic() + 180
        while not _answers(port):
            assert server.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
