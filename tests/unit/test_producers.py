"""Producer state: a retried append appends once (protocol section 2, Append step 2; KIP-98)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partitions.errors import DuplicateSequenceNumberError, InvalidCallError, InvalidProducerEpochError
from partitions.producers import (
    ProducerAppend,
    ProducerEntry,
    after_append,
    decode,
    earlier_attempt,
    encode,
    unexpired,
    unnamed,
)
from partitions.register import sealed

LAST = ProducerEntry(epoch=3, sequence=7, base_offset=100, next_offset=110, appended_ms=1_000)
STATE = {"p": LAST}


def test_an_unknown_producer_has_made_no_earlier_attempt() -> None:
    assert earlier_attempt({}, ProducerAppend("p", 0, 0), "events-0") is None
    assert earlier_attempt(STATE, ProducerAppend("q", 3, 7), "events-0") is None


def test_the_last_sequence_again_answers_with_its_offsets() -> None:
    """Section 2, step 2: the producer's last sequence goes on with its offsets."""
    assert earlier_attempt(STATE, ProducerAppend("p", 3, 7), "events-0") == LAST


@pytest.mark.parametrize("sequence", [8, 9, 1000])
def test_a_later_sequence_is_new_and_gaps_are_allowed(sequence: int) -> None:
    """Design section 4: a micro-batch may have nothing for a partition."""
    assert earlier_attempt(STATE, ProducerAppend("p", 3, sequence), "events-0") is None


@pytest.mark.parametrize("sequence", [0, 6])
def test_an_earlier_sequence_is_a_duplicate_that_names_the_producer(sequence: int) -> None:
    with pytest.raises(DuplicateSequenceNumberError, match=r"events-0: producer 'p' .*sequence 7"):
        earlier_attempt(STATE, ProducerAppend("p", 3, sequence), "events-0")


@pytest.mark.parametrize("sequence", [0, 7, 8])
def test_an_older_producer_epoch_is_fenced_whatever_its_sequence(sequence: int) -> None:
    with pytest.raises(InvalidProducerEpochError, match=r"events-0: producer 'p' has epoch 3"):
        earlier_attempt(STATE, ProducerAppend("p", 2, sequence), "events-0")


@pytest.mark.parametrize("sequence", [0, 7, 8])
def test_a_newer_producer_epoch_starts_its_sequences_anew(sequence: int) -> None:
    assert earlier_attempt(STATE, ProducerAppend("p", 4, sequence), "events-0") is None


def test_the_state_after_an_append_remembers_it_and_leaves_the_others() -> None:
    before = {"p": LAST, "q": LAST}
    after = after_append(before, ProducerAppend("p", 3, 9), 110, 120, now_ms=2_000)
    assert after == {"p": ProducerEntry(3, 9, 110, 120, 2_000), "q": LAST}
    assert before == {"p": LAST, "q": LAST}, "states are values"


def test_the_state_remembers_among_how_many_partitions_the_last_append_was_dealt_out() -> None:
    """Whoever tries it again deals as it did."""
    first = after_append({}, ProducerAppend("p", 0, 0, dealt_among=2), 0, 1, now_ms=0)
    second = after_append(first, ProducerAppend("p", 0, 1), 1, 2, now_ms=0)
    assert (first["p"].dealt_among, second["p"].dealt_among) == (2, None)


def test_producers_are_forgotten_after_the_expiration() -> None:
    """producer.id.expiration.ms."""
    assert unexpired(STATE, now_ms=1_999, expiration_ms=1_000) == STATE
    assert unexpired(STATE, now_ms=2_000, expiration_ms=1_000) == {}


def test_producers_that_the_engine_has_named_are_forgotten_after_a_day() -> None:
    """Every process leaves one behind: with Kafka's producer.id.expiration.ms, or a shorter one of the topic."""
    hour, name = 3_600_000, unnamed(lambda: "0123456789abcdef" * 2)
    state = {name: LAST, "unnamed-by-me": LAST}
    assert set(unexpired(state, LAST.appended_ms + 24 * hour - 1, 7 * 24 * hour)) == {name, "unnamed-by-me"}
    assert set(unexpired(state, LAST.appended_ms + 24 * hour, 7 * 24 * hour)) == {"unnamed-by-me"}
    assert unexpired(state, LAST.appended_ms + hour, hour) == {}


numbers = st.integers(0, 2**63 - 1)
maybe = st.none() | numbers
entries = st.builds(ProducerEntry, numbers, numbers, numbers, numbers, numbers, maybe, maybe)
states = st.dictionaries(st.text(max_size=20), entries, max_size=5)


@given(states)
def test_a_state_is_read_back_from_a_footer_or_a_register(state: dict[str, ProducerEntry]) -> None:
    assert decode(encode(state)) == state


def test_what_an_entry_does_not_say_takes_no_space() -> None:
    """Entries stand in every file; files of those who knew less are read as they are."""
    assert encode({"p": LAST}) == sealed(b'{"p":[3,7,100,110,1000]}')
    assert encode({"p": replace(LAST, txn_first_offset=9)}) == sealed(b'{"p":[3,7,100,110,1000,9]}')
    assert encode({"p": replace(LAST, dealt_among=4)}) == sealed(b'{"p":[3,7,100,110,1000,null,4]}')


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
    """I3: whatever order zombies and retries come in."""
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
    """The footer's decoder takes integers of 64 bits, and the partition could not be read any more."""
    with pytest.raises(InvalidCallError, match=re.escape(f"producer 'p': {field} {number!r}")):
        ProducerAppend("p", **{"epoch": 0, "sequence": 0, field: number})


def test_an_integer_of_numpy_becomes_a_plain_one() -> None:
    append = ProducerAppend("p", np.int64(2), np.int32(-1))  # type: ignore[arg-type]
    assert (append, type(append.epoch), type(append.sequence)) == (ProducerAppend("p", 2, -1), int, int)


@pytest.mark.parametrize("name", [7, "\ud800", None], ids=repr)
def test_the_name_of_a_producer_is_a_text(name: Any) -> None:
    with pytest.raises(InvalidCallError, match="no valid Unicode text"):
        ProducerAppend(name, 0, 0)
