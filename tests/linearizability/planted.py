"""Faults that are planted into the answers of a sound history; no linearizable log could return these answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

from tests.linearizability.calls import Call

Plant = Callable[[Sequence[Call]], list[Call] | None]
"""The history with one fault, or None if the fault does not fit into it. The given history is not changed."""


def _whole_fetches(calls: Sequence[Call], least: int) -> Iterator[Call]:
    """Fetches of a log from its start to its end, of records that were all acknowledged before the fetch began."""
    for one in calls:
        if one.kind != "fetch" or one.offset or one.answer is None:
            continue
        sure = {
            record
            for other in calls
            if other.kind == "append" and other.returned is not None and other.returned < one.call
            for record in other.records
        }
        records = one.answer["records"]
        whole = one.answer["end_known"] and least <= len(records) == one.answer["high_watermark"]
        if whole and sure.issuperset(records):
            yield one


def _with_records(change: Callable[[list[str]], list[str]], least: int) -> Plant:
    def plant(calls: Sequence[Call]) -> list[Call] | None:
        found = deepcopy(list(calls))
        fetch = next(_whole_fetches(found, least), None)
        if fetch is None or fetch.answer is None:
            return None
        records = change(fetch.answer["records"])
        fetch.answer = {**fetch.answer, "records": records, "high_watermark": len(records)}
        return found

    return plant


def _acknowledged_at_a_taken_offset(calls: Sequence[Call]) -> list[Call] | None:
    found = deepcopy(list(calls))
    for later in found:
        for earlier in found if later.kind == "append" and later.answer else ():
            same = (earlier.kind, earlier.object) == (later.kind, later.object)
            if same and earlier.answer and earlier.records != later.records:
                later.answer = dict(earlier.answer)
                return found
    return None


def _commit_goes_back(calls: Sequence[Call]) -> list[Call] | None:
    """A group's offset is older than one committed meanwhile, and no other commit explains it."""
    found = deepcopy(list(calls))
    for read in found:
        if read.kind != "committed" or read.answer is None or read.answer["offset"] < 0:
            continue
        commits = [one for one in found if (one.kind, one.object) == ("commit", read.object)]
        done = [one for one in commits if one.returned is not None and one.returned < read.call]
        if not done:
            continue
        last = max(done, key=lambda one: one.call)
        possible = {one.offset for one in commits if one.returned is None or one.returned > last.call}
        older = {one.offset for one in done} - possible
        read.answer = {"offset": min(older, default=-1)}
        return found
    return None


PLANTED: dict[str, Plant] = {
    "an acknowledged append is lost": _with_records(lambda records: records[:-2] + records[-1:], 2),
    "a read is stale": _with_records(lambda records: records[:-1], 1),
    "records are in another order": _with_records(lambda records: [*records[:-2], records[-1], records[-2]], 2),
    "a record is there twice": _with_records(lambda records: [*records, records[-1]], 1),
    "two appends have one offset": _acknowledged_at_a_taken_offset,
    "a committed offset goes back": _commit_goes_back,
}
