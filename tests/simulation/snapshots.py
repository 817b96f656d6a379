"""Snapshots of a topic, and the keys that were erased from them (``stratalog.snapshots.erasure``: S1, S3)."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from stratalog.partitions.paths import CheckpointName, base_name
from tests.simulation.content import content_of, parsed_name
from tests.simulation.oracle import History, Token, is_tombstone, key_of
from tests.simulation.scheduler import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World


def check_snapshots(world: World) -> None:
    """Check the current snapshots of all members of the ISRs. Raises: Violation."""
    for (key, broker), folder in world.invariants.folders.items():
        partition, history = world.invariants.partition(key), world.oracle.history(key)
        if partition is None or broker not in partition.isr or not world.invariants.sound(broker):
            continue
        found = {
            name: data
            for path, (_, data) in world.roots[broker].folders.get(folder, {}).items()
            if isinstance(name := parsed_name(base_name(path)), CheckpointName)
            and name.generation == history.generation
        }
        if max((name.end_offset for name in found), default=0) < history.snapshot_end:
            raise Violation(
                f"S1: no current snapshot ends at {history.snapshot_end} or later on broker {broker}, in the "
                f"ISR of {world.invariants.name(key)}"
            )
        for name, data in found.items():
            _check(name, data, history, world.oracle.keys_wanted, f"on broker {broker}")


def _check(name: CheckpointName, data: bytes, history: History, wanted: Container[bytes], who: str) -> None:
    tokens = content_of(data).tokens[1:-1]  # without the control records
    latest: dict[bytes, Token] = {}
    for offset in range(name.end_offset):
        if offset not in history.committed:
            return  # another history
        latest[key_of(history.committed[offset])] = history.committed[offset]
    for token in tokens:
        bound = history.keys_gone.get(key_of(token), 0)
        if history.offsets[token] < bound:
            raise Violation(f"S1: {name} has {token!r} {who}, which was erased up to {bound}")
        if latest[key_of(token)] != token:
            raise Violation(f"S3: {name} has {token!r} {who}, and {latest[key_of(token)]!r} is later")
    for key, token in latest.items():
        if key not in wanted and not is_tombstone(token) and token not in tokens:
            raise Violation(f"S3: {name} lacks {token!r} {who}")
