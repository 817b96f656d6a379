"""The reasons to refuse a session before a JVM starts."""

from __future__ import annotations

import pytest

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
