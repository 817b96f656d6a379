"""The Spark session of a job: the active one, or a new one with the settings of ``conf/spark-defaults.conf``.

There are four cases. The first three give the same session:

    stratalog append, a test       no JVM yet: one is started with absolute paths to jars and log settings
    spark-submit jobs/append.py    the JVM and its settings are spark-submit's; missing settings come from conf
    a notebook, another job        the active session, unchanged
    a master sc://..., or $SPARK_REMOTE   a session of Spark Connect: its server has its own settings and jars

No secret is ever put in a Spark setting: S3A reads the environment, the profile or the instance. Spark itself
copies credentials from the environment into Hadoop's settings, which every scan writes to disks and sends to
executors. This module removes them again from a session that it creates.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from stratalog import register_format
from stratalog.jobs.hadoop import reach_stores
from stratalog.jobs.jars import conf_file, fetch_jars, jar_folder, session_jars, with_delta
from stratalog.jobs.java import use_java
from stratalog.jobs.spark_home import compiled_home
from stratalog.partitions.errors import EnvironmentUnusableError
from stratalog.partitions.store.protocol import StoreOptions

_LOG = logging.getLogger(__name__)

_EXTENSIONS, _DELTA = "spark.sql.extensions", "io.delta."
_CATALOG, _DELTA_CATALOG = "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta."

_NOISE = (b"WARNING: Using incubator modules",)
"""Lines about Spark's flags that the JVM itself prints on every start. log4j cannot suppress these lines."""

_ECHOES = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers with which PySpark prints an error as a page of JSON before raising the error."""

_SERVER_TRACES = "spark.sql.connect.serverStacktrace.enabled"
"""Whether an error on Spark Connect shows the JVM's stack. (A classic session shows it only on request.)"""

_COPIED = (
    *("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token"),
    *("fs.s3.awsAccessKeyId", "fs.s3.awsSecretAccessKey", "fs.s3n.awsAccessKeyId", "fs.s3n.awsSecretAccessKey"),
)
"""Hadoop's settings to which Spark copies ``AWS_*`` of the environment (``SparkHadoopUtil``)."""

_NAME_OF_SECRET = re.compile(r"secret|password|token|access\.?key|account\.key", re.IGNORECASE)
"""Matches settings with secrets: Spark's own pattern (``spark.redaction.regex``), and Azure's keys."""


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    roots: Mapping[str, StoreOptions] | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the active session. If there is no active session, return a new session that reads Delta tables,
    ``file://`` and ``s3://``, and has the format ``stratalog``.

    ``master`` overrides ``$SPARK_MASTER``, which overrides ``local[*]``; spark-submit has its own master.
    ``$SPARK_REMOTE``, which PySpark always obeys, is refused together with a classic ``master``. ``settings``
    override everything else. ``master`` and ``settings`` apply only to a new session. Any session gets access to
    the ``roots`` of a cluster file (``ClusterFile.roots``).

    Raises: EnvironmentUnusableError for a missing or wrong Java, jars that cannot be fetched, a spark-submit
    without Delta's jars, or a master that ``$SPARK_REMOTE`` contradicts.
    """
    for echo in _ECHOES:
        logging.getLogger(echo).disabled = True
    session = _running_session()
    remote = master if master is not None and master.startswith("sc://") else os.environ.get("SPARK_REMOTE")
    if session is None and remote is not None and master not in {None, remote}:
        raise EnvironmentUnusableError(
            f"the master is {_without_token(str(master))}, but $SPARK_REMOTE names a Spark Connect server "
            f"({_without_token(remote)}), which PySpark prefers to any master: unset $SPARK_REMOTE, or omit the "
            "master"
        )
    if session is None and remote is not None:
        builder = SparkSession.builder.remote(remote).config(_SERVER_TRACES, "false")
        session = builder.config(map=dict(settings or {})).getOrCreate()
        register_format(session)
    elif session is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        session = _submitted_session(app_name, settings or {})
        register_format(session)
    elif session is None:
        session = _own_session(app_name, master, settings or {})
        register_format(session)
    reach_stores(session, roots or {})
    return session


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings in a file that has the format of spark-defaults.conf: ``key value`` or ``key=value``
    lines."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (re.split(r"\s*=\s*|\s+", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1] if len(pair) == 2 else "" for pair in pairs}


def log_option() -> str:
    """Return the JVM option for quiet logs, for callers that set ``spark.driver.extraJavaOptions``."""
    return f"-Dlog4j2.configurationFile={conf_file('log4j2.properties').as_uri()}"


def local_cores(master: str) -> int | None:
    """Return the number of tasks that run at the same time with a ``local`` master; None for a cluster."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def _without_token(master: str) -> str:
    """Return a master without the parameters of a Spark Connect server, which may include a token."""
    return master.partition(";")[0]


def _running_session() -> SparkSession | None:
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _own_defaults() -> dict[str, str]:
    """Return the settings of ``conf/spark-defaults.conf``, without Delta's settings if Delta has no build for this
    Spark.
    """
    settings = read_properties(conf_file("spark-defaults.conf"))
    if with_delta():
        return settings
    _LOG.warning(
        "Delta has no build for Spark %s: this session does not read Delta tables; stratalog's reads, appends and "
        "streams do work",
        pyspark.__version__,
    )
    return {key: value for key, value in settings.items() if "delta" not in f"{key} {value}".lower()}


def _user_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    folder = environ.get("SPARK_CONF_DIR")
    file = Path(folder, "spark-defaults.conf") if folder else None
    return read_properties(file) if file is not None and file.is_file() else {}


