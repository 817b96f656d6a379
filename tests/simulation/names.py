"""Names in storage in the protocol's notation, for traces and hand-written schedules."""

from __future__ import annotations

from stratalog.partitions.identity import ID_LENGTH
from stratalog.partitions.paths import (
    BROKER_FILE,
    SNAPSHOT_TABLES,
    CheckpointName,
    ChunkName,
    ClaimName,
    EpochName,
    base_name,
    folder_of,
    parse_name,
)
from tests.unit.notation import text_of


def name_in_short(name: str) -> str:
    """A name in storage in the protocol's notation: ``t-0 2.1``, ``metadata 5.3``, ``t-0 1.epoch``."""
    if name == BROKER_FILE or not name:
        return name
    parsed = parse_name(base_name(name))
    match parsed:
        case None:
            return _folder(name)
        case EpochName(epoch):
            short = f"{epoch}.epoch"
        case ClaimName(epoch):
            short = f"{epoch}.claim"
        case CheckpointName(end_offset, epoch):
            short = f"{end_offset}.{epoch}.checkpoint"
        case ChunkName():
            short = str(parsed)
        case _:
            short = text_of(parsed)
    return f"{_folder(folder_of(name))} {short}"


def _folder(folder: str) -> str:
    incarnation_folder, *rest = folder.split("/")
    directory, _, root = incarnation_folder.partition(".")
    short = f"{directory[-3:]}{'.' + root[:2] if root else ''}"  # the last digits distinguish directories
    match rest:
        case ["__cluster_metadata"]:
            return "metadata"
        case [topic, replica] if incarnation_folder != SNAPSHOT_TABLES:
            partition, _, assignment = replica.partition(".")
            return f"{topic[: -ID_LENGTH - 1]}-{partition} ({short}, {assignment})"
        case _:
            return folder
