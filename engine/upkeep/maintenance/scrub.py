"""Scrub: a deep verify in pieces, so that every byte of every copy is read once in ``scrub.interval.ms``.

The partitions whose last read was longest ago come first. A piece has as many partitions as will probably fit into
``scrub.max.bytes`` (``budget``). Damage in a piece is healed immediately. The metadata log is read with the first
piece, but not healed: ``stratalog quorum`` replaces a voter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.healing.heal import heal
from stratalog.engine.upkeep.maintenance.budget import Spending
from stratalog.engine.upkeep.memory.times import Times, wait_ms
from stratalog.engine.upkeep.verification.verify import verify
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import METADATA_TOPIC

_MOST_PARTITIONS = 256
"""The maximum number of partitions in a piece."""


def due_partitions(image: ClusterImage, times: Times, interval_ms: int, now_ms: int) -> list[TopicIdPartition]:
    """The partitions that are due; those whose last read was longest ago come first."""
    last = times.scrubbed
    keys = [view.key for topic in image.topics.values() for view in image.views(topic.name)]
    due = [key for key in keys if wait_ms(last.get(key), interval_ms, now_ms) == 0]
    return sorted(due, key=lambda key: (last.get(key, 0), key))


def scrub(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    due: Sequence[TopicIdPartition],
    run: OperationRun,
    *,
    metadata_log: bool,
    spending: Spending,
    read: Callable[[Sequence[TopicIdPartition]], None],
) -> None:
    """Read and heal the partitions of ``due``, in this order, within ``spending``, but at least one piece.
    ``read`` is called after each piece. The report has one row per damage.

    Raises: errors from reading the metadata.
    """
    if metadata_log:
        run.absorb(verify(metadata, storage, execution, [METADATA_TOPIC], deep=True))
    reached = 0
    for piece in spending.pieces(due, _MOST_PARTITIONS):
        run.absorb(heal(metadata, storage, execution, memory, only=frozenset(piece)), rows=True)
        read(piece)
        reached += len(piece)
    run.totals |= {"partitions": reached, "partitions_due": len(due) - reached}
