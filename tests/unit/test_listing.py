"""A replica as its folder's listing shows it (protocol section 1).

Scenarios use the shorthand of ``notation``; the V-numbers are those of the attack on the protocol, whose repairs
are the sentences marked (!).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions import listing
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, litter, parse, resolve
from stratalog.partitions.paths import CheckpointName, ChunkName, DataName, Name, WatermarkName
from stratalog.partitions.store.protocol import StoredObject
from tests.unit.notation import FOLDER, GENERATION, chain_of, listing_of, log_of, name_of, stored, text_of, texts

# ------------------------------------------------------------------------------------- parse


def test_names_are_sorted_by_kind_and_strangers_are_kept_apart() -> None:
    stranger = StoredObject(f"{FOLDER}/readme.txt", 1, 0, "1")
    claim = StoredObject(f"{FOLDER}/0000000003.claim", 1, 0, "1")
    names = ["0.1", "0-2.1", "1.epoch", "2.1.hw", "1.local"]
    listing = parse(FOLDER, [*(stored(name_of(text)) for text in names), stranger, claim])
    assert texts(listing.data) == ["0.1", "0-2.1"]
    assert [name.epoch for name, _ in listing.epochs] == [1]
    assert listing.watermarks == (WatermarkName(2, 1),)
    assert [name.offset for name, _ in listing.local_starts] == [1]
    assert listing.foreign == (stranger, claim)


def test_files_in_a_subfolder_are_no_files_of_the_replica() -> None:
    """Protocol, section 1: "Everything in the folder"; a copy of the folder inside it is foreign."""
    names = [name_of(text) for text in ("3.1", "0-2.1", "9.epoch", "9.1.hw", "2.local")]
    nested = [StoredObject(f"{FOLDER}/saved/{name}", 1, 0, "1") for name in (*names, CheckpointName(7, 2))]
    listing = parse(FOLDER, [stored(name_of("0.1")), *nested])
    assert texts(listing.data) == ["0.1"]
    assert (listing.joined_epoch, listing.local_start, listing.watermarks, listing.checkpoints) == (0, 0, (), ())
    assert listing.foreign == tuple(nested)


def test_snapshots_and_their_parts_are_no_strangers() -> None:
    names = [CheckpointName(20, 1), CheckpointName(7, 2), ChunkName(30, 2, 5), ChunkName(30, 2, 0)]
    listing = parse(FOLDER, [StoredObject(f"{FOLDER}/{name}", 1, 0, "1") for name in names])
    assert [name for name, _ in listing.checkpoints] == [CheckpointName(7, 2), CheckpointName(20, 1)]
    assert [name.position for name, _ in listing.chunks] == [0, 5]
    assert listing.foreign == ()


def test_an_empty_folder_is_an_empty_log_that_has_joined_nothing() -> None:
    log = log_of("", lineage=())
    assert (log.local_start, log.high_watermark, log.log_end, log.joined_epoch) == (0, 0, 0, 0)
    assert log.chain == ()
    assert not log.lost_committed


def test_the_greatest_epoch_and_local_start_count() -> None:
    listing = listing_of("2.epoch 10.epoch 9.epoch 7.local 12.local 9.local")
    assert listing.joined_epoch == 10
    assert listing.local_start == 12


# ---------------------------------------------------------------------------------- liveness


def test_the_end_of_an_append_follows_from_the_next_base_and_the_last_one_s_from_its_footer() -> None:
    """Section 1, The log: the last file's footer gives the log end offset."""
    log = log_of("0.1 3.1 7.1", end=9)
    assert chain_of(log) == ["0.1[0,3)", "3.1[3,7)", "7.1[7,9)"]
    assert log.log_end == 9


def test_only_one_footer_is_asked_for() -> None:
    asked: list[str] = []

    def end_of_append(file: DataFile) -> int:
        asked.append(text_of(file.name))
        return 9

    resolve(listing_of("0.1 3.1 7.1 0.2 8.3"), Lineage([(1, 0)]), end_of_append)
    assert asked == ["7.1"]


def test_a_footer_that_ends_where_its_file_starts_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="claims to end at 3"):
        log_of("0.1 3.1", end=3)


def test_adopting_a_newer_lineage_truncates() -> None:
    """Section 1: there is no truncation; files that disagree with the lineage are dead."""
    names = "0.1 1.1 2.1 3.1"
    assert log_of(names, [(1, 0)]).log_end == 4
    log = log_of(names, [(1, 0), (2, 2)])
    assert log.log_end == 2
    assert texts(log.dead) == ["2.1", "3.1"]


