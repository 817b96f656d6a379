"""Keys in a bucket that cannot be names of a store: they are foreign, named and left alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.listing import parse
from stratalog.partitions.store import Store, StoredObject, StoreOptions
from stratalog.partitions.store import object as object_store
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.rules import check_name
from stratalog.partitions.store.s3 import S3Store
from tests.unit.cluster_harness import LiveCluster, the_failure

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEGMENT = f"{0:020d}.{1:010d}.parquet"
STRANGE = [
    "{0}//" + SEGMENT,
    "{0}/../" + SEGMENT,
    "{0}/./" + SEGMENT,
    "{0}/a\x01b",
    "{0}/a\nb",
    "/{0}",
    "{0}/\x7f",
]


class Listed(S3Store):
    """A listing of a bucket with these keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__("s3://bucket/root", StoreOptions())
        found = [StoredObject(f"root/{key}", 1, 1, "e.1") for key in keys]
        self._objects.list = lambda prefix, most=None, after="": (1, found)  # type: ignore[method-assign]


@pytest.mark.parametrize("key", STRANGE)
def test_a_listing_marks_a_strange_key_as_special_and_ours_not(key: str) -> None:
    ours, strange = f"f/{SEGMENT}", key.format("f")
    by_name = {stored.name: stored.special for stored in Listed([ours, strange]).list("")}
    assert by_name[ours] == ""
    assert "in its key" in by_name[strange]
    assert len(parse("f", Listed([ours, strange]).list("")).data) == 1


def test_more_keys_than_a_log_ever_has_are_refused_after_the_page_that_has_one_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "MOST_NAMES", 5)
    log = f"{'a' * 32}/__cluster_metadata"
    store = S3Store("s3://bucket/root", StoreOptions())
    asked: list[object] = []

    def page(what: str, attempt: object) -> dict[str, object]:
        asked.append(what)
        start = 2 * len(asked)
        names = [f"{number:020d}.{1:010d}.parquet" for number in range(start, start + 2)]
        found = [{"Key": f"root/{log}/{name}", "Size": 1, "ETag": '"e"', "LastModified": _NOW} for name in names]
        return {"Contents": found, "IsTruncated": True, "NextContinuationToken": "more"}

    store._objects.connection.repeatable = page  # type: ignore[method-assign,assignment]
    with pytest.raises(CorruptionError, match=r"__cluster_metadata.* files, which is too many for a log"):
        store.walk(log)
    assert len(asked) == 3


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("key", STRANGE)
def test_vacuum_names_it_and_continues(tmp_path: Path, key: str, deleted: bool) -> None:
    shown: list[StoredObject] = []

    def through(uri: str, store: Store) -> Store:
        return store if isinstance(store, MemoryStore) else _Showing(store, shown)  # type: ignore[return-value]

    live = LiveCluster(tmp_path, through=through)
    live.tiered()
    live.fill(["a", "b"])
    live.cluster.tier().raise_for_failures()
    folder = next(path.name for path in live.remote.iterdir() if path.name.startswith("t-"))
    if deleted:
        live.cluster.topics.delete("t").raise_for_failures()
    (listed,) = Listed([key.format(folder)]).list("")
    shown.append(listed)
    assert "in its key" in the_failure(live.cluster.vacuum(check=False))


@pytest.mark.parametrize("key", STRANGE[1:3])
def test_deleting_a_topic_deletes_what_is_ours_and_names_the_rest(tmp_path: Path, key: str) -> None:
    shown: list[StoredObject] = []
    live = LiveCluster(tmp_path, through=lambda uri, store: _Showing(store, shown))  # type: ignore[arg-type,return-value]
    live.topic()
    live.fill("ab")
    replica = live.replica(2)
    shown.extend(Listed([key.format(replica.folder)]).list(""))
    report = live.cluster.topics.delete("t", check=False)
    assert {failure.code for failure in report.failures} == {"CORRUPT_MESSAGE"}
    assert all("in its key" in failure.message for failure in report.failures)
    shown.clear()
    assert all(not live.store(broker).list(replica.folder) for broker in (1, 2, 3))


class _Showing:
    """A store that also lists invalid names."""

    def __init__(self, store: Store, shown: Sequence[StoredObject]) -> None:
        self._store = store
        self._shown = shown

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def uri_of(self, name: str) -> str:
        return f"{self._store.uri}/{name}"

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> list[StoredObject]:
        return [
            *self._store.list(prefix, after),
            *(found for found in self._shown if found.name.startswith(f"{prefix}/")),
        ]

    def delete(self, names: Iterable[str]) -> None:
        self._store.delete([check_name(name) for name in names])

    def walk(self, prefix: str) -> list[StoredObject]:
        return [*self._store.walk(prefix), *(found for found in self._shown if found.name.startswith(prefix))]
