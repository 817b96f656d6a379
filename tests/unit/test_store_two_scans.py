"""Two scans beside writers make a listing of a log without a hole, whatever they miss."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Link, ReplicaLog, parse, resolve
from stratalog.partitions.paths import DataName, EpochName, LocalStartName, Name, WatermarkName
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.two_scans import names_together, objects_together
from tests.unit.notation import name_of

FOLDER = f"{'d' * 32}/topic-{'e' * 32}/0.1"
"""The folder of a replica."""


def objects(*texts: str, version: str = "1") -> list[StoredObject]:
    """Objects by name, in the notation of the protocol's scenarios."""
    found = [StoredObject(f"{FOLDER}/{name_of(text)}", 1, 0, version) for text in texts]
    return sorted(found, key=lambda one: one.name)


def listed(first: str, second: str) -> str | None:
    """The names of a listing, late ones with a ``?``; None: scan again."""
    found = objects_together(objects(*first.split()), objects(*second.split()))
    if found is None:
        return None
    texts = {f"{FOLDER}/{name_of(text)}": text for text in (first + " " + second).split()}
    return " ".join(sorted(texts[one.name] + "?" * one.late for one in found))


def test_files_that_came_above_the_end_between_two_scans_are_left_out() -> None:
    """The second scan may have missed 6.1, which existed before 7.1."""
    assert listed("1.epoch 5.1", "1.epoch 5.1 7.1") == "1.epoch 5.1"
    assert listed("1.epoch", "1.epoch 0.1 1.1") == "1.epoch"


def test_a_file_that_precedes_a_seen_one_is_listed() -> None:
    assert listed("1.epoch 5.1 7.1", "1.epoch 5.1 6.1 7.1") == "1.epoch 5.1 6.1 7.1"
    assert listed("1.epoch 5.1 7.1.hw", "1.epoch 5.1 6.1 7.1.hw") == "1.epoch 5.1 6.1 7.1.hw"


def test_a_high_watermark_that_came_is_late_beyond_what_was_seen() -> None:
    assert listed("1.epoch 5.1 5.1.hw", "1.epoch 5.1 5.1.hw 6.1.hw") == "1.epoch 5.1 5.1.hw 6.1.hw?"
    assert listed("1.epoch 5.1 6.1", "1.epoch 5.1 6.1 6.1.hw") == "1.epoch 5.1 6.1 6.1.hw"


def test_a_merge_behind_the_back_of_the_first_scan_is_seen() -> None:
    """The first scan shows neither the deleted appends nor the segment."""
    assert listed("1.epoch 9.1", "1.epoch 9.1 0-9.1") == "0-9.1 1.epoch 9.1"


def test_a_name_that_disappeared_between_two_scans_stays_in_the_listing() -> None:
    assert listed("1.epoch 0.1 1.1 1.1.hw 2.1.hw", "1.epoch 1.1 2.1.hw 0-1.1") == (
        "0-1.1 0.1 1.1 1.1.hw 1.epoch 2.1.hw"
    )


def test_registers_have_to_be_the_same() -> None:
    assert listed("1.epoch 0.1", "1.epoch 2.epoch 0.1") is None
    assert listed("1.epoch 0.1", "1.epoch 0.1 1.local") is None
    assert listed("1.epoch 1.local 0.1", "1.epoch 2.local 0.1") is None
    assert listed("1.epoch 0.1", "0.1") is None


def test_files_of_an_epoch_that_the_first_scan_does_not_know_are_looked_for_again() -> None:
    """The first scan may also have missed the register of that epoch."""
    assert listed("1.epoch 0.1", "1.epoch 0.1 1.2") is None
    assert listed("1.epoch 0.1", "1.epoch 0.1 1.2.hw") is None
    assert listed("", "0.1") is None


def test_files_of_an_older_epoch_do_not_come_at_the_end() -> None:
    """Such files come from a follower that catches up, or from a zombie."""
    assert listed("1.epoch 2.epoch 0.1", "1.epoch 2.epoch 0.1 1.1") is None
    assert listed("1.epoch 2.epoch 0.1 5.2", "1.epoch 2.epoch 0.1 1.1 5.2") is None
    assert listed("1.epoch 2.epoch 0.1 2.1 5.2", "1.epoch 2.epoch 0.1 1.1 2.1 5.2") is not None


def test_a_name_with_another_file_is_inspected_again() -> None:
    one, other = objects("1.epoch", "0.1"), objects("1.epoch") + objects("0.1", version="2")
    assert objects_together(one, sorted(other, key=lambda each: each.name)) is None


def test_elsewhere_two_scans_have_to_be_the_same() -> None:
    names = (str(DataName(0, None, 1)), "0000000001.epoch", "README")
    for folder in ("", "d/", f"{'d' * 32}/__cluster_metadata/", f"t-{'e' * 32}/0/"):
        for name in names:
            assert names_together(frozenset(), frozenset({folder + name})) is None
    first = frozenset({f"{FOLDER}/{names[1]}", f"{FOLDER}/{names[0]}"})
    assert names_together(first, first | {f"{FOLDER}/README"}) is None
    assert names_together(first, first | {f"{FOLDER}/{DataName(1, None, 1)}"}) == first


# ------------------------------------------------------------------------------- whatever happens meanwhile