def test_files_of_another_history_do_not_bound_the_files_of_this_one() -> None:
    log = log_of("0.1 1.1 2.3", [(1, 0), (3, 2)], end=4)
    assert chain_of(log_of("0.1 1.2 2.1", end=5)) == ["0.1[0,2)", "2.1[2,5)"]
    assert chain_of(log) == ["0.1[0,1)", "1.1[1,2)", "2.3[2,4)"]


def test_dead_files_are_live_again_under_a_later_leader_that_has_them() -> None:
    """Section 1; the answer to V6 depends on this."""
    names = "0.1 1.1"
    assert texts(log_of(names, [(1, 0), (2, 1)]).dead) == ["1.1"]
    assert log_of(names, [(1, 0), (3, 2)]).log_end == 2


def test_the_log_ends_at_the_first_gap_and_what_is_behind_it_is_stranded() -> None:
    """Section 1: the name of a merged segment has its end, so a gap after it is visible."""
    log = log_of("0-2.1 3.1 4.1", end=5)
    assert chain_of(log) == ["0-2.1[0,2)"]
    assert texts(log.stranded) == ["3.1", "4.1"]


def test_without_the_first_file_the_log_is_empty() -> None:
    log = log_of("1.1 2.1")
    assert log.log_end == 0
    assert texts(log.stranded) == ["1.1", "2.1"]


def test_files_below_the_local_start_are_dead() -> None:
    log = log_of("0.1 1.1 2.1 2.local")
    assert (log.local_start, log.log_end) == (2, 3)
    assert texts(log.dead) == ["0.1", "1.1"]


# ------------------------------------------------------------------------------------ merged


def test_a_merged_segment_hides_the_appends_that_it_covers() -> None:
    log = log_of("0.1 1.1 2.1 0-2.1")
    assert chain_of(log) == ["0-2.1[0,2)", "2.1[2,3)"]
    assert texts(log.hidden) == ["0.1", "1.1"]


def test_the_live_file_that_reaches_furthest_is_taken() -> None:
    """Section 1 (!), The log is a chain."""
    log = log_of("0-2.1 0-5.1 1-3.1")
    assert chain_of(log) == ["0-5.1[0,5)"]
    assert texts(log.hidden) == ["0-2.1", "1-3.1"]


def test_a_merged_segment_counts_by_the_epoch_of_its_last_record() -> None:
    """Section 1: live if and only if ``epoch_at(next - 1)`` is its epoch."""
    assert chain_of(log_of("0-4.2", [(1, 0), (2, 3)])) == ["0-4.2[0,4)"]
    assert texts(log_of("0-4.2", [(1, 0), (2, 4)]).dead) == ["0-4.2"]
    assert texts(log_of("0-4.1", [(1, 0), (2, 3)]).dead) == ["0-4.1"]


def test_v10a_a_merged_segment_below_the_local_start_is_dead() -> None:
    """V10a: after ``4.local`` the segment 0-3 must not be read as the start of a log with a gap."""
    log = log_of("0-3.1 4.1 5.1 4.local 6.1.hw", end=6)
    assert texts(log.dead) == ["0-3.1"]
    assert (log.local_start, log.high_watermark, log.log_end) == (4, 6, 6)


def test_v10a_a_merged_segment_across_the_local_start_is_read_from_there_on() -> None:
    log = log_of("0-6.1 6.1 4.local")
    assert chain_of(log) == ["0-6.1[4,6)", "6.1[6,7)"]
    assert log.dead == ()


def test_v10a_a_merged_segment_that_ends_at_the_local_start_is_dead() -> None:
    """Section 1 (!): ``next > local start``."""
    assert texts(log_of("0-4.1 4.1 4.local").dead) == ["0-4.1"]


def test_v10b_overlapping_merges_are_read_once() -> None:
    """V10b: two drivers merge [1,3) and [0,2) at once; offset 1 must not be read twice."""
    log = log_of("0.1 1.1 2.1 3.1 1-3.1 0-2.1")
    assert chain_of(log) == ["0-2.1[0,2)", "1-3.1[2,3)", "3.1[3,4)"]
    assert texts(log.hidden) == ["0.1", "1.1", "2.1"]


def test_v10b_a_follower_s_end_may_be_inside_a_leader_s_segment() -> None:
    """Replicas with different merges meet: the follower keeps its file, and the segment continues from there."""
    log = log_of("0-3.1 2-6.1")
    assert chain_of(log) == ["0-3.1[0,3)", "2-6.1[3,6)"]


