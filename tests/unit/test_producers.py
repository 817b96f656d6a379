"""Producer state: a retried append appends once (protocol section 2, Append step 2; KIP-98)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stratalog.partitions.errors import (
    ChangedReplayError,
    DuplicateSequenceNumberError,
    InvalidCallError,
    InvalidProducerEpochError,
    OutOfOrderSequenceNumberError,
)
from stratalog.partitions.producers import (
    LAST_APPENDS,
    MOST_RUNS,
    EarlierAttempt,
    PastAppend,
    ProducerAppend,
    ProducerEntry,
    after_append,
    check_same_records,
    decode,
    earlier_attempt,
    encode,
    unexpired,
    unnamed,
)
from stratalog.partitions.register import sealed

LAST = ProducerEntry(epoch=3, sequence=7, base_offset=100, next_offset=110, appended_ms=1_000)
STATE = {"p": LAST}


def test_an_unknown_producer_has_made_no_earlier_attempt() -> None:
    assert earlier_attempt({}, ProducerAppend("p", 0, 0), "events-0") is None
    assert earlier_attempt(STATE, ProducerAppend("q", 3, 7), "events-0") is None


def test_the_last_sequence_again_answers_with_its_offsets() -> None:
    """Section 2, step 2: the producer's last sequence has its offsets."""
    assert earlier_attempt(STATE, ProducerAppend("p", 3, 7), "events-0") == EarlierAttempt(110, 100)


@pytest.mark.parametrize("sequence", [8, 9, 1000])
def test_a_later_sequence_is_new_and_gaps_are_allowed(sequence: int) -> None:
    """Design section 4: a micro-batch may have nothing for a partition."""
    assert earlier_attempt(STATE, ProducerAppend("p", 3, sequence), "events-0") is None


@pytest.mark.parametrize("sequence", [0, 6])
def test_an_earlier_sequence_of_which_nothing_is_remembered_may_be_a_duplicate(sequence: int) -> None:
    """Kafka's name of the error; the message names the producer."""
    with pytest.raises(DuplicateSequenceNumberError, match=r"events-0: producer 'p' .*sequence 7"):
        earlier_attempt(STATE, ProducerAppend("p", 3, sequence), "events-0")


@pytest.mark.parametrize("sequence", [0, 7, 8])
def test_an_older_producer_epoch_is_fenced_whatever_its_sequence(sequence: int) -> None:
    with pytest.raises(InvalidProducerEpochError, match=r"events-0: producer 'p' has epoch 3"):
        earlier_attempt(STATE, ProducerAppend("p", 2, sequence), "events-0")


@pytest.mark.parametrize("sequence", [0, 7, 8])
def test_a_newer_producer_epoch_restarts_its_sequences(sequence: int) -> None:
    assert earlier_attempt(STATE, ProducerAppend("p", 4, sequence), "events-0") is None


def test_the_state_after_an_append_remembers_it_and_leaves_the_others() -> None:
    before = {"p": LAST, "q": LAST}
    after = after_append(before, ProducerAppend("p", 3, 9), 110, 120, now_ms=2_000)
    assert after == {"p": ProducerEntry(3, 9, 110, 120, 2_000), "q": LAST}
    assert before == {"p": LAST, "q": LAST}, "states are values"


def test_the_state_remembers_the_partition_count_of_the_last_append() -> None:
    """A retry distributes records as the first try did."""
    first = after_append({}, ProducerAppend("p", 0, 0, partition_count=2), 0, 1, now_ms=0)
    second = after_append(first, ProducerAppend("p", 0, 1), 1, 2, now_ms=0)
    assert (first["p"].partition_count, second["p"].partition_count) == (2, None)


def test_producers_are_forgotten_after_the_expiration() -> None:
    """producer.id.expiration.ms."""
    assert unexpired(STATE, now_ms=1_999, expiration_ms=1_000) == STATE
    assert unexpired(STATE, now_ms=2_000, expiration_ms=1_000) == {}


