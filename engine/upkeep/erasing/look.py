"""Finds the copies on one root that may still have erased records."""

from __future__ import annotations

from collections.abc import Container, Mapping

from stratalog.engine.upkeep.erasing.certificate import NotErased
from stratalog.engine.upkeep.erasing.copies import Copies, FileCopy
from stratalog.engine.upkeep.erasing.partition import ErasingPartition
from stratalog.engine.upkeep.erasing.snapshot_tasks import holds_keys, snapshot_left
from stratalog.engine.upkeep.erasing.tasks import may_hold
from stratalog.partitions.erasure import within
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import CheckpointName, base_name, parse_name
from stratalog.partitions.records import RECORD_COLUMNS


def look_at(
    copies: Copies,
    parts: Mapping[TopicIdPartition, ErasingPartition],
    with_snapshots: Container[str],
    brokers: Container[int],
) -> None:
    """Add the copies on a root that may have erased records to their partitions. ``with_snapshots`` are the ids of
    the topics with snapshots, ``brokers`` the registered brokers.
    """
    if copies.error is not None:
        why = f"it cannot be searched ({copies.error.code}: {copies.error}): fix this, then erase again"
        for part in parts.values():  # any partition may have a former replica there
            if all(one.where != f"broker {copies.broker}" for one in part.left):
                part.left.append(NotErased(f"broker {copies.broker}", why))
        return
    if copies.unfinished:
        why = (
            f"{copies.unfinished} unfinished files of writers have no name yet, and may have erased records: "
            "erase again when their writers have ended; after a day, `stratalog vacuum` deletes unfinished files "
            "of writers that died"
        )
        for part in parts.values():
            part.left.append(NotErased(f"broker {copies.broker}: unfinished files", why))
    for copy in copies.found:
        if copy.key in parts:
            part = parts[copy.key]
            where = f"broker {copy.broker}: {copy.object.name}"
            if copy.snapshot and copy.key.topic_id in with_snapshots:
                why_left = _of_snapshot(copy, part, where, brokers)
            elif copy.snapshot:
                why_left = _of_unused_snapshot(copy, part)
            else:
                why_left = _of_file(copy, part, where, brokers)
            if why_left is not None:
                part.left.append(NotErased(where, why_left))


def _of_file(copy: FileCopy, part: ErasingPartition, where: str, brokers: Container[int]) -> str | None:
    if copy.file is None:
        return "it is not a log file, so its content is unknown: remove it by hand"
    if copy.owned and not part.is_new(copy.file, where):
        return None
    looked_to = part.looked_to if copy.owned else None
    try:
        if not may_hold(copy.store, copy.file, part.view, part.keys, looked_to):
            return None
    except StratalogError as error:
        return f"it cannot be read: {error.code}: {error}"
    return _why_there(copy, part, brokers)


def _of_snapshot(copy: FileCopy, part: ErasingPartition, where: str, brokers: Container[int]) -> str | None:
    """A snapshot, or a piece of one, in a topic with snapshots."""
    if any(one.where == where for one in part.left):
        return None
    if copy.owned and part.cleaned is None and not part.failed:
        return None  # in a dry run, the plan already names what a run could not erase
    searched = (part.looked_to, part.leader_epoch) if copy.owned and part.cleaned is not None else None
    try:
        found = snapshot_left(copy.store, copy.object, part.view.last_erasure, part.keys, searched)
    except StratalogError as error:
        return f"it cannot be read: {error.code}: {error}"
    return None if found is None else f"{found}; {_why_there(copy, part, brokers)}"


def _of_unused_snapshot(copy: FileCopy, part: ErasingPartition) -> str | None:
    """A snapshot, or a piece of one, in a topic whose cleanup.policy is no longer ``snapshot``."""
    name, keys = parse_name(base_name(copy.object.name)), part.keys
    by_hand = "the topic no longer has snapshots, so nothing uses this file: delete it by hand, then erase again"
    if not isinstance(name, CheckpointName) or keys is None or not set(keys.read.names) <= set(RECORD_COLUMNS):
        return f"it was not searched; {by_hand}"
    for one in part.view.erasures:  # the keys of an earlier run are unknown
        if one.generation > name.generation and within(one.offsets, 0, name.end_offset):
            return f"it may have records of erasure {one.generation}; {by_hand}"
    try:
        found = holds_keys(copy.store, name, copy.object, keys)
    except StratalogError as error:
        return f"it cannot be read: {error.code}: {error}"
    return f"it has a record of the keys; {by_hand}" if found else None


def _why_there(copy: FileCopy, part: ErasingPartition, brokers: Container[int]) -> str:
    if copy.owned and part.cleaned is None:
        return (
            "the work on its partition failed before the file was deleted: correct the failure, then erase again"
        )
    if copy.owned:
        return "a writer gave it its name during this run: erase again"
    if copy.broker in brokers:
        return "it belongs to a former replica: run `stratalog vacuum`, then erase again"
    return "its broker is no longer registered: delete the file by hand, then erase again"
