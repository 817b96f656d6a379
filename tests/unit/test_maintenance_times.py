"""The state of the maintenance between runs, and the work that is due because of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.driver.report import Failure
from stratalog.engine.upkeep.memory.times import (
    LONGEST_MS,
    Looked,
    Ran,
    Settled,
    Times,
    decode,
    encode,
    wait_ms,
)
from stratalog.engine.upkeep.memory.trouble import NO_TROUBLE, ListedFailure, Trouble, trouble_of
from stratalog.partitions.identity import TopicIdPartition

NOW = 1_000_000_000_000
A, B = (TopicIdPartition("a" * 32, partition) for partition in (0, 1))
texts = st.text(max_size=3)
listed = st.lists(st.builds(ListedFailure, texts, texts, texts), min_size=1, max_size=2).map(tuple)
trouble = st.builds(Trouble, st.integers(0, NOW), st.integers(1, 9), listed, st.booleans())
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
    st.dictionaries(st.just(A.topic_id), st.integers(0, 99)),
)


@pytest.mark.parametrize(
    ("last_ms", "wait"),
    [(None, 0), (NOW - 101, 0), (NOW - 100, 0), (NOW - 99, 1), (NOW, 100), (NOW + 1, 0)],
    ids=["never done", "overdue", "due", "nearly", "just done", "in the future: the clock has jumped back"],
)
def test_a_step_is_due_an_interval_after_it_ran(last_ms: int | None, wait: int) -> None:
    assert wait_ms(last_ms, 100, NOW) == wait


@pytest.mark.slow
@given(times)
def test_encoded_times_decode_to_the_same_times(kept: Times) -> None:
    assert decode(encode(kept)) == kept


@pytest.mark.parametrize(
    "line", [b"", b"[1,{},{}]", b"[3,{}", b"[9,{},{},[],[],{}]", b'[3,{"merge":"x"},{},[],[],{}]']
)
def test_malformed_lines_decode_to_no_times(line: bytes) -> None:
    assert decode(line) == Times()


def failed(since_ms: int, *of: tuple[str, str], deep: bool = False) -> Trouble:
    return trouble_of([Failure(item, code, "m") for item, code in of], since_ms, deep=deep)


def test_trouble_is_dated_from_the_first_run_that_had_it_and_ends_with_the_first_run_without_it() -> None:
    first = Times(failing={"tier": failed(1, ("t-0", "X"), ("t-1", "X"))}, damaged={A: failed(1, ("t-0", "Y"))})
    again, damage = ran(9, ("t-1", "Z")), Times(damaged={A: failed(9, ("t-0", "Y"))})
    later = decode(encode(first.ran(again).updated(damage, [A])))
    assert later.failing == {"tier": failed(1, ("t-1", "Z"))}
    assert later.damaged[A].since_ms == 1
    over = later.ran(ran(9)).updated(Times(damaged={A: NO_TROUBLE}), [A])
    assert decode(encode(over)) == Times()
    assert over.ran(again).failing["tier"].since_ms == 9, "it was well in between"


def ran(now_ms: int, *of: tuple[str, str], tried: set[str] | None = None) -> Ran:
    return Ran("tier", [Failure(item, code, "m") for item, code in of], tried, now_ms)


MANY = failed(1, *((f"t-{n}", "X") for n in range(101)))


@pytest.mark.parametrize(
    ("known", "run", "after"),
    [
        (NO_TROUBLE, ran(9, tried={"t", "t-0"}), None),
        (NO_TROUBLE, ran(9, ("t-0", "X"), tried={"t-0"}), failed(9, ("t-0", "X"))),
        (failed(1, ("t-0", "X")), ran(9, tried={"t-0"}), None),
        (failed(1, ("t-0 on broker 2", "X")), ran(9, tried={"t-0"}), None),
        (failed(1, ("t-0", "X")), ran(9, tried={"t-1"}), failed(1, ("t-0", "X"))),
        (failed(1, ("t-0", "X"), ("u-0", "X")), ran(9, tried={"t-0"}), failed(1, ("u-0", "X"))),
        (failed(1, ("u-0", "X")), ran(9, ("t-0", "Y"), tried={"t-0"}), failed(1, ("t-0", "Y"), ("u-0", "X"))),
        (failed(1, ("t-0", "X")), ran(9, ("t-0", "Y"), tried={"t-0"}), failed(1, ("t-0", "Y"))),
        (failed(1, ("remote tier", "X")), ran(9, tried={"t", "t-0"}), failed(1, ("remote tier", "X"))),
        (failed(1, ("remote tier", "X")), ran(9), None),
        (MANY, ran(9, tried={"t-0"}), MANY),
        (MANY, ran(9), None),
    ],
)
def test_a_run_changes_only_the_trouble_of_its_own_topics(known: Trouble, run: Ran, after: Trouble | None) -> None:
    found = Times(failing={"tier": known} if known.is_there else {}).ran(run).failing
    assert found == ({} if after is None else {"tier": after})


def test_more_than_is_shown_may_be_of_any_partition() -> None:
    assert Times(failing={"tier": MANY}).has_failed("tier", {"u-7"})
    assert not Times(failing={"tier": failed(1, ("t-0", "X"))}).has_failed("tier", {"u-7"})


def test_lines_of_an_earlier_version_are_decoded() -> None:
    line = b'[3,{"merge":5},{},[],[],{}]'
    assert decode(line) == Times({"merge": 5})


GAP, MISSING, REFUSED = "LOG_GAP", "REMOTE_OBJECT_MISSING", "CLUSTER_AUTHORIZATION_FAILED"


@pytest.mark.parametrize(
    ("known", "found", "deep", "stays"),
    [
        (None, [], True, None),
        (None, [GAP], False, GAP),
        (None, [REFUSED], True, None),
        (failed(1, ("t-0", GAP)), [], False, None),
        (failed(1, ("t-0", GAP)), [MISSING], False, MISSING),
        (failed(1, ("t-0", GAP)), [REFUSED], True, GAP),
        (failed(1, ("t-0", GAP), deep=True), [], False, GAP),
        (failed(1, ("t-0", GAP), deep=True), [MISSING], False, GAP),
        (failed(1, ("t-0", GAP), deep=True), [MISSING], True, MISSING),
        (failed(1, ("t-0", GAP), deep=True), [], True, None),
    ],
    ids=[
        *("sound", "found", "a broker that does not answer says nothing", "seen gone", "another one"),
        *("known, and its broker is away", "only who reads all bytes sees it gone", "known from the bytes"),
        *("the bytes tell of another", "the bytes are sound"),
    ],
)
def test_damage_stays_until_a_look_that_could_find_it_sees_it_gone(
    known: Trouble | None, found: list[str], deep: bool, stays: str | None
) -> None:
    before = Times(damaged={} if known is None else {A: known})
    looked = Looked({A: [Failure("t-0", code, "m") for code in found]}, frozenset(), deep, NOW)
    after = before.after(looked, [A, B])
    assert [one.listed[0].code for one in after.damaged.values()] == ([] if stays is None else [stays])
    if known is not None and stays is not None:
        assert after.damaged[A].since_ms == 1


@pytest.mark.parametrize(
    ("item", "code", "deep", "stays"),
    [
        ("t-0", MISSING, True, False),
        ("t-0 in the remote tier", MISSING, True, False),
        ("t", GAP, True, False),
        ("t-0", MISSING, False, True),
        ("t-0", REFUSED, True, True),
        ("t-01", MISSING, True, True),
        ("t-1", MISSING, True, True),
    ],
)
def test_a_step_that_failed_by_damage_fails_no_more_once_the_damage_is_seen_gone(
    item: str, code: str, deep: bool, stays: bool
) -> None:
    before = Times(failing={"retain": failed(1, (item, code))})
    after = before.after(Looked({A: []}, frozenset({"t-0", "t"}), deep, NOW), [A])
    assert bool(after.failing) == stays


def test_failures_that_are_not_reported_are_not_taken_for_repaired() -> None:
    many = failed(1, *[("t-0", MISSING)] * 101)
    assert many.without_damage_of({"t-0"}) == many


@given(times, times)
def test_two_runs_combine_their_times(one: Times, other: Times) -> None:
    """A removed partition is forgotten."""
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


def test_findings_of_steps_are_kept_only_for_the_look_that_they_were_based_on() -> None:
    """Another look discards all earlier findings."""
    kept = Times(settled={A: Settled(7, {"merge": 10})})
    same = kept.updated(Times(settled={A: Settled(7, {"tier": 20})}), [A])
    assert same.settled == {A: Settled(7, {"merge": 10, "tier": 20})}
    other = kept.updated(Times(settled={A: Settled(8, {"tier": 20})}), [A])
    assert other.settled == {A: Settled(8, {"tier": 20})}
    assert kept.updated(Times(), []).settled == {}