def test_producers_that_the_engine_has_named_are_forgotten_after_a_day() -> None:
    """Every process leaves an unnamed producer: it expires after Kafka's default of producer.id.expiration.ms, or
    after the topic's value, if that is shorter.
    """
    hour, name = 3_600_000, unnamed(lambda: "0123456789abcdef" * 2)
    state = {name: LAST, "unnamed-by-me": LAST}
    assert set(unexpired(state, LAST.appended_ms + 24 * hour - 1, 7 * 24 * hour)) == {name, "unnamed-by-me"}
    assert set(unexpired(state, LAST.appended_ms + 24 * hour, 7 * 24 * hour)) == {"unnamed-by-me"}
    assert unexpired(state, LAST.appended_ms + hour, hour) == {}


numbers = st.integers(0, 2**63 - 1)
maybe = st.none() | numbers
digests = st.none() | st.binary(min_size=8, max_size=8)
pasts = st.builds(PastAppend, numbers, numbers, numbers, digests, maybe)
entries = st.builds(
    ProducerEntry,
    *(numbers, numbers, numbers, numbers, numbers, maybe, maybe, digests),
    st.lists(pasts, max_size=4).map(tuple),
    st.lists(numbers, max_size=4).map(tuple),
)
states = st.dictionaries(st.text(max_size=20), entries, max_size=5)


@given(states)
def test_a_state_is_read_back_from_a_footer_or_a_register(state: dict[str, ProducerEntry]) -> None:
    assert decode(encode(state)) == state


def test_absent_fields_of_an_entry_take_no_space() -> None:
    """Entries are in every file; files with fewer entries are still readable."""
    assert encode({"p": LAST}) == sealed(b'{"p":[3,7,100,110,1000]}')
    assert encode({"p": replace(LAST, txn_first_offset=9)}) == sealed(b'{"p":[3,7,100,110,1000,9]}')
    assert encode({"p": replace(LAST, partition_count=4)}) == sealed(b'{"p":[3,7,100,110,1000,null,4]}')
    past = PastAppend(6, 90, 100, b"12345678")
    named = replace(LAST, digest=b"abcdefgh", earlier=(past, PastAppend(4, 80, 90)), runs=(2, 1, 5))
    text = '{"p":[3,7,100,110,1000,null,null,"YWJjZGVmZ2g=",[[6,90,100,"MTIzNDU2Nzg="],[4,80,90]],[2,1,5]]}'
    assert encode({"p": named}) == sealed(text.encode())


@pytest.mark.parametrize("content", [b"", b"[]", b'{"p":[1]}', b'{"p":{"epoch":1}}', b'{"\xff":[1,2,3,4,5]}'])
def test_other_content_cannot_be_decoded(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, or of UTF-8
        decode(sealed(content))


def test_no_flipped_bit_makes_another_state() -> None:
    content = encode({"p": LAST})
    for at in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError, match="checksum"):
            decode(bytes(flipped))


@given(st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 2), st.integers(0, 4)), max_size=30))
def test_no_attempt_is_appended_twice(attempts: list[tuple[str, int, int]]) -> None:
    """I3: in any order of zombies and retries."""
    state: dict[str, ProducerEntry] = {}
    appended: list[tuple[str, int, int]] = []
    for attempt in attempts:
        append = ProducerAppend(*attempt)
        try:
            if earlier_attempt(state, append, "events-0") is None:
                state = after_append(state, append, len(appended), len(appended) + 1, now_ms=0)
                appended.append(attempt)
        except (DuplicateSequenceNumberError, InvalidProducerEpochError):
            continue
    assert len(appended) == len(set(appended))


