"""The cached view of a log, continued from look to look, equals a fresh look, whatever has happened between."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.known_log import KnownLog, known_again, log_again
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Listing, ReplicaLog, parse, resolve
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.protocol import StoredObject
from tests.unit.notation import FOLDER, GENERATION, listing_of, name_of, stored

END = 12
LINEAGE = Lineage([(1, 0), (2, 6)])

_offset = st.integers(0, END - 1)
_texts = st.one_of(
    st.builds(lambda o, e: f"{o}.{e}", _offset, st.integers(1, 2)),
    st.builds(lambda a, n, e: f"{a}-{min(a + n, END)}.{e}", _offset, st.integers(1, 6), st.integers(1, 2)),
    st.builds(
        lambda a, n, e, g: f"{a}-{min(a + n, END)}.{e}.{g}",
        *(_offset, st.integers(1, 6), st.integers(1, 2), st.integers(1, 3)),
    ),
    st.builds(lambda o, e: f"{o}.{e}.hw", _offset, st.integers(1, 2)),
    st.builds(lambda o: f"{o}.local", st.integers(0, 4)),
    st.builds(lambda e: f"{e}.epoch", st.integers(1, 3)),
)
_versions = st.sampled_from(["1", "2"])
_folders = st.lists(st.dictionaries(_texts, _versions, max_size=14), min_size=2, max_size=5)
"""The contents of a folder at successive looks: names with the versions of their files."""
_steps = st.lists(
    st.tuples(st.sampled_from(["append", "merge", "delete", "replace"]), st.integers(0, 40)), max_size=25
)
"""The growth of a log without faults."""


def objects(folder: dict[str, str]) -> list[StoredObject]:
    found = [
        StoredObject(f"{FOLDER}/{name_of(text)}", 1000, 0, version, late=version == "2" and text.endswith(".hw"))
        for text, version in folder.items()
    ]
    return sorted(found, key=lambda one: one.name)


def described(log: ReplicaLog) -> dict[str, object]:
    by_name = {
        field.name: sorted(getattr(log, field.name), key=lambda file: str(file.name))
        for field in fields(log)
        if field.name in ("dead", "hidden", "stranded")
    }
    return {field.name: getattr(log, field.name) for field in fields(log) if field.name not in by_name} | by_name


def end_of_append(file: object) -> int:
    return END


def looks(folders: list[dict[str, str]]) -> None:
    """Each look continues from the previous one, and is compared with a fresh one."""
    known: KnownLog | None = None
    log: ReplicaLog | None = None
    for folder in folders:
        answer = objects(folder)
        known = known_again(known, answer, FOLDER, str, GENERATION)
        fresh = parse(FOLDER, answer, generation=GENERATION)
        assert known.listing == fresh
        assert [*known.objects] == answer
        log = log_again(log, known.listing, LINEAGE, end_of_append)
        assert log.listing is known.listing
        assert described(log) == described(resolve(fresh, LINEAGE, end_of_append))


@given(_folders)
def test_a_known_log_equals_a_fresh_look_after_any_change_of_its_folder(folders: list[dict[str, str]]) -> None:
    looks(folders)


@given(_steps)
def test_a_known_log_equals_a_fresh_look_after_appends_merges_and_deletions(steps: list[tuple[str, int]]) -> None:
    folder, folders = {"1.epoch": "1", "0.1": "1"}, []
    for what, number in steps:
        texts = [text for text in folder if isinstance(name_of(text), DataName)]
        if what == "append":
            after = max((name_of(text).base_offset for text in texts), default=-1) + 1  # type: ignore[union-attr]
            folder = folder | {f"{after}.{1 if after < 6 else 2}": "1"}
        elif what == "merge" and len(texts) > 1:
            some = sorted(name_of(text).base_offset for text in texts)  # type: ignore[union-attr]
            low, high = some[number % (len(some) - 1)], some[-1]
            if low < high:
                folder = folder | {f"{low}-{high}.{1 if high <= 6 else 2}": "1"}
        elif what == "delete" and texts:
            folder = {text: version for text, version in folder.items() if text != texts[number % len(texts)]}
        elif what == "replace" and texts:
            folder = folder | {texts[number % len(texts)]: str(number)}
        folders.append(folder)
    looks(folders)


def test_if_nothing_has_changed_nothing_is_recreated() -> None:
    answer = objects({"0.1": "1", "1.1": "1", "1.1.hw": "1"})
    known = known_again(None, answer, FOLDER, str)
    assert known_again(known, answer, FOLDER, str) is known
    same = known_again(known, objects({"0.1": "1", "1.1": "1", "1.1.hw": "1"}), FOLDER, str)
    assert same.listing is known.listing
    assert same.objects is known.objects


def test_one_append_more_looks_at_the_last_files_alone() -> None:
    """The earlier links are reused, and only the last file's footer is requested."""
    asked = []

    def end(file: object) -> int:
        asked.append(file)
        return 1001

    before: Listing = listing_of([f"{offset}.1" for offset in range(1000)])
    log = resolve(before, Lineage([(1, 0)]), lambda _: 1000)
    known = KnownLog([], [file.object for file in before.data], before, log)
    now = known_again(known, [*known.objects, stored(name_of("1000.1"))], FOLDER, str)
    after = log_again(log, now.listing, Lineage([(1, 0)]), end)
    assert len(asked) == 1
    assert all(one is two for one, two in zip(log.chain[:999], after.chain[:999], strict=True))
    assert [(one.start, one.end) for one in after.chain[999:]] == [(999, 1000), (1000, 1001)]
    assert all(one.end == two.start for one, two in pairwise(after.chain))
