"""Stores the failures of operations that run alone, by hand or by a scheduler, as ``maintain`` does for its steps.
``health`` reports a failure until the operation has succeeded for the same partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from stratalog.engine.driver.execution import measured
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import places_of_copies
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.memory.kept_times import KeptTimes
from stratalog.engine.upkeep.memory.times import Ran
from stratalog.engine.upkeep.memory.trouble import DAMAGE
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, SourceChangedError, StratalogError
from stratalog.partitions.paths import METADATA_TOPIC

VERIFY = "verify"
"""The step of ``verify`` and ``heal``. The damage that they find is stored as damage (``remember_look``), not as a
failure.
"""


def remembered(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    step: str,
    topics: Sequence[str] | None,
    act: Callable[[], Report],
    *,
    some: bool = False,
    dry_run: bool = False,
) -> Report:
    """The report of ``act``, which runs ``step`` over the topics (None: all). ``some``: the run covered only the
    partitions with rows in the report. Adds a note if failures cannot be stored. A dry run, or an invalid call,
    stores nothing.

    Raises: errors from ``act``.
    """
    if dry_run:
        return _with_memory(act(), metadata, storage)
    try:
        report = act()
    except (InvalidCallError, SourceChangedError):  # the call was invalid, or its outcome is unknown
        raise
    except StratalogError as error:
        _remember(
            metadata, storage, clock, step, topics, [Failure.of(name, error) for name in topics or (step,)], None
        )
        raise
    with measured(clock, storage.counts) as measure:
        notes = _remember(metadata, storage, clock, step, topics, report.failures, report if some else None)
    return replace(report, notes=[*report.notes, *notes], counts=report.counts + measure.counts)


def _with_memory(planned: Report, metadata: MetadataClient, storage: Storage) -> Report:
    """The report of a dry run. The estimate includes the read of the stored failures, which follows a run."""
    if planned.estimate is None:
        return planned
    look = Planned(storage)
    for store in places_of_copies(storage, metadata.last_known.image):
        look.send(store, puts=1)
    return replace(planned, estimate=planned.estimate + look.more)


def _remember(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    step: str,
    topics: Sequence[str] | None,
    failures: Sequence[Failure],
    some: Report | None,
) -> list[str]:
    failures = [one for one in failures if step != VERIFY or one.code not in DAMAGE]
    try:
        image = metadata.last_known.image  # sends no request; new enough, because the operation has just read it
        kept = KeptTimes(storage, image)
        run = ran(image, step, failures, _tried(image, topics, some), clock.now_ms())
        kept.change(lambda times: times.ran(run))
        why = kept.keep()
    except StratalogError as error:
        why = str(error) if any(one.code != SourceChangedError.code for one in failures) else None
    return [] if why is None else [f"the outcome could not be stored for health: {why}"]


def ran(
    image: ClusterImage, step: str, failures: Sequence[Failure], tried: Collection[str] | None, now_ms: int
) -> Ran:
    """The outcome of a run over the partitions and topics ``tried`` (None: all). For items that another run has
    changed meanwhile, the run neither failed nor succeeded, so their earlier failures remain.
    """
    changed = {one.item.partition(" ")[0] for one in failures if one.code == SourceChangedError.code}
    if changed:
        every = _tried(image, list(image.topic_ids), None) if tried is None else tried
        tried = {one for one in every or () if one not in changed}
    return Ran(step, [one for one in failures if one.code != SourceChangedError.code], tried, now_ms)


def _tried(image: ClusterImage, topics: Sequence[str] | None, some: Report | None) -> Collection[str] | None:
    if some is not None:
        return {f"{row['topic']}-{row['partition']}" for row in some.rows}
    if topics is None:
        return None
    known = [image.topics[image.topic_ids[name]] for name in topics if name in image.topic_ids]
    partitions = {f"{topic.name}-{one.partition}" for topic in known for one in topic.partitions}
    return {*topics, *partitions, *({f"{METADATA_TOPIC}-0"} if METADATA_TOPIC in topics else ())}