@pytest.mark.parametrize("number", [1.0, 1.5, True, "1", None, 1 << 63], ids=repr)
@pytest.mark.parametrize("field", ["epoch", "sequence"])
def test_an_epoch_or_a_sequence_that_no_footer_can_hold_is_refused(field: str, number: Any) -> None:
    """The footer's decoder accepts 64-bit integers; otherwise the partition would be unreadable."""
    with pytest.raises(InvalidCallError, match=re.escape(f"producer 'p': {field} {number!r}")):
        ProducerAppend("p", **{"epoch": 0, "sequence": 0, field: number})


def test_an_integer_of_numpy_becomes_a_plain_one() -> None:
    append = ProducerAppend("p", np.int64(2), np.int32(-1))  # type: ignore[arg-type]
    assert (append, type(append.epoch), type(append.sequence)) == (ProducerAppend("p", 2, -1), int, int)


@pytest.mark.parametrize("name", [7, "\ud800", None], ids=repr)
def test_the_name_of_a_producer_is_a_text(name: Any) -> None:
    with pytest.raises(InvalidCallError, match="not valid Unicode"):
        ProducerAppend(name, 0, 0)


# ------------------------------------------------------------------- what is remembered of a named producer


def named(sequence: int, epoch: int = 0, **others: Any) -> ProducerAppend:
    return ProducerAppend("p", epoch, sequence, on_changed_replay="refuse", **others)


