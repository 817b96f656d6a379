"""What the maintenance remembers from run to run, and what follows for what is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.upkeep.maintenance.times import (
    LONGEST_MS,
    NO_TROUBLE,
    Settled,
    Times,
    Trouble,
    decode,
    encode,
    wait_ms,
)
from stratalog.partitions.identity import TopicIdPartition

NOW = 1_000_000_000_000
A, B = (TopicIdPartition("a" * 32, partition) for partition in (0, 1))
trouble = st.builds(Trouble, st.integers(0, NOW), st.integers(1, 9), *[st.text(max_size=3)] * 3)
times = st.builds(
    Times,
    st.dictionaries(st.sampled_from(["merge", "vacuum"]), st.integers(0, NOW)),
    st.dictionaries(st.sampled_from([A, B]), st.integers(0, NOW)),
    st.frozensets(st.sampled_from(["merge", "retain"])),
    st.dictionaries(
        st.sampled_from([A, B]),
        st.builds(
            Settled,
            st.integers(1, 2**56 - 1),
            st.dictionaries(st.sampled_from(["merge", "tier"]), st.integers(1, NOW), min_size=1),
        ),
    ),
    st.dictionaries(st.sampled_from(["merge", "tier"]), trouble),
    st.dictionaries(st.sampled_from([A, B]), trouble),
)


@pytest.mark.parametrize(
    ("last_ms", "wait"),
    [(None, 0), (NOW - 101, 0), (NOW - 100, 0), (NOW - 99, 1), (NOW, 100), (NOW + 1, 0)],
    ids=["never done", "overdue", "due", "nearly", "just done", "in the future: the clock has jumped back"],
)
def test_a_thing_is_due_an_interval_after_it_was_done(last_ms: int | None, wait: int) -> None:
    assert wait_ms(last_ms, 100, NOW) == wait


@pytest.mark.slow
@given(times)
def test_what_is_written_is_read(kept: Times) -> None:
    assert decode(encode(kept)) == kept


@pytest.mark.parametrize(
    "line", [b"", b"[1,{},{}]", b"[2,{}", b"[9,{},{},[],[],{}]", b'[2,{"merge":"x"},{},[],[],{}]']
)
def test_what_cannot_be_read_is_forgotten(line: bytes) -> None:
    assert decode(line) == Times()


def test_trouble_goes_back_to_the_first_run_that_had_it_and_ends_with_one_that_has_none() -> None:
    first = Times(failing={"tier": Trouble(1, 2, "t-0", "X", "x")}, damaged={A: Trouble(1, 1, "t-0", "Y", "y")})
    again = Times(failing={"tier": Trouble(9, 1, "t-1", "Z", "z")}, damaged={A: Trouble(9, 1, "t-0", "Y", "y")})
    later = decode(encode(first.updated(again, [A])))
    assert later.failing == {"tier": Trouble(1, 1, "t-1", "Z", "z")}
    assert later.damaged[A].since_ms == 1
    over = Times(failing={"tier": NO_TROUBLE}, damaged={A: NO_TROUBLE})
    assert decode(encode(later.updated(over, [A]))) == Times()
    once_more = later.updated(over, [A]).updated(again, [A])
    assert once_more.failing["tier"].since_ms == 9, "it was well in between"


def test_what_an_earlier_version_has_written_is_read() -> None:
    line = b'[2,{"merge":5},{},[],[],{}]'
    assert decode(line) == Times({"merge": 5})


@given(times, times)
def test_two_runs_put_their_times_together(one: Times, other: Times) -> None:
    """A partition that is gone is forgotten."""
    both = one.updated(other, [A])
    assert both.steps == {**one.steps, **other.steps}
    assert both.scrubbed == {key: ms for key, ms in {**one.scrubbed, **other.scrubbed}.items() if key == A}


def test_a_step_that_was_cut_off_is_so_until_it_is_begun_again() -> None:
    cut = Times({"merge": 1}, cut_off=frozenset({"merge"}))
    assert cut.updated(Times({"retain": 2}), []).cut_off == {"merge"}
    assert cut.updated(Times({"merge": 3}), []).cut_off == frozenset()
    assert cut.updated(Times({"merge": 3}, cut_off=frozenset({"merge"})), []).cut_off == {"merge"}


def test_a_partition_is_settled_while_it_looks_the_same_and_until_its_time() -> None:
    kept = Times(settled={A: Settled(7, {"merge": NOW + 10})})
    assert kept.is_settled("merge", A, 7, NOW)
    assert not kept.is_settled("merge", A, 8, NOW)
    assert not kept.is_settled("retain", A, 7, NOW)
    assert not kept.is_settled("merge", B, 7, NOW)
    assert not kept.is_settled("merge", A, 7, NOW + 10)
    assert not kept.is_settled("merge", A, 7, NOW + 9 - LONGEST_MS)  # the clock has jumped back
    assert not Times(settled={A: Settled(0, {"merge": NOW + 10})}).is_settled("merge", A, 0, NOW)


def test_what_steps_have_found_counts_for_one_look() -> None:
    """Another look forgets all that was found before it."""
    kept = Times(settled={A: Settled(7, {"merge": 10})})
    same = kept.updated(Times(settled={A: Settled(7, {"tier": 20})}), [A])
    assert same.settled == {A: Settled(7, {"merge": 10, "tier": 20})}
    other = kept.updated(Times(settled={A: Settled(8, {"tier": 20})}), [A])
    assert other.settled == {A: Settled(8, {"tier": 20})}
    assert kept.updated(Times(), []).settled == {}
