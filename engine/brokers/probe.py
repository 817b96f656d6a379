"""Probes the brokers at the start of a run: checks every root, and commits the results.

A probe takes one ``stat`` of each root, or two if the root is a folder. A root that hangs (a file system whose
server is gone) counts as unreachable after ``broker.session.timeout.ms``, so it does not block the run. Only the
storage of the metadata voters must answer, because nothing works without the metadata.

A driver fences brokers that it cannot reach, even if other drivers can reach these brokers, and may unfence them
again. So give all drivers the same mounts and routes. A driver also fences brokers whose roots accept files from
no driver, so that other drivers need not detect this again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from stratalog.engine.config.cluster_file import BrokerEntry, ClusterFile
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.commands import RegisterBroker
from stratalog.engine.metadata.image import BrokerImage, ClusterImage
from stratalog.engine.metadata.probed_roots import (
    Another,
    ApplyProbe,
    Blocked,
    Finding,
    Found,
    NotOurs,
    ProbedMetadata,
    Same,
    Unreachable,
)
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions import paths
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    InvalidCallError,
    StaleBrokerError,
    StaleMetadataError,
    StoreTimeoutError,
    StratalogError,
    UnknownBrokerError,
)
from stratalog.partitions.identity import same_root
from stratalog.partitions.root import check_broker_file, check_signed, inspect_root, root_identity
from stratalog.partitions.runner import Done, Failed, side_by_side
from stratalog.partitions.store import Store
from stratalog.partitions.store.local_space import folder_path, staging_in_the_way

T = TypeVar("T")

LEADER_AWAY = (BrokerUnreachableError, StaleMetadataError)
"""The errors of a leader that does not answer, or no longer leads."""
_ATTEMPTS = 5


def probe_brokers(metadata: MetadataClient, storage: Storage, image: ClusterImage | None = None) -> ProbedMetadata:
    """Check the root of every registered broker, and commit the results (``ApplyProbe``). If all roots are as
    registered, commit nothing. Notes name brokers that are only in the metadata or only in the cluster file; their
    state is not changed. ``image`` is a recent image of the caller, so that the probe does not have to read the
    metadata.

    Raises: StaleBrokerError if brokers are registered faster than they can be checked; RetriableError kinds,
        OutcomeUnknownError, CorruptionError kinds of the metadata.
    """
    stale: StaleBrokerError | None = None
    for _ in range(_ATTEMPTS):
        if image is None:
            image = metadata.image()
        command = ApplyProbe(tuple(probe_roots(storage, image)))
        try:
            decided = command.decide(image)
            probed = metadata.submit(command) if decided.records else decided.answer
        except StaleBrokerError as error:  # another driver has registered a broker in the meantime
            stale, image = error, None
            continue
        return replace(probed, notes=(*probed.notes, *_unmatched(storage.file, image)))
    assert stale is not None
    raise stale


def read_and_probe(metadata: MetadataClient, storage: Storage) -> tuple[ClusterImage, bool]:
    """Return the metadata, and whether the root of each broker is as registered there. The roots are checked while
    the metadata is read. If the answer is False, the brokers have changed, or something must be committed or
    reported, so the caller must run ``probe_brokers``.

    Raises: errors from reading the metadata.
    """
    known = metadata.last_known.image
    images: list[ClusterImage] = []
    found: list[Found] = []

    def look() -> None:
        with suppress(StratalogError):
            found.extend(probe_roots(storage, known))

    side_by_side(storage.copies, lambda: images.append(metadata.image()), look)
    (image,) = images
    if image.brokers != known.brokers or not found or _unmatched(storage.file, image):
        return image, False
    decided = ApplyProbe(tuple(found)).decide(image)
    return image, not decided.records and not decided.answer.notes


def probe_first(
    metadata: MetadataClient, storage: Storage, run: OperationRun, image: ClusterImage | None = None
) -> ClusterImage:
    """Call ``probe_brokers`` at the beginning of a run, and add its notes to the run. Returns the metadata. A dry
    run commits nothing, and returns the metadata as the probe would have changed it."""
    if run.dry_run:
        return plan_probe(metadata, storage, run, metadata.image() if image is None else image)
    probed = probe_brokers(metadata, storage, image)
    run.notes += [note for note in probed.notes if note not in run.notes]
    return probed.image


def plan_probe(
    metadata: MetadataClient, storage: Storage, run: OperationRun, image: ClusterImage, new: Collection[int] = ()
) -> ClusterImage:
    """Return ``image`` as a run's probe would change it, and note the changes in the run. ``new`` are brokers
    whose roots the run formats before the probe, so they are not probed.

    Raises: ClusterKeyError if the run could not commit the changes.
    """
    found = [*probe_roots(storage, image, image.brokers.keys() - set(new))]
    found += [Found(broker, image.brokers[broker].broker_epoch, Same()) for broker in new]
    decided = ApplyProbe(tuple(found)).decide(image)
    if decided.records:
        metadata.check_may_commit()
    image = decided.image_after(image)
    notes = [f"a run begins with: {note}" for note in decided.answer.notes]
    notes += _unmatched(storage.file, image)
    run.notes += [note for note in notes if note not in run.notes]
    return image


def with_leaders(
    metadata: MetadataClient, storage: Storage, work: Callable[[ClusterImage], T], *, dry_run: bool = False
) -> T:
    """Call ``work`` with the current metadata. If a leader is unreachable, or no longer leads, probe the brokers,
    which fences unreachable brokers and elects other leaders, and call ``work`` once more. A dry run commits
    nothing, and calls ``work`` with the metadata as the probe would have changed it.

    Raises: errors from ``work``; see ``probe_brokers``.
    """
    with suppress(*LEADER_AWAY):
        return work(metadata.image())
    if dry_run:
        image = metadata.image()
        return work(ApplyProbe(tuple(probe_roots(storage, image))).decide(image).image_after(image))
    return work(probe_brokers(metadata, storage).image)


def probe_roots(storage: Storage, image: ClusterImage, brokers: Iterable[int] | None = None) -> Sequence[Found]:
    """Return the current state of these brokers' roots (None: all), by broker id. Brokers that are not registered,
    or are not in the cluster file, are left out.
    """

    def look(broker_id: int) -> Finding:
        finding = _probe(storage, image.brokers[broker_id])
        if isinstance(finding, Another):
            finding.registration.decide(image)  # the state shows whether this root can be registered
        return finding

    wanted = set(image.brokers if brokers is None else brokers) & image.brokers.keys() & storage.stores.keys()
    deadline_s = cluster_config_of(image).broker_session_timeout_ms / 1000
    found = []
    for outcome in storage.prober.probe(look, sorted(wanted), deadline_s):
        match outcome:
            case Done(broker_id, finding):
                pass
            case Failed(broker_id, error):
                finding = _failed(storage.stores[broker_id], error)
        found.append(Found(broker_id, image.brokers[broker_id].broker_epoch, finding))
    return found


def _probe(storage: Storage, registered: BrokerImage) -> Finding:
    broker_id = registered.broker_id
    store, known = storage.stores[broker_id], entry(storage.file, broker_id)
    try:
        identity = root_identity(store.stat(paths.BROKER_FILE))
        if registered.root and same_root(identity, registered.root):
            return _same(store)
        root = inspect_root(store)
    except FileNotFoundError:
        root = None
    if root is None:
        error = BrokerUnreachableError(f"{store.uri} has no broker.json: is its volume mounted?")
        path = folder_path(store.uri)
        return Unreachable(error, "broker.json" if path is None or os.path.isdir(path) else "folder")
    check_broker_file(root.file, store, storage.file.cluster_id, broker_id)
    if root.file.directory_id == registered.directory_id and same_root(root.identity, registered.root):
        return _same(store)
    if root.file.directory_id != registered.directory_id:
        check_signed(root.file, store, storage.key)
    return Another(
        RegisterBroker(broker_id, root.file.directory_id, known.rack, known.log_dir, root=root.identity)
    )


def _same(store: Store) -> Same | Blocked:
    in_the_way = staging_in_the_way(store.uri)
    return Same() if in_the_way is None else Blocked(in_the_way)


def _failed(store: Store, error: StratalogError) -> Finding:
    if isinstance(error, InvalidCallError | CorruptionError):
        return NotOurs(error)
    if isinstance(error, StoreTimeoutError):
        return Unreachable(StoreTimeoutError(f"{store.uri}: {error}"))
    return Unreachable(error)


def entry(file: ClusterFile, broker_id: int) -> BrokerEntry:
    """Return the broker's entry in the cluster file. Raises: UnknownBrokerError."""
    found = file.broker(broker_id)
    if found is None:
        known = ", ".join(str(broker.broker_id) for broker in file.brokers)
        raise UnknownBrokerError(f"broker {broker_id} is not in {file.path}, which names {known}")
    return found


def _unmatched(file: ClusterFile, image: ClusterImage) -> list[str]:
    named = {broker.broker_id for broker in file.brokers}
    return [
        *(
            f"broker {broker} is registered but not in {file.path}: its state is not changed"
            for broker in sorted(image.brokers.keys() - named)
        ),
        *(
            f"broker {broker} of {file.path} was never registered: format it, or remove it from the file"
            for broker in sorted(named - image.brokers.keys())
        ),
    ]