def test_v12_a_register_written_first_makes_a_half_copied_log_start_there() -> None:
    """V12: a restart creates ``4.local`` before the first copy; otherwise the log of 0.1 would reach to 4."""
    assert chain_of(log_of("0.1 4.1 4.local")) == ["4.1[4,5)"]
    without_register = log_of("0.1 4.1")
    assert chain_of(without_register) == ["0.1[0,4)", "4.1[4,5)"], "the hole that the order prevents"


# ---------------------------------------------------------------------- records removed by a rule


@pytest.mark.parametrize(
    ("names", "chain"),
    [
        ("0-4.1 0-4.1.1 4.1", "0-4.1.1[0,4) 4.1[4,5)"),
        ("0-6.1 0-4.1.1 6.1", "0-4.1.1[0,4) 0-6.1[4,6) 6.1[6,7)"),  # a late merge over the rewritten segment
        ("0-6.1 0-4.1.1 4-6.1.1", "0-4.1.1[0,4) 4-6.1.1[4,6)"),
        ("0-6.1.1 0-2.1.2 6.1", "0-2.1.2[0,2) 0-6.1.1[2,6) 6.1[6,7)"),  # a rule that is only partly carried out
        ("0-6.1.1 2-4.1.2", "0-6.1.1[0,2) 2-4.1.2[2,4) 0-6.1.1[4,6)"),
        ("0.1 1.1 2-4.1.1 4.1", "0.1[0,1) 1.1[1,2) 2-4.1.1[2,4) 4.1[4,5)"),
        ("0.1 2-4.1.1 3.local", "2-4.1.1[3,4)"),
        ("0-2.1 3-4.1.1", "0-2.1[0,2)"),  # a gap
        ("0-4.2.1 0-4.1", "0-4.1[0,4)"),  # a file of another history
    ],
)
def test_the_greatest_generation_counts_however_far_others_reach(names: str, chain: str) -> None:
    assert " ".join(chain_of(log_of(names))) == chain


@pytest.mark.parametrize("seed", range(30))
def test_a_chain_takes_the_file_of_the_greatest_generation_at_each_offset(seed: int) -> None:
    rng = random.Random(seed)
    ranges = [(base, base + rng.randint(1, 15)) for base in (rng.randrange(20) for _ in range(12))]
    names = [DataName(start, end, 1, rng.randint(1, 4)) for start, end in [(0, 35), *ranges]]
    files = [DataFile(name, StoredObject(str(name), 1, 0, "")) for name in rng.sample(names, len(names))]
    position = rng.randrange(10)
    chain = listing.chain_of(files, position, lambda file: pytest.fail(f"{file} has its end in its name"))
    for at in range(position, 35):
        (link,) = [link for link in chain if link.start <= at < link.end]
        there = [name.generation for name in names if name.base_offset <= at < name.least_end]
        assert link.name.base_offset <= at < link.name.least_end
        assert link.name.generation == max(there)


def test_a_rewritten_segment_hides_what_it_replaces() -> None:
    assert texts(log_of("0.1 1.1 0-2.1 0-2.1.1 0-2.1.2 2.1").hidden) == ["0.1", "1.1", "0-2.1", "0-2.1.1"]


# ---------------------------------------------------------------------------- high watermark


def test_the_high_watermark_is_at_least_the_local_start_and_at_most_the_log_end() -> None:
    assert log_of("5.1 5.local").high_watermark == 5
    assert log_of("0.1 1.1 9.1.hw").high_watermark == 2
    assert log_of("0.1 1.1 1.1.hw").high_watermark == 1


def test_a_high_watermark_counts_up_to_the_end_of_its_epoch() -> None:
    """Section 1: the greatest over epochs e of ``min(greatest hw of e, end of e)``."""
    lineage = [(1, 0), (2, 2)]
    assert log_of("0.1 1.1 2.2 3.2 3.1.hw", lineage).high_watermark == 2
    assert log_of("0.1 1.1 2.2 3.2 3.1.hw 3.2.hw", lineage).high_watermark == 3


def test_v11_a_high_watermark_of_an_epoch_that_left_the_lineage_counts() -> None:
    """V11: epoch 2 wrote nothing and was removed from the lineage; ``4.2.hw`` still says that 4 was reached."""
    log = log_of("0.1 1.1 2.1 3.1 4.2.hw", [(1, 0), (3, 4)])
    assert log.high_watermark == 4


def test_a_high_watermark_beyond_the_chain_shows_lost_data() -> None:
    """Section 1: the replica is corrupt, leaves the ISR and is healed; it is not silently shorter."""
    assert not log_of("0-1.1 1-3.1 3.1.hw").lost_committed
    log = log_of("0-1.1 2-3.1 3.1.hw")
    assert (log.log_end, log.high_watermark, log.claimed_high_watermark) == (1, 1, 3)
    assert log.lost_committed


