"""Events of operations into ``__operations``."""

from __future__ import annotations

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.records.state_log import append_own, ensure_topic
from stratalog.engine.state.internal_topics import OPERATIONS_TOPIC, operations_topic
from stratalog.engine.state.operations import Event, to_batch


def append_event(context: Context, image: ClusterImage, event: Event) -> None:
    """Append an event, with acks=all. ``image`` is the metadata as it was just read. The first event of a cluster
    creates the topic. The roots are not looked at once more: one that is gone is found by the append.

    Raises: as ``append_state``; InvalidReplicationFactorError where no broker is in service.
    """
    brokers = sum(not broker.fenced for broker in image.brokers.values())
    image = ensure_topic(context, image, operations_topic(brokers, tiered=context.remote is not None))
    append_own(context, OPERATIONS_TOPIC, 0, to_batch(event), image)
