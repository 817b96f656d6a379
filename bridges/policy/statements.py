"""The permissions of a role, and their places. Pure.

    reader     reads its topics in both tiers, metadata, groups, transactions and hints
    producer   also creates files in the logs of its topics, of groups and of transactions, and in the metadata;
               deletes nothing
    operator   also runs the upkeep of its topics: tiers, retains, heals, erases, deletes. With all topics it also
               formats, bootstraps and vacuums

Producers also write the metadata, because an append may have to remove an unreachable broker from an ISR. This is
a separate statement, which can be omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stratalog.bridges.policy.layout import ClusterLayout, StorageRoot
from stratalog.bridges.policy.role import Role
from stratalog.partitions import paths
from stratalog.partitions.errors import Right
from stratalog.partitions.store.rules import STAGING_FOLDER


@dataclass(frozen=True, slots=True)
class Resource:
    """A folder of a root with everything below it, or one object there."""

    root: StorageRoot
    path: str
    """The path below the folder of the incarnation, or below the root; empty: everything."""
    in_incarnation: str = ""
    """The name of the incarnation's folder; empty: directly below the root. A root that is formatted again has a
    new incarnation.
    """
    is_object: bool = False

    def below_root(self, any_incarnation: str | None = None) -> str:
        """The path below the root; ``any_incarnation``, if given, replaces the folder of the current
        incarnation.
        """
        folder = any_incarnation if any_incarnation is not None and self.in_incarnation else self.in_incarnation
        return paths.join(folder, self.path)


@dataclass(frozen=True, slots=True)
class Statement:
    """Permissions on places."""

    name: str
    rights: frozenset[Right]
    places: tuple[Resource, ...]


READ: frozenset[Right] = frozenset({"list", "read"})
CREATE: frozenset[Right] = frozenset({"create"})
CHANGE: frozenset[Right] = frozenset({"create", "delete"})


def statements(role: Role, layout: ClusterLayout) -> tuple[Statement, ...]:
    """The minimal permissions of a role; every statement has at least one place."""
    all_topics = layout.topics is None
    everything = tuple(Resource(root, "") for root in _roots(layout))
    found = [Statement("ReadEverything", READ, everything)] if all_topics else _reader(layout)
    match role:
        case Role.READER:
            pass
        case Role.PRODUCER:
            found += [
                Statement("Append", CREATE, (*_topics(layout), *_internal(layout))),
                Statement("ChangeTheMetadata", CREATE, _metadata(layout)),
                Statement("Stage", CREATE | {"read"}, _staging(layout.brokers)),
            ]
        case Role.OPERATOR if all_topics:
            found += [Statement("ChangeEverything", CHANGE, everything)]
        case Role.OPERATOR:
            found += [
                Statement("ObeyTheThrottle", READ | CHANGE, _on_brokers(layout, [paths.REPLICATION_THROTTLE])),
                Statement("KeepUp", CHANGE, (*_topics(layout), *_internal(layout), *_hints(layout))),
                Statement("KeepUpTheRemoteTier", CHANGE, (*_tables(layout), *_descriptions(layout))),
                Statement("ChangeTheMetadata", CHANGE, _metadata(layout)),
                Statement("Stage", CHANGE | {"read"}, _staging(_roots(layout))),
            ]
    return tuple(statement for statement in found if statement.places)


def _reader(layout: ClusterLayout) -> list[Statement]:
    descriptions = tuple(Resource(root, paths.BROKER_FILE, is_object=True) for root in layout.brokers)
    return [
        Statement("SeeTheCluster", READ, (*descriptions, *_metadata(layout), *_hints(layout))),
        Statement("ReadRecords", READ, (*_topics(layout), *_internal(layout))),
        Statement("ReadTheRemoteTier", READ, (*_tables(layout), *_descriptions(layout))),
    ]


def _roots(layout: ClusterLayout) -> tuple[StorageRoot, ...]:
    return layout.brokers if layout.remote is None else (*layout.brokers, layout.remote)


def _on_brokers(layout: ClusterLayout, folders: Iterable[str]) -> tuple[Resource, ...]:
    return tuple(Resource(root, folder, root.incarnation) for folder in folders for root in layout.brokers)


def _topics(layout: ClusterLayout) -> tuple[Resource, ...]:
    return _on_brokers(layout, [""] if layout.topics is None else _folders(layout.topics, paths.topic_folder))


def _internal(layout: ClusterLayout) -> tuple[Resource, ...]:
    return () if layout.topics is None else _on_brokers(layout, _folders(layout.internal, paths.topic_folder))


def _hints(layout: ClusterLayout) -> tuple[Resource, ...]:
    return _on_brokers(layout, paths.SCHEDULES)


def _metadata(layout: ClusterLayout) -> tuple[Resource, ...]:
    return tuple(Resource(root, paths.METADATA_TOPIC, root.voter) for root in layout.brokers if root.voter)


def _staging(roots: Iterable[StorageRoot]) -> tuple[Resource, ...]:
    return tuple(Resource(root, STAGING_FOLDER) for root in roots)


def _tables(layout: ClusterLayout) -> tuple[Resource, ...]:
    if layout.remote is None or layout.topics is None:
        return ()
    folders = _folders(layout.topics, paths.topic_folder)
    places = (*folders, *(paths.join(paths.SNAPSHOT_TABLES, folder) for folder in folders))
    return tuple(Resource(layout.remote, place) for place in places)


def _descriptions(layout: ClusterLayout) -> tuple[Resource, ...]:
    if layout.remote is None:
        return ()
    return (Resource(layout.remote, paths.descriptions_path(layout.cluster_id)),)


def _folders(topics: Mapping[str, str], folder: Callable[[str, str], str]) -> list[str]:
    return [folder(name, topic_id) for name, topic_id in topics.items()]
