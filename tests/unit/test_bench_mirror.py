"""The counts of the benchmark of mirrors, and the settings that it gives to MirrorMaker."""

from __future__ import annotations

from bench.mirror_maker import properties
from bench.mirroring import copy_of


def test_records_of_a_copy_are_at_their_offset_or_twice_or_lost() -> None:
    there = {b"a": [(0, 0)], b"b": [(0, 2)], b"c": [(1, 0)], b"d": [(1, 1)]}
    copied = {b"a": [(0, 0)], b"b": [(0, 1), (0, 3), (0, 4)], b"d": [(1, 1), (1, 2)]}
    found = copy_of(there, copied, 0.25)
    assert (found.records, found.kept, found.repeated, found.lost) == (4, 2, 3, 1)
    assert str(copy_of(there, there, 1.0)) == "4 at their offset, 0 twice, 0 lost"


def test_each_alias_of_the_source_is_a_copy_of_its_own() -> None:
    lines = properties("a:1", "b:2", "one", "t").splitlines()
    assert {"clusters = one, target", "one->target.topics = t", "target->one.enabled = false"} <= {*lines}
