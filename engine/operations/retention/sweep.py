"""Sweep: delete what no replica of the metadata owns.

Folders of deleted topics, of replicas that were reassigned, of former incarnations of a root. A replica's folder
is *closed* before it is emptied: a zombie whose view still says that this replica leads would find an empty log
otherwise, take over its own epoch a second time, and copy a second history of that epoch to followers that
both views have in common. So one small file stays of each removed replica until its topic is deleted: the
lineage of an epoch above all others, which tells everybody that their view is out of date.

What others have put beside our folders, or into those that are owned, is theirs and stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.context import Context
from engine.metadata.image import ClusterImage
from engine.report import Failure
from partitions import paths
from partitions.errors import StratalogError
from partitions.lineage import Lineage
from partitions.paths import EpochName
from partitions.root import read_broker_file
from partitions.store import Store, StoredObject

CLOSED = EpochName(9_999_999_999)
"""What a replica has joined that is none any more: no leader epoch is ever as great."""

_CLOSED_LINEAGE = Lineage([(CLOSED.epoch, 0)])


def sweep_roots(context: Context, failures: list[Failure], dry_run: bool = False) -> int:
    """Delete what nobody owns; how many files. A root that cannot be listed, or not be swept, is a failure.

    The roots are listed first and the metadata is read afterwards: whoever writes to a folder knows it from
    the metadata, so a folder that was seen and is not owned then is nobody's any more.
    """
    seen: dict[int, Sequence[StoredObject]] = {}
    for broker_id, store in context.stores.items():
        try:
            seen[broker_id] = store.list("")
        except StratalogError as error:
            failures.append(Failure.of(f"broker {broker_id}", error))
    image = context.metadata.image()
    owned = {
        (broker, context.site(view).replica(broker).folder)
        for topic in image.topics.values()
        for view in image.views(topic.name)
        for broker in view.replicas
        if broker in context.stores
    }
    awaited = {
        lost.broker_id
        for topic in image.topics.values()
        for partition in topic.partitions
        for lost in partition.lost
    }
    swept = 0
    for broker_id, objects in seen.items():
        store, registered = context.stores[broker_id], image.brokers.get(broker_id)
        try:
            found = read_broker_file(store)
            if registered is None or found is None or found.directory_id != registered.directory_id:
                continue  # about to be registered, or not there: not ours to judge
            if broker_id in awaited:
                continue  # what an earlier incarnation left may be all that there is of a partition
            kept = {paths.voter_path(registered.directory_id), paths.schedule_folder(registered.home)}
            litter: dict[str, list[str]] = {}
            for stored in objects:
                folder = paths.folder_of(stored.name)
                if any(above in kept or (broker_id, above) in owned for above in _and_above(folder)):
                    continue
                if paths.is_top_folder(folder.partition("/")[0]):
                    litter.setdefault(folder, []).append(stored.name)
            swept += sum(_sweep_folder(store, folder, names, image, dry_run) for folder, names in litter.items())
        except StratalogError as error:
            failures.append(Failure.of(f"broker {broker_id}", error))
    return swept


def _and_above(folder: str) -> Iterator[str]:
    """A folder and those it lies in, but for the root."""
    while folder:
        yield folder
        folder = paths.folder_of(folder)


def _sweep_folder(store: Store, folder: str, names: Sequence[str], image: ClusterImage, dry_run: bool) -> int:
    """Empty a folder, which is closed first where its topic is alive; how many files."""
    closed = paths.join(folder, str(CLOSED))
    topic = paths.parse_topic_folder(paths.base_name(paths.folder_of(folder)))
    alive = topic is not None and topic[1] in image.topics
    doomed = [name for name in names if not alive or name != closed]
    if doomed and not dry_run:
        if alive and closed not in names:
            store.create(closed, _CLOSED_LINEAGE.to_json())
        store.delete(doomed)
    return len(doomed)
