"""The high watermark: advanced only by proof, and written down on every replica that has it."""

from __future__ import annotations

from engine.replication.site import Site
from partitions.paths import WatermarkName
from partitions.replica import Replica


def record_high_watermark(replica: Replica, epoch: int, offset: int) -> None:
    """Write down on a replica that has joined ``epoch`` that the high watermark reached ``offset``.

    The caller has seen, under one view, that every replica of the ISR and of those being added holds
    the log up to ``offset`` after joining, and has found the view unchanged by a linearizable read.
    """
    replica.store.create(replica.path(WatermarkName(offset, epoch)), b"")


def advance_high_watermark(site: Site, offset: int) -> None:
    """Write it down on the leader first, then on the others that an acknowledgement needed."""
    record_high_watermark(site.leader, site.epoch, offset)
    for broker_id in site.acknowledging:
        record_high_watermark(site.replica(broker_id), site.epoch, offset)
