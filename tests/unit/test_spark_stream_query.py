"""The query of a batch if Spark Connect does not name it: identified by its checkpoint, or as the only query."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from stratalog.engine.spark.stream_query import query_of_server
from stratalog.partitions.errors import InvalidCallError


class Session:
    """A session with some queries, and files of text."""

    def __init__(self, *ids: str, **files: str) -> None:
        self.streams = self.read = self
        self.active = [type("Query", (), {"id": one}) for one in ids]
        self._files = files

    def text(self, path: str) -> Session:
        if path not in self._files:
            raise AnalysisException(f"[PATH_NOT_FOUND] Path does not exist: {path}\nat somewhere")
        self._path = path
        return self

    def collect(self) -> list[tuple[str]]:
        return [(line,) for line in self._files[self._path].splitlines()]


def query_of(session: Session, checkpoint: str | None = None) -> str:
    return query_of_server(cast(Any, session), checkpoint)


def test_the_only_query_of_a_session_is_the_one() -> None:
    assert query_of(Session("a")) == "a"


@pytest.mark.parametrize("session", [Session(), Session("a", "b")])
def test_with_several_queries_none_is_guessed(session: Session) -> None:
    with pytest.raises(InvalidCallError, match=r"the session has [02] active queries.*checkpoint="):
        query_of(session)


def test_a_checkpoint_identifies_the_query_whatever_others_there_are() -> None:
    session = Session("a", "b", **{"s3://b/c/metadata": '{"id":"b"}'})
    assert query_of(session, "s3://b/c") == query_of(session, "s3://b/c/") == "b"


@pytest.mark.parametrize("text", [None, "", "v1", "{}", "[]"])
def test_a_folder_that_is_no_checkpoint_is_named(text: str | None) -> None:
    session = Session("a", **({} if text is None else {"x/metadata": text}))
    with pytest.raises(
        InvalidCallError, match=r"^x/metadata does not contain the query's id; is that the query"
    ) as raised:
        query_of(session, "x")
    assert "\n" not in str(raised.value)
