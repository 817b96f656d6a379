"""Omitted steps of the tables in which topics publish their snapshots (``mutations``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import stratalog.engine.upkeep.erasing.published
import stratalog.engine.upkeep.snapshots.publish
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.erasing.published import _Cleaning
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.simulation import variants_of_removal as removing
from tests.simulation.configuration import Configuration, small
from tests.simulation.mutation import Mutation
from tests.simulation.themes import PUBLISHED
from tests.simulation.variants import all_of, patched

_PUBLISH = stratalog.engine.upkeep.snapshots.publish
_FOLDER = "_snapshots/t-00000000000000000000000000000004"
_FILE = "00000000000000000005-0000000001.10000002000000000000000000000002.parquet"
"""The file of the second snapshot."""
_DELETE_HISTORY = SnapshotTable.delete_history
_ERASE = "erase 0 now; erase 1 now; erase 2 now"


def _published(*slots: str, partitions: int = 1, fault_rate: float = 0.0) -> Configuration:
    """A table with the first snapshot of each partition."""
    appends = "".join(f"append before{partition} 0 {partition} 3; " for partition in range(partitions))
    configs = {
        "cleanup_policy": "snapshot",
        "remote_snapshot_table_enable": "true",
        "metadata_start_offset_lag_time_max_ms": "0",
    }
    one = small(*slots, setup=f"{appends}snapshot", **configs)
    return replace(
        one,
        shape=replace(one.shape, partitions=partitions),
        tags=frozenset({PUBLISHED.name}),
        fault_rate=fault_rate,
        horizon=250,
        tick_ms=1,
    )


class _EveryGeneration(int):
    """Equals each generation."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def _every_generation(metadata: MetadataClient, topic_id: str) -> dict[int, int]:
    """A file of any generation is added to the table."""
    partitions = metadata.image().topics[topic_id].partitions
    return {one.partition: _EveryGeneration(0) for one in partitions}


def _history_of_any_generation(table: SnapshotTable, _: object) -> int:
    """The generations of the listed files are not compared."""
    return _DELETE_HISTORY(table, {})


def _nothing_checked(*_: object) -> None:
    """A check that accepts everything."""


def _all_follows(_: object) -> bool:
    """Whatever the table lists follows the erasures."""
    return True


MUTATIONS_OF_PUBLISHED: Sequence[Mutation] = (
    Mutation(
        "the history goes while an outdated file is listed",
        "if the table lists a file of another generation, nothing is deleted (snapshots.erasure, step 7a)",
        all_of(
            patched(_Cleaning, "_check_listed", _all_follows),
            patched(SnapshotTable, "delete_history", _history_of_any_generation),
        ),
        directed=_published("rewrite 1; snapshot", _ERASE, fault_rate=0.03),
        first=32,
    ),
    Mutation(
        "a table replaced without all of its partitions",
        "files of other programs are replaced when every partition gets a file (tiering.snapshot_table)",
        patched(SnapshotTable, "_check_replaced", _nothing_checked),
        directed=_published("rewrite 0", "append p0 0 0 1; snapshot", partitions=2, fault_rate=0.03),
    ),
    Mutation(
        "a published file of any generation",
        "a commit adds only files of the generation in the metadata (snapshots.erasure, The published table)",
        patched(_PUBLISH, "_generations", _every_generation),
        directed=_published("append p0 0 0 2; snapshot", _ERASE),
        script=(("d0", f"create {_FOLDER}/_delta_log/00000000000000000002.json bremote"), ("d1", "")),
    ),
    Mutation(
        "a published file whatever was erased meanwhile",
        "before the job gives its file a name, it lists the leader (snapshots.erasure, The published table)",
        all_of(
            patched(_PUBLISH, "check_not_erased_since", _nothing_checked),
            patched(_PUBLISH, "check_still_there", _nothing_checked),
        ),
        directed=_published("append p0 0 0 2; snapshot", _ERASE),
        script=(
            ("d0", "delete 3.1.checkpoint b1"),
            ("d0", "open 5.1.checkpoint b2"),
            ("d0", "list 11) b2"),
            ("d1", ""),
        ),
        first=2,
    ),
    Mutation(
        "an unfinished upload of a published file",
        "an upload in progress is reported as not erased (snapshots.erasure, The published table)",
        patched(stratalog.engine.upkeep.erasing.published, "unfinished_uploads", removing.nothing_unfinished),
        directed=_published("append p0 0 0 2; snapshot", _ERASE),
        script=(("d0", f"commit {_FOLDER}/0/{_FILE} bremote"), ("d1", "")),
    ),
)
