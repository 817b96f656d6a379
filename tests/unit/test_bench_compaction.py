"""The benchmark of compactions: its figures, and its required disk space."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from bench import compaction


def test_it_counts_what_a_compaction_does_and_needs_no_more_disk_than_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(compaction._CONFIGS, "segment.bytes", "1")
    found = compaction.many_keys(20_000)
    assert found.removed == 2_000
    assert found.read_bytes + found.written_bytes < found.disk_bytes < compaction.disk_bytes(20_000)


def test_a_hundred_million_keys_need_less_than_20_gb() -> None:
    assert compaction.disk_bytes(100_000_000) < 20e9


def test_without_the_room_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**9))
    monkeypatch.setattr(compaction, "many_keys", lambda keys: pytest.fail("it has begun"))
    with pytest.raises(SystemExit, match=r"100,000,000 keys need 12\.0 GB, and .* has 1\.0 GB free: set TMPDIR"):
        compaction.main(["--keys", "100000000", "--dirty"])
