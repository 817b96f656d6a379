"""Creates mirrored topics with all partitions, and checks their source and type. A topic has typed values from its
creation or never, and its type grows with the schema.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.mirror.configs import configs_here
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.renamed import check_length
from stratalog.bridges.mirror.source import InconsistentTopicIdError, SourceBounds, SourceTopic, without_leader
from stratalog.engine.admin.topics import create_topic
from stratalog.engine.config.mirrored import mirrored_topic
from stratalog.engine.config.topic_config import MIRROR_SOURCE, MIRROR_SOURCE_TOPIC
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.metadata.topic_commands import AlterTopic, CreatePartitions
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidTopicError,
    StratalogError,
    TopicAlreadyExistsError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.records import same_type, type_from_json


def ensure_here(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    run: OperationRun,
    topic: SourceTopic,
    bounds: Mapping[TopicPartition, SourceBounds],
    options: MirrorOptions,
) -> bool:
    """Create a missing topic, or add partitions. Returns whether the topic exists with all its partitions;
    otherwise the run gets a failure with the reason.
    """
    try:
        image = metadata.image()
        if topic.name not in image.topic_ids:
            _create(metadata, storage, execution, topic, bounds, options)
            run.notes.append(
                f"{topic.name}: {'would be ' if options.dry_run else ''}created as a mirror of {topic.source}, "
                f"with {topic.partitions} partitions"
            )
            if options.dry_run:
                return False
            image = metadata.image()
        here = image.topic(topic.name)
        check_source(here, topic)
        _let_grow(metadata, here, options.values, dry_run=options.dry_run)
        if topic.partitions > len(here.partitions):
            metadata.submit(CreatePartitions(topic.name, topic.partitions), dry_run=options.dry_run)
            run.notes.append(f"{topic.name}: the source has {topic.partitions} partitions now")
    except StratalogError as error:
        run.fail(topic.name, error)
        return False
    return True


def _create(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topic: SourceTopic,
    bounds: Mapping[TopicPartition, SourceBounds],
    options: MirrorOptions,
) -> None:
    """Raises: InvalidTopicError for a name that is too long; LeaderNotAvailableError while some log starts are
    unknown.
    """
    check_length(topic)
    keys = [(topic.name, partition) for partition in range(topic.partitions)]
    for key in keys:
        if key not in bounds:
            raise without_leader(key)
    try:
        create_topic(
            *(metadata, storage, execution),
            topic.name,
            partitions=topic.partitions,
            replication_factor=options.replication_factor,
            value_schema=None if options.values is None else options.values.schema,
            configs=configs_here(topic, archive=options.archive),
            log_starts=[bounds[key].log_start for key in keys],
            dry_run=options.dry_run,
        )
    except TopicAlreadyExistsError:
        if topic.name not in metadata.image().topic_ids:
            raise  # another mirror has created the topic under another name
        # Otherwise the other mirror has created this topic; the source is checked next.


def check_source(here: TopicImage, there: SourceTopic) -> None:
    """Check that the topic mirrors this source. Raises: TopicAlreadyExistsError, InvalidTopicError,
    InconsistentTopicIdError.
    """
    mirrored = here.configs.get(MIRROR_SOURCE, "")
    if not mirrored and here.configs.get(MIRROR_SOURCE_TOPIC) == there.name_there:
        raise TopicAlreadyExistsError(
            f"topic {there.renamed!r} of the source was mirrored here as {here.name!r}, until that mirror was "
            f"ended; nothing was copied. Keep {here.name!r} as it is, or mirror the topic a second time under "
            f"another name: --as {there.renamed}=NAME"
        )
    if not mirrored:
        raise TopicAlreadyExistsError(
            f"topic {here.name!r} already exists here and is not a mirror: it was created here, or its mirror "
            "was ended. Nothing was copied, because records appended here and records of the source would need "
            "the same offsets. Either keep the topic as it is, or delete it here (its records are lost) and "
            "mirror it again"
        )
    cluster_id, _, topic_id = mirrored.rpartition("/")
    if cluster_id != there.cluster_id:
        raise InvalidTopicError(f"topic {here.name!r} mirrors {mirrored} of another cluster, not {there.source}")
    mirrored_name = mirrored_topic(here.name, here.configs) or ""
    if mirrored_name != there.name_there:
        raise InvalidTopicError(
            f"topic {here.name!r} mirrors topic {mirrored_name.rpartition('/')[2]!r} of that cluster, not "
            f"{there.name_there.rpartition('/')[2]!r}: give the source topic another name here: "
            f"--as {there.renamed or there.name}=NAME"
        )
    if mirrored == there.source:
        return
    raise InconsistentTopicIdError(
        f"topic {here.name!r} mirrors the source's topic id {topic_id}; now the source has "
        f"{there.source.rpartition('/')[2]}: the topic was deleted in the source and created again. Either keep "
        "the mirrored records and end the mirror (stratalog mirror --end), or delete the topic here and mirror "
        "the new one"
    )


def _let_grow(metadata: MetadataClient, here: TopicImage, values: TypedValues | None, *, dry_run: bool) -> None:
    """Check that the topic's type matches the decoded values; adds new fields to it.

    Raises: InvalidCallError.
    """
    check_typed(here, values)
    if values is not None and not same_type(type_from_json(here.value_schema or ""), values.type):
        metadata.submit(AlterTopic(here.name, value_schema=values.schema), dry_run=dry_run)


def check_typed(here: TopicImage, values: TypedValues | None) -> None:
    """Raises: InvalidCallError if the topic has typed values and no decoder is given, or vice versa."""
    if (here.value_schema is None) != (values is None):
        raise InvalidCallError(
            f"topic {here.name!r} has typed values: give their decoder (--format, --schema)"
            if values is None
            else (
                f"topic {here.name!r} has values of bytes, and that type cannot change: omit --format and "
                "--schema, or delete the topic here and mirror it again"
            )
        )