def _own_session(app_name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    # 1. Report missing requirements before any long step.
    use_java(os.environ)
    folder = jar_folder()
    fetch_jars(folder)

    # 2. Combine the settings, lowest precedence first: conf's, this machine's, the user's defaults, the caller's.
    stronger = dict(_user_defaults(os.environ)) | dict(settings)
    if master is not None:
        stronger["spark.master"] = master
    chosen = _own_defaults()
    chosen["spark.master"] = os.environ.get("SPARK_MASTER") or "local[*]"
    chosen |= _placed_here(stronger.get("spark.master", chosen["spark.master"]), folder) | stronger

    # 3. Worker processes must run the Python of this process, or the Python that the cluster sets.
    local = local_cores(chosen["spark.master"]) is not None
    if local or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    chosen["spark.pyspark.python"] = os.environ["PYSPARK_PYTHON"]

    if local:
        # With this setting, Spark needs no name service, and no network address, which might change.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    spark_home = Path(pyspark.__file__).parent
    if (spark_home / "jars").is_dir():
        # A SPARK_HOME left in the environment would start another version's JVM.
        os.environ["SPARK_HOME"] = str(compiled_home(spark_home, folder) if local else spark_home)

    # 4. Start a JVM, unless the JVM of an earlier session is running. Then start the session.
    conf = SparkConf(loadDefaults=False).setAppName(app_name).setAll(list(chosen.items()))
    if SparkContext._gateway is None:
        SparkContext._ensure_initialized(gateway=_start_jvm(_for_command_line(chosen)), conf=conf)
    return _without_secrets(SparkSession.builder.config(conf=conf).getOrCreate())


def _for_command_line(chosen: Mapping[str, str]) -> SparkConf:
    """Return the settings for the command line of the JVM, which all users of this machine can read. The user's
    defaults are left out, because spark-submit reads their file, too, and so are settings with the name of a
    secret. The context gets all settings through the gateway.
    """
    defaults = _user_defaults(os.environ)
    conf = SparkConf(loadDefaults=False)
    return conf.setAll(
        [
            (key, value)
            for key, value in chosen.items()
            if defaults.get(key) != value and not _NAME_OF_SECRET.search(key)
        ]
    )


def _without_secrets(session: SparkSession) -> SparkSession:
    """Remove the credentials that Spark copied from the environment; the user's own settings stay."""
    given = session.sparkContext.getConf()
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    for key in _COPIED:
        if not given.contains(f"spark.hadoop.{key}"):
            hadoop.unset(key)
    return session


def _placed_here(master: str, folder: Path) -> dict[str, str]:
    """Return the settings that depend on the location of the files and on the number of cores."""
    placed = {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, session_jars(folder))),
        "spark.driver.extraJavaOptions": f'"{log_option()}"',
    }
    cores = local_cores(master)
    if cores is None:
        # Executors in other processes get copies of the jars; a single process needs no copies.
        return placed | {"spark.jars": ",".join(map(str, session_jars(folder)))}
    return placed | {
        # No other machine talks to a local driver, so no host name has to resolve.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # In a local session the tasks of a shuffle cost more than its bytes; adaptive execution merges small
        # partitions.
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
    }


def _submitted_session(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    SparkContext._ensure_initialized()
    submitted = dict(SparkConf().getAll())
    chosen = {
        key: value
        for key, value in _own_defaults().items()
        if key not in submitted and not key.startswith(("spark.driver.", "spark.pyspark."))
    }
    cores = local_cores(submitted.get("spark.master", ""))
    if cores is not None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if "spark.sql.shuffle.partitions" not in submitted:
            chosen["spark.sql.shuffle.partitions"] = str(max(4, 2 * cores))
    extensions = submitted.get(_EXTENSIONS, chosen.get(_EXTENSIONS, "")).split(",")
    if not with_delta():  # the file that spark-submit has read names Delta for all versions of Spark
        extensions = [each for each in extensions if not each.strip().startswith(_DELTA)]
        chosen[_EXTENSIONS] = ",".join(extensions)
        if submitted.get(_CATALOG, "").startswith(_DELTA_CATALOG):
            chosen[_CATALOG] = "builtin"
    for extension in filter(None, extensions):
        _require_class(extension.strip())
    conf = SparkConf().setAppName(submitted.get("spark.app.name") or app_name)
    conf.setAll(list((chosen | dict(settings)).items()))
    return _without_secrets(SparkSession.builder.config(conf=conf).getOrCreate())


def _require_class(name: str) -> None:
    jvm = SparkContext._jvm
    assert jvm is not None
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JError as error:
        raise EnvironmentUnusableError(
            f"spark-submit was started without the jar of {name}: in a checkout run `make setup`, then start "
            "spark-submit in the project's root with --properties-file conf/spark-defaults.conf; otherwise pass "
            f"--jars with the jars of {jar_folder()}, which `python -m stratalog.jobs.jars` fetches"
        ) from error


def _start_jvm(conf: SparkConf) -> JavaGateway:
    """Start the JVM. The lines of its standard error are passed on, without ``_NOISE``."""
    read_end, write_end = os.pipe()
    threading.Thread(target=_pass_on, args=(read_end,), name="jvm-stderr", daemon=True).start()
    try:
        gateway: JavaGateway = launch_gateway(conf, popen_kwargs={"stderr": write_end})  # type: ignore[no-untyped-call]
        return gateway
    finally:
        os.close(write_end)


def _pass_on(read_end: int) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                os.write(2, line)
