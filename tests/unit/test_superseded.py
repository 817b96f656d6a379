"""The result of a rule equals a dictionary's, with as little memory as possible."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import StorageError
from stratalog.partitions.records import ABORT, ABORTED, COMMIT, GAP
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites import superseded
from stratalog.partitions.rewrites.superseded import Superseded

Row = tuple[bytes | None, bool, int | None]
"""The key, whether the value is null, and the control type."""

rows_of = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"ab"])),
        st.booleans(),
        st.sampled_from([None, None, None, None, ABORT, COMMIT, ABORTED, GAP]),
    ),
    max_size=40,
)


def batches(
    rows: Sequence[Row], start: int, size: int, key: pa.DataType | None = None
) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        yield pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(range(start + at, start + at + len(some)), pa.int64()),
                "key": pa.array([None if c == GAP else k for k, _, c in some], key or pa.binary()),
                "tombstone": pa.array([t for _, t, _ in some], pa.bool_()),
                "control": pa.array([c for *_, c in some], pa.int32()),
            }
        )


def as_the_text_says(rows: Sequence[Row], start: int, rule: Rule) -> list[bool]:
    last = {k: at for at, (k, _, c) in enumerate(rows) if c is None and start + at < rule.bound}
    found = []
    for at, (key, tombstone, control) in enumerate(rows):
        if start + at >= rule.bound:
            break
        old = tombstone and start + at < rule.tombstones_before
        kept = control is None and key is not None and last[key] == at and not old
        found.append(not kept and control != GAP)
    return found


@given(rows_of, st.integers(0, 5), st.integers(0, 45), st.integers(0, 45), st.integers(1, 9))
def test_a_rule_removes_what_the_text_says(
    rows: list[Row], start: int, bound: int, before: int, size: int
) -> None:
    rule = Rule(1, start + min(bound, len(rows)), start + min(before, bound, len(rows)))
    for memory_bytes in (1, 300, 1 << 20):
        with Superseded(start, rule, memory_bytes) as found:
            found.find(batches(rows, start, size))
            assert found.removed(start, rule.bound).tolist() == as_the_text_says(rows, start, rule)


def test_keys_of_one_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash only selects the keys to compare: a collision removes nothing."""
    monkeypatch.setattr(superseded, "key_hashes", lambda columns: superseded.np.zeros(len(columns[0]), "u8"))
    rows: list[Row] = [(key, False, None) for key in (b"a", b"b", b"a", b"c")]
    with Superseded(0, Rule(1, 4), 1) as found:
        found.find(batches(rows, 0, 1))
        assert found.removed(0, 4).tolist() == [True, False, False, False]


def test_more_keys_than_memory_are_split_and_split_again(tmp_path: Path) -> None:
    chosen = random.Random(44)
    rows: list[Row] = [(b"%d" % chosen.randrange(20_000), chosen.random() < 0.1, None) for _ in range(50_000)]
    rule = Rule(1, 49_000, 10_000)
    with Superseded(0, rule, 8_000, tmp_path) as found:
        found.find(batches(rows, 0, 1_000))
        assert found.removed(0, rule.bound).tolist() == as_the_text_says(rows, 0, rule)
        assert found.deepest >= 2
    assert not [*tmp_path.iterdir()], "its files end with it"


def test_one_key_that_fills_the_log_takes_no_more_than_itself(tmp_path: Path) -> None:
    rows: list[Row] = [(b"k" * 100, False, None)] * 30_000
    with Superseded(0, Rule(1, 30_000), 200_000, tmp_path) as found:
        found.find(batches(rows, 0, 1_000))
        assert found.removed(0, 30_000).tolist() == [True] * 29_999 + [False]
        assert found.deepest == 0


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["pathlib.Path.open", "pyarrow.ipc.new_stream", "no folder"])
def test_a_full_or_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    folder = tmp_path / "scratch"
    if what == "no folder":
        reason = "No such file"
    else:
        folder.mkdir()
        reason = "No space left"
        monkeypatch.setattr(what, full)
    rows: list[Row] = [(b"%d" % at, False, None) for at in range(2000)]

    def find() -> None:
        with Superseded(0, Rule(1, len(rows)), 1000, folder) as found:
            found.find(batches(rows, 0, 100))

    with pytest.raises(StorageError, match=rf"scratch.*{reason}.*set TMPDIR"):
        find()
    assert not folder.exists() or not list(folder.iterdir())


def test_keys_that_are_structs_are_compared_field_by_field() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    keys = [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": None}, {"a": 1, "b": "x"}, None]
    rows: list[Row] = [(key, False, None) for key in keys]  # type: ignore[misc]
    for memory_bytes in (1, 1 << 20):
        with Superseded(0, Rule(1, 5), memory_bytes) as found:
            found.find(batches(rows, 0, 2, kind))
            assert found.removed(0, 5).tolist() == [True, False, False, False, True]