def digest_of(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def appended(sequences: Sequence[int], epoch: int = 0) -> dict[str, ProducerEntry]:
    """The state after these sequences, of ten records each."""
    state: dict[str, ProducerEntry] = {}
    for place, sequence in enumerate(sequences):
        offset = 10 * place
        state = after_append(state, named(sequence, epoch), offset, offset + 10, place, digest_of(sequence))
    return state


def known(state: Mapping[str, ProducerEntry], sequence: int) -> str:
    """The answer to a repeated sequence."""
    try:
        earlier = earlier_attempt(state, named(sequence), "t-0")
    except OutOfOrderSequenceNumberError:
        return "never, and too late"
    except DuplicateSequenceNumberError:
        return "not known"
    return "new" if earlier is None else "at offsets" if earlier.base_offset is not None else "appended"


def test_the_last_five_appends_are_known_with_offsets_and_digests() -> None:
    """Kafka remembers the same number."""
    state = appended(range(10))
    for sequence in range(10 - LAST_APPENDS, 10):
        there = EarlierAttempt(10 * sequence + 10, 10 * sequence, digest_of(sequence))
        assert earlier_attempt(state, named(sequence), "t-0") == there


def test_older_appends_are_known_to_be_appended_below_an_offset() -> None:
    assert earlier_attempt(appended(range(10)), named(3), "t-0") == EarlierAttempt(50)


def test_a_late_append_that_never_happened_is_distinguished_from_one_that_did() -> None:
    state = appended([3, 5, 6, 20, 21, 22, 23, 24])
    assert {sequence: known(state, sequence) for sequence in (0, 2, 3, 4, 5, 6, 7, 19, 20, 24, 25)} == {
        0: "never, and too late",
        2: "never, and too late",
        3: "appended",
        4: "never, and too late",
        5: "appended",
        6: "appended",
        7: "never, and too late",
        19: "never, and too late",
        20: "at offsets",
        24: "at offsets",
        25: "new",
    }
    with pytest.raises(OutOfOrderSequenceNumberError, match="sequence 4 of producer 'p' was never appended here"):
        earlier_attempt(state, named(4), "t-0")


def test_five_years_of_daily_appends_are_remembered_when_their_dates_are_the_sequences() -> None:
    days = [date(2013, 1, 1) + timedelta(days) for days in range(5 * 365)]
    dates = [int(day.strftime("%Y%m%d")) for day in days]
    state = appended(dates)
    assert {known(state, day) for day in dates[:-5]} == {"appended"}
    assert {known(state, day) for day in (20121231, 20130132, 20150229)} == {"never, and too late"}
    assert len(encode(state)) < 700


@pytest.mark.slow
@given(st.sets(st.integers(0, 3 * MOST_RUNS), min_size=1))
def test_no_answer_about_a_sequence_claims_more_than_is_known(sequences: set[int]) -> None:
    """I11. For sequences below the remembered runs the log answers in this way; sequences above them are never
    forgotten.
    """
    state = appended(sorted(sequences))
    answers = {sequence: known(state, sequence) for sequence in range(max(sequences) + 1)}
    for sequence, answer in answers.items():
        if answer != "not known":
            assert (answer in ("appended", "at offsets")) == (sequence in sequences)
    forgotten = [sequence for sequence, answer in answers.items() if answer == "not known"]
    assert forgotten == list(range(len(forgotten)))
    if forgotten:
        above = sequences - set(forgotten)
        assert sum(sequence - 1 not in above for sequence in above) == MOST_RUNS // 2
    assert len(state["p"].runs) <= MOST_RUNS


def test_appends_from_before_a_producer_was_named_are_not_known() -> None:
    """An unnamed append with an unknown outcome is retried under the reported name."""
    state = after_append({"p": replace(LAST, epoch=0)}, named(8), 110, 120, 0)
    assert [known(state, sequence) for sequence in (6, 7, 8)] == ["not known", "at offsets", "at offsets"]


def test_a_new_epoch_remembers_nothing_of_the_old_one() -> None:
    state = after_append(appended(range(3)), named(1, epoch=1), 30, 40, 0, digest_of(1))
    assert state["p"].earlier == ()
    with pytest.raises(OutOfOrderSequenceNumberError):
        earlier_attempt(state, named(0, epoch=1), "t-0")


def test_an_append_that_is_over_gets_into_no_partition_that_lacks_it() -> None:
    """Other partitions already have later sequences."""
    for state in ({}, appended([1]), appended([5], epoch=0)):
        with pytest.raises(
            OutOfOrderSequenceNumberError, match="this partition never had records of this sequence"
        ):
            earlier_attempt(state, named(7, late=True), "t-0")
    assert known(appended([7]), 7) == "at offsets"


@pytest.mark.parametrize(("records", "digest"), [(9, digest_of(1)), (11, digest_of(1)), (10, digest_of(2))])
def test_the_same_sequence_with_other_records_is_refused_by_name(records: int, digest: bytes) -> None:
    earlier = EarlierAttempt(110, 100, digest_of(1))
    check_same_records(earlier, named(7), 10, digest_of(1), "t-0")
    text = r"^t-0: sequence 7 of producer 'p' .* with other records \(10 records at offsets \[100, 110\), now"
    with pytest.raises(ChangedReplayError, match=text) as caught:
        check_same_records(earlier, named(7), records, digest, "t-0")
    assert caught.value.code == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_without_a_digest_the_number_of_records_is_compared() -> None:
    check_same_records(EarlierAttempt(110, 100), named(7), 10, digest_of(1), "t-0")
    with pytest.raises(ChangedReplayError):
        check_same_records(EarlierAttempt(110, 100), named(7), 11, digest_of(1), "t-0")


def test_an_old_replay_that_no_driver_can_compare_is_refused() -> None:
    """The replay is neither known to be the same nor known to differ, so it is not called a duplicate."""
    with pytest.raises(DuplicateSequenceNumberError, match="too long ago to compare its records"):
        check_same_records(EarlierAttempt(50), named(3), 10, digest_of(1), "t-0")


def test_a_producer_that_was_not_named_takes_no_more_space_than_its_last_append() -> None:
    state = after_append({}, ProducerAppend("u", 0, 0), 0, 10, 1)
    state = after_append(state, ProducerAppend("u", 0, 1), 10, 20, 1)
    assert encode(state) == sealed(b'{"u":[0,1,10,20,1]}')


def test_a_stream_of_many_batches_takes_little_space() -> None:
    """The producer state is in every file."""
    state = appended(range(100_000, 100_400))
    assert len(encode(state)) < 250
