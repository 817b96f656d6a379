"""Producer state: a retried append appends once (protocol section 2, Append step 2; KIP-98)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitions.errors import DuplicateSequenceNumberError, InvalidProducerEpochError
from partitions.producers import (
    ProducerAppend,
    ProducerEntry,
    after_append,
    decode,
    earlier_attempt,
    encode,
    unexpired,
)

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


def test_producers_are_forgotten_after_the_expiration() -> None:
    """producer.id.expiration.ms."""
    assert unexpired(STATE, now_ms=1_999, expiration_ms=1_000) == STATE
    assert unexpired(STATE, now_ms=2_000, expiration_ms=1_000) == {}


numbers = st.integers(0, 2**63 - 1)
states = st.dictionaries(
    st.text(max_size=20), st.builds(ProducerEntry, numbers, numbers, numbers, numbers, numbers), max_size=5
)


@given(states)
def test_a_state_is_read_back_from_a_footer_or_a_register(state: dict[str, ProducerEntry]) -> None:
    assert decode(encode(state)) == state


@pytest.mark.parametrize("content", [b"", b"[]", b'{"p":[1]}', b'{"p":{"epoch":1}}', b'{"\xff":[1,2,3,4,5]}'])
def test_other_content_cannot_be_decoded(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, or of UTF-8
        decode(content)


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