def test_a_high_watermark_that_came_while_the_folder_was_listed_shows_no_loss() -> None:
    """The records came after the listing; all listed records are committed."""
    listing = listing_of("1.epoch 0.1 1.1 1.1.hw 9.1.hw")
    late = replace(listing, late=frozenset({WatermarkName(9, 1)}))
    log = resolve(late, Lineage([(1, 0)]), lambda file: file.name.base_offset + 1)
    assert (log.log_end, log.high_watermark, log.claimed_high_watermark) == (2, 2, 1)
    assert not log.lost_committed
    (stored_late,) = parse(FOLDER, [replace(stored(WatermarkName(9, 1)), late=True)]).late
    assert stored_late == WatermarkName(9, 1)


def test_a_truncation_is_no_loss() -> None:
    """A high watermark of an epoch that ended earlier promises at most that epoch's end."""
    log = log_of("0.1 1.1 2.1 3.1.hw", [(1, 0), (2, 2)])
    assert log.claimed_high_watermark == 2
    assert not log.lost_committed


# ------------------------------------------------------------------------------------ litter


def test_litter_is_every_local_start_but_the_greatest() -> None:
    assert litter(listing_of("1.local 12.local 9.local")) == [str(name_of(t)) for t in ("1.local", "9.local")]


def test_v11_a_high_watermark_is_litter_only_below_another_in_offset_and_epoch() -> None:
    """V11: by name order alone a zombie's ``6.1`` would remove ``4.2``."""
    assert litter(listing_of("6.1.hw 4.2.hw")) == []
    assert litter(listing_of("3.1.hw 4.2.hw 4.1.hw")) == [str(name_of(t)) for t in ("4.1.hw", "3.1.hw")]


def test_v6_no_epoch_is_ever_litter() -> None:
    assert litter(listing_of("1.epoch 2.epoch 3.epoch")) == []


@given(st.lists(st.builds(WatermarkName, st.integers(0, 6), st.integers(1, 4)), unique=True))
def test_removing_litter_changes_no_high_watermark(marks: list[WatermarkName]) -> None:
    """This is true under any lineage that the replica adopts next."""
    listing = parse(FOLDER, [stored(mark) for mark in marks])
    gone = set(litter(listing))
    kept = [mark for mark in marks if str(mark) not in gone]
    data: list[Name] = [DataName(0, 8, epoch) for epoch in (1, 2, 3, 4)]
    for lineage in ([(1, 0)], [(1, 0), (2, 3)], [(1, 0), (3, 2)], [(2, 0), (4, 5)]):
        before, after = (
            resolve(
                parse(FOLDER, [stored(name) for name in [*data, *some]], generation=GENERATION),
                Lineage(lineage),
                lambda _: 0,
            )
            for some in (marks, kept)
        )
        assert before.high_watermark == after.high_watermark


# -------------------------------------------------------------------- the text, word for word

END_OF_LOG = 12


def as_the_text_says(
    names: list[Name], lineage: list[tuple[int, int]], footer_next: Callable[[DataName], int]
) -> dict[str, object]:
    """Section 1, sentence by sentence, by testing every offset."""
    local_start = max((n.offset for n in names if not isinstance(n, DataName | WatermarkName)), default=0)  # type: ignore[union-attr]

    def epoch_at(offset: int) -> int | None:
        started = [epoch for epoch, start in lineage if start <= offset]
        return started[-1] if started else None

    def live(n: DataName) -> bool:
        if n.next_offset is None:
            return n.base_offset >= local_start and epoch_at(n.base_offset) == n.epoch
        return n.next_offset > local_start and epoch_at(n.next_offset - 1) == n.epoch

    alive = [n for n in names if isinstance(n, DataName) and live(n)]
    rewritten = [n for n in alive if n.generation]
    segments = [n for n in alive if n.next_offset is not None and not n.generation]
    appends = [
        n
        for n in alive
        if n.next_offset is None
        and not any(s.base_offset <= n.base_offset < (s.next_offset or 0) for s in segments)
    ]
    bases = {n.base_offset for n in [*segments, *appends]}

    def end(n: DataName) -> int:
        if n.next_offset is not None:
            return n.next_offset
        return min((b for b in bases if b > n.base_offset), default=footer_next(n))

    chain: list[tuple[DataName, int, int]] = []
    position = local_start
    while True:
        here = [n for n in [*segments, *rewritten] if n.base_offset <= position < end(n)]
        here += [n for n in appends if n.base_offset == position]
        if not here:
            break
        greatest = max(n.generation for n in here)
        here = [n for n in here if n.generation == greatest]
        furthest = max(end(n) for n in here)
        later = (n.base_offset for n in rewritten if n.base_offset > position and n.generation > greatest)
        until = min([furthest, *later])
        chain.append((min(n for n in here if end(n) == furthest), position, until))
        position = until

    reached = [local_start]
    for n in names:
        if isinstance(n, WatermarkName):
            later = [start for epoch, start in lineage if epoch > n.epoch]
            reached.append(min([n.offset, *later[:1]]))
    return {
        "spans": [(start, stop) for _, start, stop in chain],
        "files": [n for n, _, _ in chain],
        "log_end": position,
        "high_watermark": min(max(reached), position),
        "dead": {n for n in names if isinstance(n, DataName)} - set(alive),
    }


