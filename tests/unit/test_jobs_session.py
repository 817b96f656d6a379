"""The reasons to refuse a session before a JVM starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from stratalog.jobs import session
from stratalog.jobs.session import spark_session
from stratalog.partitions.errors import EnvironmentUnusableError


def test_a_master_together_with_a_server_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's functions use ``$SPARK_REMOTE`` as soon as it is set, whichever session exists."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
    with pytest.raises(EnvironmentUnusableError, match=r"local\[2\], but.*sc://elsewhere:15002"):
        spark_session("refused", master="local[2]")


def test_a_refusal_does_not_repeat_the_token_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002/;user_id=me;token=hunter2")
    with pytest.raises(EnvironmentUnusableError, match="sc://elsewhere:15002") as refused:
        spark_session("refused", master="local[2]")
    assert "hunter2" not in str(refused.value)


def test_the_command_line_of_the_jvm_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine can read it."""
    lines = (
        "spark.hadoop.fs.s3a.secret.key hunter2",
        "spark.hadoop.javax.jdo.option.ConnectionURL jdbc:x:pwd=hunter2",
        "spark.driver.memory 3g",
        "spark.sql.shuffle.partitions 7",
    )
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    for name, value in (("SPARK_CONF_DIR", str(tmp_path)), ("SPARK_HOME", "x"), ("PYSPARK_PYTHON", "x")):
        monkeypatch.setenv(name, value)  # the session sets the last two; monkeypatch removes them again
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "_running_session", lambda: None)
    monkeypatch.setattr(session, "use_java", lambda environ: None)
    monkeypatch.setattr(session, "fetch_jars", lambda folder: None)
    seen: dict[str, str] = {}

    class StartedError(Exception):
        pass

    def launch(conf: Any, **_: Any) -> None:
        seen.update(conf.getAll())
        raise StartedError

    monkeypatch.setattr(session, "launch_gateway", launch)
    given = {
        "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net": "hunter2",
        "spark.sql.shuffle.partitions": "9",
    }
    with pytest.raises(StartedError):
        spark_session("started", master="local[1]", settings=given)
    assert "hunter2" not in str(seen)
    assert (seen["spark.master"], seen["spark.sql.shuffle.partitions"]) == ("local[1]", "9")
    assert "spark.driver.memory" not in seen  # spark-submit reads it in the same file