@dataclass
class History:
    """The folder of a leader, step by step."""

    files: dict[Name, None] = field(default_factory=lambda: {EpochName(1): None})
    lineage: Lineage = field(default_factory=lambda: Lineage([(1, 0)]))
    end: int = 0
    high_watermark: int = 0
    ends: dict[DataName, int] = field(default_factory=dict)
    lineages: dict[int, Lineage] = field(default_factory=lambda: {1: Lineage([(1, 0)])})
    moments: list[tuple[frozenset[Name], int, int]] = field(default_factory=list)
    """The names, the log end and the high watermark after each step."""

    @property
    def epoch(self) -> int:
        return self.lineage.latest_epoch

    def log(self) -> ReplicaLog:
        return log_of({*self.files}, self)

    def step(self, what: str, number: int, fixed: frozenset[Name]) -> None:
        """``fixed``: data files that stay."""
        match what:
            case "append":
                name = DataName(self.end, None, self.epoch)
                self.end += 1 + number % 3
                self.files[name], self.ends[name] = None, self.end
            case "mark":
                self.high_watermark = self.end
                self.files[WatermarkName(self.end, self.epoch)] = None
            case "merge":
                chain = [link for link in self.log().chain if link.end <= self.high_watermark]
                if len(chain) > 1:
                    first = number % (len(chain) - 1)
                    run = chain[first : first + 2 + number % 4]
                    self.files[DataName(run[0].start, run[-1].end, run[-1].name.epoch)] = None
            case "delete":
                log = self.log()
                old = [file.name for file in (*log.hidden, *log.dead) if file.name not in fixed]
                for name in old[: 1 + number % 3]:
                    del self.files[name]
            case "tidy":
                marks = sorted((name for name in self.files if isinstance(name, WatermarkName)), reverse=True)
                for mark in marks[1 : 2 + number % 3]:
                    del self.files[mark]
            case "elect":
                self.lineage = self.lineage.continued_by(self.epoch + 1, self.end)
                self.lineages[self.epoch] = self.lineage
                self.files[EpochName(self.epoch)] = None
            case "retain":
                ends = [link.end for link in self.log().chain if link.end <= self.high_watermark]
                if ends:
                    self.files[LocalStartName(ends[number % len(ends)])] = None
        self.moments.append((frozenset(self.files), self.end, self.high_watermark))


def log_of(names: set[Name], history: History, late: frozenset[Name] = frozenset()) -> ReplicaLog:
    found = [StoredObject(f"{FOLDER}/{name}", 1, 0, "1", late=name in late) for name in names]
    listing = parse(FOLDER, sorted(found, key=lambda one: one.name))

    def end_of_append(file: DataFile) -> int:
        return history.ends[file.name]

    return resolve(listing, history.lineages[listing.joined_epoch], end_of_append)


def scan(history: History, begin: int, end: int, random: Random) -> list[StoredObject]:
    """Look up each name at a separate moment, from the one after step ``begin`` to the one after ``end``."""
    every = set().union(*(names for names, _, _ in history.moments[begin : end + 1]))
    seen = [name for name in sorted(every, key=str) if name in history.moments[random.randint(begin, end)][0]]
    return sorted((StoredObject(f"{FOLDER}/{name}", 1, 0, "1") for name in seen), key=lambda one: one.name)


_growth = ["append", "append", "mark", "mark", "merge", "delete", "tidy"]


@given(
    before=st.lists(st.tuples(st.sampled_from([*_growth, "elect", "retain"]), st.integers(0, 9)), max_size=20),
    during=st.lists(st.tuples(st.sampled_from([*_growth, "elect", "retain"]), st.integers(0, 9)), max_size=16),
    turns=st.tuples(st.integers(0, 16), st.integers(0, 16)),
    random=st.randoms(use_true_random=False),
)
def test_a_listing_shows_what_was_there_and_no_hole(
    before: list[tuple[str, int]], during: list[tuple[str, int]], turns: tuple[int, int], random: Random
) -> None:
    history = History()
    for step in [("append", 0), *before]:
        history.step(*step, frozenset())
    begin = len(history.moments) - 1
    there = frozenset(name for name in history.files if isinstance(name, DataName))
    for what, number in during:
        # Later files are not deleted immediately (file.delete.delay.ms).
        history.step(what, number, frozenset(history.files) - there)
    end = len(history.moments) - 1
    first_end, second_begin = sorted(begin + min(turn, end - begin) for turn in turns)
    first, second = scan(history, begin, first_end, random), scan(history, second_begin, end, random)

    found = first if first == second else objects_together(first, second)
    if found is None:
        assert {"elect", "retain", "merge"} & {what for what, _ in during}, "appends alone are listed at once"
        return
    listing = parse(FOLDER, found)
    log = log_of(
        {*(file.name for file in listing.data), *(name for name, _ in listing.epochs), *listing.watermarks}
        | {name for name, _ in listing.local_starts},
        history,
        frozenset(listing.late),
    )
    names_then, end_then, high_watermark_then = history.moments[begin]
    names_now, end_now, high_watermark_now = history.moments[end]
    assert all(_ends_rightly(link, history) for link in log.chain)
    assert end_then <= log.log_end <= end_now
    assert high_watermark_then <= log.high_watermark <= high_watermark_now
    assert (log.stranded, log.lost_committed) == ((), False)
    assert listing.latest_epoch <= listing.joined_epoch
    shown = {one.name for one in found}
    always = names_then.intersection(*(names for names, _, _ in history.moments[begin:]))
    assert {f"{FOLDER}/{name}" for name in always} <= shown
    assert shown <= {f"{FOLDER}/{name}" for names, _, _ in history.moments[begin:] for name in names}
    assert names_now


def _ends_rightly(link: Link, history: History) -> bool:
    return link.name.merged or link.end == history.ends[link.name]