@st.composite
def folders(draw: st.DrawFn) -> tuple[list[Name], list[tuple[int, int]]]:
    """Folders with any names, including zombies, overlapping merges and registers in every order."""
    offset, epoch = st.integers(0, END_OF_LOG - 1), st.integers(1, 4)
    appends = draw(st.sets(st.builds(lambda o, e: f"{o}.{e}", offset, epoch), max_size=14))
    merged = draw(
        st.sets(
            st.builds(lambda a, n, e: f"{a}-{min(a + n, END_OF_LOG)}.{e}", offset, st.integers(1, 6), epoch),
            max_size=5,
        )
    )
    rewritten = draw(
        st.sets(
            st.builds(
                lambda a, n, e, g: f"{a}-{min(a + n, END_OF_LOG)}.{e}.{g}",
                *(offset, st.integers(1, 6), epoch, st.integers(1, 3)),
            ),
            max_size=4,
        )
    )
    marks = draw(st.sets(st.builds(lambda o, e: f"{o}.{e}.hw", offset, epoch), max_size=4))
    locals_ = draw(st.sets(st.builds(lambda o: f"{o}.local", offset), max_size=2))
    epochs = sorted(draw(st.sets(epoch, min_size=1)))
    starts = sorted(draw(st.lists(offset, min_size=len(epochs), max_size=len(epochs))))
    if draw(st.booleans()):
        starts[0] = 0
    names = [
        name_of(text) for text in draw(st.permutations(sorted(appends | merged | rewritten | marks | locals_)))
    ]
    return names, list(zip(epochs, starts, strict=True))


@given(folders())
def test_resolve_says_what_the_text_says(folder: tuple[list[Name], list[tuple[int, int]]]) -> None:
    names, lineage = folder
    log = resolve(parse(FOLDER, map(stored, names), generation=GENERATION), Lineage(lineage), lambda _: END_OF_LOG)
    found = as_the_text_says(names, lineage, lambda _: END_OF_LOG)
    assert [(link.start, link.end) for link in log.chain] == found["spans"]
    assert [link.name.base_offset <= link.start for link in log.chain] == [True] * len(log.chain)
    assert log.log_end == found["log_end"]
    assert log.high_watermark == found["high_watermark"]
    assert {file.name for file in log.dead} == found["dead"]


@given(folders())
def test_every_data_file_is_in_one_place(folder: tuple[list[Name], list[tuple[int, int]]]) -> None:
    names, lineage = folder
    log = resolve(parse(FOLDER, map(stored, names), generation=GENERATION), Lineage(lineage), lambda _: END_OF_LOG)
    chained = {link.file for link in log.chain}  # a rewritten segment may split one in two
    everywhere = [*chained, *log.dead, *log.hidden, *log.stranded]
    assert len(everywhere) == len(set(everywhere)) == len(log.listing.data)
    assert set(everywhere) == set(log.listing.data)
    assert log.names() == {file.name for file in everywhere}
    assert all(log.holds(file.name) for file in chained)
    assert not any(log.holds(file.name) for file in [*log.dead, *log.hidden, *log.stranded])


@given(folders())
def test_the_bounds_are_in_order_and_the_chain_is_contiguous(
    folder: tuple[list[Name], list[tuple[int, int]]],
) -> None:
    names, lineage = folder
    listing: Listing = parse(FOLDER, map(stored, names), generation=GENERATION)
    log = resolve(listing, Lineage(lineage), lambda _: END_OF_LOG)
    assert log.local_start <= log.high_watermark <= log.log_end
    position = log.local_start
    for link in log.chain:
        assert link.start == position < link.end
        position = link.end
    assert position == log.log_end
