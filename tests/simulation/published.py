"""The table in which the topic publishes its snapshots, after every step (``stratalog.snapshots.erasure``, "The
published table": S3 and S4 there).

    P1  the newest version can be read, and lists only files that exist
    P2  the rows of a partition are the latest records below the end of its snapshot, without erased keys
    P3  what another program has rewritten stays until the next snapshot of the partition replaces it
    P4  after an erasure is reported whole, no file in the folder has a record of its keys, or a value of one
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.partitions import paths
from stratalog.partitions.paths import CheckpointName
from tests.simulation.delta import BrokenLogError, TableState, log_of, state_on
from tests.simulation.oracle import Key, Token, is_tombstone, key_of
from tests.simulation.roots import Entry
from tests.simulation.scheduler import Driver, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

Rows = Mapping[int, tuple[Token, ...]]
"""Tokens by partition."""


@lru_cache(maxsize=4096)
def rows_of(data: bytes) -> Rows:
    """The rows of a file of any writer."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(columns=["partition", "value"], use_threads=False)
    found: defaultdict[int, list[Token]] = defaultdict(list)
    for partition, value in zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True):
        found[partition].append(value)
    return {partition: tuple(tokens) for partition, tokens in found.items()}


@dataclass(slots=True)
class PublishedTable:
    """The checks of the topic's table."""

    world: World
    dropped: set[str] = field(default_factory=set)
    """The names of objects that left with the whole table, or with its whole log."""
    _version: int = -1
    _rows: dict[int, frozenset[Token]] = field(default_factory=dict)
    """The rows of the last file of each partition that this version of the table or an earlier one listed."""
    _seen: tuple[object, ...] = ()
    _listed_beside: dict[str, set[str]] = field(default_factory=dict)
    """By driver, the files that were single PUTs in flight when it last listed the folder."""
    _in_flight: set[str] = field(default_factory=set)
    """Those of runs that have reported an erasure as whole: the exception of E2."""

    @property
    def folder(self) -> str:
        """The table's folder in the remote tier."""
        world = self.world
        name = world.oracle.image.topics[world.topic_id].name
        return paths.join(paths.SNAPSHOT_TABLES, paths.topic_folder(name, world.topic_id))

    def objects(self) -> dict[str, Entry]:
        """All objects in the folder of the table, by name."""
        return {
            name: entry
            for folder, entries in self.world.remote.folders.items()
            if folder == self.folder or folder.startswith(self.folder + "/")
            for name, entry in entries.items()
        }

    def check(self) -> None:
        """Check after a step. Raises: Violation."""
        remote, histories = self.world.remote, self.world.oracle.histories
        seen = tuple((len(history.keys_whole), len(history.keys_gone)) for history in histories.values())
        if seen == self._seen and not any(folder.startswith(paths.SNAPSHOT_TABLES) for folder in remote.changed):
            return
        self._seen = seen
        remote.changed.clear()
        self._check_files()
        try:
            state = state_on(remote, self.folder)
        except BrokenLogError as error:
            self._check_dropped(f"cannot be read: {error}")
            return
        if state is None:
            if self._version >= 0:
                self._check_dropped("is gone")
        else:
            if state.version < self._version:
                self._check_dropped(f"is at version {state.version} after version {self._version}")
            self._version = state.version
            self._check_state(state)

    def _check_dropped(self, what: str) -> None:
        """The table may not be what it was: its whole log was deleted, or is being deleted."""
        if not any(name.startswith(log_of(self.folder)) for name in self.dropped):
            raise Violation(f"P1: the published table {what}")
        self._version = -1
        self._rows.clear()

    def _check_state(self, state: TableState) -> None:
        own: dict[int, frozenset[Token]] = {}
        others: defaultdict[int, list[Token]] = defaultdict(list)
        whole = True
        for path, listed in state.listed.items():
            found = self.world.remote.get(f"{self.folder}/{path}")
            if found is None or found[0].size_bytes != listed.size_bytes:
                if f"{self.folder}/{path}" not in self.dropped:
                    raise Violation(
                        f"P1: version {state.version} of the published table lists {path}, which is gone"
                    )
                whole = False
                continue
            parsed, rows = paths.parse_published_path(path), rows_of(found[1])
            if parsed is None:
                for partition, tokens in rows.items():
                    others[partition] += tokens
                continue
            if parsed[0] in own:
                raise Violation(f"P3: version {state.version} lists two files of partition {parsed[0]}")
            own[parsed[0]] = frozenset(rows.get(parsed[0], ()))
            self._check_rows(parsed[0], parsed[1], rows, f"in {path}")
        if not whole:
            return
        for partition, rows_there in own.items():
            self._rows[partition] = rows_there
        for partition in sorted(self._rows.keys() | others.keys()):
            there = others.get(partition, [])
            if partition in own and there:
                raise Violation(f"P3: version {state.version} has rows of partition {partition} twice")
            if partition not in own and (
                len(there) != len({*there}) or {*there} != self._rows.get(partition, frozenset())
            ):
                raise Violation(
                    f"P3: version {state.version} has {sorted(there)} of partition {partition}, which had "
                    f"{sorted(self._rows.get(partition, ()))}"
                )

    def _check_rows(self, partition: int, snapshot: CheckpointName, rows: Rows, who: str) -> None:
        key: Key = self.world.topic_id, partition
        history, wanted = self.world.oracle.history(key), self.world.oracle.keys_wanted
        if rows.keys() - {partition}:
            raise Violation(f"P2: rows of partitions {sorted(rows)} are {who}")
        latest: dict[bytes, Token] = {}
        for offset in range(snapshot.end_offset):
            if offset not in history.committed:
                return  # another history
            latest[key_of(history.committed[offset])] = history.committed[offset]
        tokens = rows.get(partition, ())
        if len({key_of(token) for token in tokens}) != len(tokens):
            raise Violation(f"P2: a key is twice in {sorted(tokens)} {who}")
        for token in tokens:
            if latest.get(key_of(token)) != token:
                raise Violation(f"P2: {token!r} is {who}, and {latest.get(key_of(token))!r} is later")
            if history.offsets[token] < history.keys_gone.get(key_of(token), 0):
                raise Violation(f"P2: {token!r} is listed {who}, and its key was erased")
        for of_key, token in latest.items():
            if of_key not in wanted and not is_tombstone(token) and token not in tokens:
                raise Violation(f"P2: {token!r} is not {who}")

    def _check_files(self) -> None:
        """P4 for the files of the product, whether listed or not."""
        if not any(history.keys_whole for history in self.world.oracle.histories.values()):
            return
        for name, (_, data) in self.objects().items():
            own = paths.parse_published_path(name.removeprefix(f"{self.folder}/")) is not None
            if own and name not in self._in_flight:
                self._check_erased(name, data)

    def check_whole(self, driver: Driver, before: Mapping[str, str]) -> None:
        """A run has reported an erasure as whole: P4 for all files that were there when it began, with these
        versions by name. A slow program may have written others since. Raises: Violation."""
        self._in_flight |= self._listed_beside.get(driver.name, set())
        for name, (stored, data) in self.objects().items():
            if before.get(name) == stored.version:
                self._check_erased(name, data)

    def note(self, driver: Driver, what: str, name: str) -> None:
        """Called with every call of a store."""
        if what in ("list", "page") and name == self.folder and not self.world.remote.shows_staged:
            beside = self._listed_beside.setdefault(driver.name, set())
            if what == "list":
                beside.clear()
            beside |= {
                other.object
                for other in self.world.scheduler.living()
                if other.what == "commit" or other.on_its_way
            }

    def begin(self, driver: Driver) -> dict[str, str]:
        """A run of an erasure begins: the versions of the present objects, by name."""
        self._listed_beside.pop(driver.name, None)
        return {name: stored.version for name, (stored, _) in self.objects().items()}

    def remove_unlisted(self) -> None:
        """Delete by hand what another program has written and never listed, as the reports of an erasure say."""
        with suppress(BrokenLogError):
            state = state_on(self.world.remote, self.folder) or TableState(-1)
            for name in self.objects():
                path = name.removeprefix(f"{self.folder}/")
                of_table = path in state.listed or path in state.removed or name.startswith(log_of(self.folder))
                if not of_table and paths.parse_published_path(path) is None:
                    self.world.remote.delete(name)

    def check_end(self) -> None:
        """Check at the end that a topic that publishes its snapshots has one of each partition in its table, and
        that the folder has no other file, or no file at all. Raises: Violation."""
        world = self.world
        topic = world.oracle.image.topics[world.topic_id]
        names = {name.removeprefix(f"{self.folder}/") for name in self.objects()}
        data = {name for name in names if not name.startswith(paths.DELTA_LOG)}
        if topic.configs.get("remote.snapshot.table.enable") != "true":
            if names:
                raise Violation(f"I7: {sorted(names)} are left of a table that was switched off")
            return
        state = state_on(world.remote, self.folder)
        if state is None or data != state.listed.keys():
            raise Violation(f"I7: the published table lists {state}, and there are {sorted(data)}")
        of = sorted(parsed[0] for path in data if (parsed := paths.parse_published_path(path)) is not None)
        if of != [*range(world.shape.partitions)]:
            raise Violation(f"I7: the published table lists {sorted(data)} in the end")

    def _check_erased(self, name: str, data: bytes) -> None:
        of_log = name.startswith(log_of(self.folder))
        rows = () if of_log else {token for tokens in rows_of(data).values() for token in tokens}
        for token in self._erased():
            if (_in_statistics(token) in data) if of_log else token in rows:
                raise Violation(f"P4: {token!r} was erased, and is in {name}")

    def _erased(self) -> Iterator[Token]:
        for history in self.world.oracle.histories.values():
            for token, offset in history.offsets.items() if history.keys_whole else ():
                if offset < history.keys_whole.get(key_of(token), 0):
                    yield token


def _in_statistics(token: Token) -> bytes:
    """A value in the statistics of an entry, which are JSON in JSON."""
    return rb"\"%s\"" % token
