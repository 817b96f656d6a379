"""What the maintenance remembers from run to run, and what follows for what is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.upkeep.maintenance.times import Times, decode, encode, wait_ms
from stratalog.partitions.identity import TopicIdPartition

NOW = 1_000_000_000_000
A, B = (TopicIdPartition("a" * 32, partition) for partition in (0, 1))
times = st.builds(
    Times,
    st.dictionaries(st.sampled_from(["merge", "vacuum"]), st.integers(0, NOW)),
    st.dictionaries(st.sampled_from([A, B]), st.integers(0, NOW)),
)


@pytest.mark.parametrize(
    ("last_ms", "wait"),
    [(None, 0), (NOW - 101, 0), (NOW - 100, 0), (NOW - 99, 1), (NOW, 100), (NOW + 1, 0)],
    ids=["never done", "overdue", "due", "nearly", "just done", "in the future: the clock has jumped back"],
)
def test_a_thing_is_due_an_interval_after_it_was_done(last_ms: int | None, wait: int) -> None:
    assert wait_ms(last_ms, 100, NOW) == wait


@given(times)
def test_what_is_written_is_read(kept: Times) -> None:
    assert decode(encode(kept)) == kept


@pytest.mark.parametrize("line", [b"", b"[2,{},{}]", b"[1,{}", b"[1,{},{},{}]", b'[1,{"merge":"x"},{}]'])
def test_what_cannot_be_read_is_forgotten(line: bytes) -> None:
    assert decode(line) == Times()


@given(times, times)
def test_two_runs_put_their_times_together(one: Times, other: Times) -> None:
    """A partition that is gone is forgotten."""
    both = one.updated(other, [A])
    assert both.steps == {**one.steps, **other.steps}
    assert both.scrubbed == {key: ms for key, ms in {**one.scrubbed, **other.scrubbed}.items() if key == A}
