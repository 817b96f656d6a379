"""Judges the commits of other writers to a table since its last version that was a remote log. Pure, except for
reading the entries of the table's log.

Each stratalog commit that touches files has the application transaction ``stratalog`` with its version. At that
version, the table is a remote log. Later commits are judged by Delta's ``dataChange``:

    no add, no remove                   properties, columns, statistics: the files are unchanged
    the same files again                a RESTORE to that version: no change
    dataChange=false on all files       OPTIMIZE, Z-order, REORG: the same records in other files. Segments stay in
                                        the store until a VACUUM, so the remote log is unchanged (``Rewrite``). The
                                        next commit by stratalog first reverts the rewrite
    dataChange=true on any file         append, overwrite, DELETE, UPDATE, MERGE, a RESTORE to another version: the
                                        table is no longer a log, and is refused until it is restored

Statistics cannot prove that records are the same (an UPDATE keeps their number, offsets and times), but they can
prove that they are not: a rewrite keeps the number of records. There is one exception. delta-rs 1.6.6 commits an
OPTIMIZE even if files that it removes have left the table since it read them. This happens if the files left
without a change of data: by another OPTIMIZE, or when this product reverted one. In both cases, the records of the
files that had left are in the table twice. Such a commit is recognized by the files that it removes. It adds no
new record, so it is reverted like any rewrite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from stratalog.partitions import paths
from stratalog.partitions.bounded import parse_json, read_bounded
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.protocol import Store
from stratalog.tiering.delta_entries import ENTRY_BYTES
from stratalog.tiering.remote_segment import RemoteSegment

APPLICATION = "stratalog"
"""The application transaction of this product's commits."""
MOST_COMMITS = 10_000
"""The maximum number of commits of other writers since stratalog's last commit; each is read with the table. The
maximum is one commit per minute for a week.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ForeignWriteError(CorruptionError):
    """Other writers have changed the records of a table: restore it to ``version``."""

    def __init__(
        self, *args: object, broker_id: int | None = None, table: str = "", version: int | None = None
    ) -> None:
        """``table`` is the address or path of the table. ``broker_id`` stays None, because the damage is not on a
        broker."""
        super().__init__(*args, broker_id=broker_id)
        self.table, self.version = table, version


class _CommitFile(msgspec.Struct):
    """An add or remove action, with only the fields that are used here."""

    path: str
    dataChange: bool = True  # noqa: N815 - Delta's name
    size: int | None = None


class _Transaction(msgspec.Struct):
    """An application transaction."""

    appId: str = ""  # noqa: N815 - Delta's name
    version: int = -1


class _Action(msgspec.Struct):
    """A line of an entry."""

    add: _CommitFile | None = None
    remove: _CommitFile | None = None
    txn: _Transaction | None = None
    commitInfo: dict[str, object] | None = None  # noqa: N815 - what stands in it is up to the engine


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A version of the table that this product did not commit, or that touches no files."""

    version: int
    operation: str = "a commit"
    engine: str | None = None
    user: str | None = None
    when: str | None = None
    added: Mapping[str, int | None] = field(default_factory=dict)
    """Paths and sizes of the added files."""
    removed: frozenset[str] = frozenset()
    changes_data: bool = False
    is_log: bool = False
    """Whether the version has stratalog's transaction: the table is a remote log at this version."""

    @property
    def touches_files(self) -> bool:
        """Whether the version adds or removes files."""
        return bool(self.added or self.removed)

    def __str__(self) -> str:
        parts = [f"{self.operation} at version {self.version}"]
        parts += [f"by {self.user}"] if self.user else []
        parts += [f"with {self.engine}"] if self.engine else []
        parts += [f"on {self.when}"] if self.when else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of any writer that the table lists."""

    path: str
    size_bytes: int
    records: int | None
    """The number of records; None if the file's statistics lack it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files in the table in place of segments, with the same records."""

    since: int
    """The version at which the table was the remote log."""
    commits: tuple[ForeignCommit, ...]
    """The commits of the rewrite; never empty."""
    lacking: tuple[RemoteSegment, ...]
    """Segments of the remote log that the table no longer lists. A VACUUM may delete them."""
    files: tuple[ListedFile, ...]
    """The files that the table lists instead."""
    twice: bool = False
    """Whether some records are in the table twice, because a commit removed files that had already left the
    table.
    """

    def __str__(self) -> str:
        """A readable description."""
        files, segments = _count(len(self.files), "foreign file"), _count(len(self.lacking), "segment")
        records = (
            "but kept an older version of the table, so that records occur twice"
            if self.twice
            else "with the same records"
        )
        return (
            f"another writer has rewritten the table, {records} ({'; '.join(map(str, self.commits))}): {files} "
            f"{'replaces' if len(self.files) == 1 else 'replace'} {segments}, which any VACUUM may delete"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def commits_since(
    remote: Store, folder: str, since: int | None, last: int
) -> tuple[int | None, list[ForeignCommit]]:
    """The version at which the table in ``folder`` was last a remote log, and the commits after it up to ``last``.
    ``since`` is that version according to the table's transaction. It is None if there is no transaction, or if
    Delta has forgotten it (``delta.setTransactionRetentionDuration``); then the entries show the version. The
    result is None if they do not, with the last commits that the log still has. If more than ``MOST_COMMITS``
    would have to be read, it is None without commits.

    Raises: CorruptionError for an entry that is not Delta JSON; StorageError.
    """
    if since is not None and last - since > MOST_COMMITS:
        return None, []
    commits: list[ForeignCommit] = []
    for version in range(last, since or 0, -1):
        if len(commits) == MOST_COMMITS:
            return None, []
        name = paths.join(folder, paths.DELTA_LOG, f"{version:020d}.json")
        try:
            commit = parse_commit(version, read_bounded(remote, name, ENTRY_BYTES), remote.uri_of(name))
        except FileNotFoundError:
            return None, commits[::-1]
        if commit.is_log:
            return version, commits[::-1]
        commits.append(commit)
    return since or 0, commits[::-1]


def parse_commit(version: int, entry: bytes, what: str) -> ForeignCommit:
    """One entry of a table's log; ``what`` names it. Raises: CorruptionError."""
    try:
        actions = [parse_json(line, _Action) for line in entry.splitlines() if line.strip()]
    except ValueError as error:
        raise CorruptionError(f"{what} is not a valid entry of a Delta log: {error}") from error
    info = next((action.commitInfo for action in actions if action.commitInfo is not None), {})
    adds = [action.add for action in actions if action.add is not None]
    removes = [action.remove for action in actions if action.remove is not None]
    transactions = [action.txn for action in actions if action.txn is not None]
    return ForeignCommit(
        version,
        _text(info, "operation") or "a commit",
        _text(info, "engineInfo"),
        _text(info, "userName") or _text(info, "userId"),
        _when(info.get("timestamp")),
        {add.path: add.size for add in adds},
        frozenset(remove.path for remove in removes),
        any(file.dataChange for file in (*adds, *removes)),
        any(one.appId == APPLICATION and one.version == version for one in transactions),
    )


def rewrite_of(
    what: str,
    since: int,
    commits: Sequence[ForeignCommit],
    ours: Sequence[RemoteSegment],
    listed: Sequence[ListedFile],
) -> Rewrite:
    """The rewrite by the ``standing`` commits. ``what`` names the table. At version ``since``, it was the log of
    the segments ``ours``; ``listed`` are its current files.

    Raises: ForeignWriteError, with the remedy, if the commits changed its records.
    """
    data = [commit for commit in commits if commit.changes_data]
    records = None if any(file.records is None for file in listed) else sum(file.records or 0 for file in listed)
    once = sum(segment.records for segment in ours)
    twice = records is not None and records > once and _removes_what_has_left(ours, commits)
    if data or not (twice or records in (None, once)):
        before = commits[0].version - 1
        changes = "; ".join(map(str, data or commits))
        raise ForeignWriteError(
            f"another writer has changed the records of the table {what}: {changes}. The table is no longer a "
            f"log, and stratalog neither reads nor writes it until the table is restored to version {before}: "
            f"DeltaTable({what!r}).restore({before}), or RESTORE TABLE delta.`{what}` TO VERSION AS OF {before}",
            table=what,
            version=before,
        )
    sizes = {file.path: file.size_bytes for file in listed}
    paths_of_ours = {segment.path for segment in ours}
    return Rewrite(
        since,
        tuple(commits),
        tuple(segment for segment in ours if sizes.get(segment.path) != segment.size_bytes),
        tuple(file for file in listed if file.path not in paths_of_ours),
        twice,
    )


def _text(info: Mapping[str, object], name: str) -> str | None:
    found = info.get(name)
    return found if isinstance(found, str) and found else None


def _when(timestamp_ms: object) -> str | None:
    if not isinstance(timestamp_ms, int):
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return None


def _removes_what_has_left(ours: Iterable[RemoteSegment], commits: Iterable[ForeignCommit]) -> bool:
    """Whether a commit removes a file that had already left the table. Before the commits, the table listed
    ``ours``."""
    listed = {segment.path for segment in ours}
    for commit in commits:
        if not commit.removed <= listed:
            return True
        listed = (listed - commit.removed) | commit.added.keys()
    return False


def standing(ours: Iterable[RemoteSegment], commits: Sequence[ForeignCommit]) -> list[ForeignCommit]:
    """The commits that touch files and that no later commit has reverted, in order. Before the commits, the table
    listed exactly the segments ``ours``. Returns no commits if the table lists exactly these segments at the end,
    too."""
    log: dict[str, int | None] = {segment.path: segment.size_bytes for segment in ours}
    listed = dict(log)
    left: list[ForeignCommit] = []
    for commit in commits:
        if commit.touches_files:
            listed = {path: size for path, size in listed.items() if path not in commit.removed}
            listed |= commit.added
            left = [] if listed == log else [*left, commit]
    return left
