"""Formats and registers the roots of brokers.

A root is only formatted if the caller names its broker, because an empty folder may be an unmounted volume. When a
root that lost its disk is formatted, the broker gets a new incarnation. The registration removes the old
incarnation from every ISR (KIP-903), and ``bootstrap`` restores the broker's replicas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratalog.engine.brokers.probe import entry
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.execution import Execution, measured
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.commands import RegisterBroker
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.bootstrap import has_log
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    InvalidCallError,
    LogDirError,
    StaleBrokerError,
    StratalogError,
)
from stratalog.partitions.identity import NewId, same_root
from stratalog.partitions.root import (
    BrokerFile,
    Root,
    check_broker_file,
    check_signed,
    format_root,
    inspect_root,
    read_broker_file,
)
from stratalog.partitions.store import Store
from stratalog.partitions.store.local_space import folder_path

_PUTS_OF_FORMAT = 3
"""The number of requests, at the price of a PUT, that check a root and create its broker.json."""
_GETS_OF_REGISTRATION = 2


def format_roots(
    file: ClusterFile,
    stores: Mapping[int, Store],
    brokers: Sequence[int],
    new_id: NewId,
    key: ClusterKey | None = None,
) -> dict[int, BrokerFile]:
    """Format the roots of these brokers that are not yet formatted, and sign their broker.json with ``key``.

    Raises: LogDirError, UnsupportedStoreError, InconsistentClusterIdError, UnknownBrokerError.
    """
    for broker in brokers:
        entry(file, broker)
    return {broker: format_root(stores[broker], file.cluster_id, broker, new_id, key) for broker in brokers}


class RegisteredRow(Row, frozen=True, kw_only=True):
    broker: int
    rack: str | None
    broker_epoch: int
    directory_id: str
    registered: str
    """``now`` or ``before``."""


class FormatRow(Row, frozen=True, kw_only=True):
    """The plan of formatting a root."""

    broker: int
    rack: str | None
    plan: str
    log_dir: str


def register_brokers(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    brokers: Sequence[int] | None = None,
    *,
    trust_copy: bool = False,
) -> Report:
    """Register these brokers unless their roots are already registered, and unfence them, even if they were fenced
    by hand. Without names, register all brokers of the cluster file. Brokers fenced by hand then stay fenced, and
    moved roots are failures, because an operator must name their brokers.

    A root that was moved to another disk, or restored from a copy, is a new incarnation and leaves every ISR,
    unless ``trust_copy`` vouches that the copy has everything that was ever on the original.
    """
    with execution.run("brokers register") as run:
        for broker_id in [b.broker_id for b in storage.file.brokers] if brokers is None else brokers:
            try:
                by_name = brokers is not None
                run.add([_register(metadata, storage, broker_id, by_name=by_name, trust_copy=trust_copy)])
            except StratalogError as error:
                run.fail(f"broker {broker_id}", error)
    return run.report()


def add_brokers(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    brokers: Sequence[int],
    *,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> Report:
    """Format these brokers' roots unless they are formatted, and register them. No data is copied. With
    ``if_not_exists``, brokers that are already in the cluster, and have formatted roots, stay unchanged.

    Raises: InvalidCallError for such a broker without ``if_not_exists``; see ``format_roots``.
    """
    image = metadata.image()
    for broker in brokers:
        entry(storage.file, broker)
    members = [b for b in brokers if b in image.brokers and read_broker_file(storage.stores[b]) is not None]
    if members and not if_not_exists:
        raise InvalidCallError(
            f"broker {members[0]} is already in the cluster: if_not_exists skips it, and unfence brings back a "
            "fenced broker"
        )
    brokers = [broker for broker in brokers if broker not in members]
    if dry_run:
        return plan_format(storage.file, storage.stores, brokers)
    with measured(execution.clock, storage.counts) as measure:
        format_roots(storage.file, storage.stores, brokers, storage.new_id, storage.key)
        registered = register_brokers(metadata, storage, execution, brokers)
    notes = [*registered.notes, *(f"broker {broker} is already in the cluster" for broker in members)]
    seconds, counts = measure.seconds, measure.counts
    return replace(registered, operation="brokers add", seconds=seconds, counts=counts, notes=notes)


def plan_registration(
    sends: Planned, image: ClusterImage, brokers: Sequence[int], *, trust_copy: bool
) -> tuple[ClusterImage, set[int], list[Failure]]:
    """Return three things: the metadata as if these brokers' roots were formatted and registered, the brokers
    whose roots are not formatted yet, and failures to read roots. Adds the requests to the estimate.
    """
    failures: list[Failure] = []
    new: set[int] = set()
    storage = sends.storage
    for broker_id in brokers:
        known, store = entry(storage.file, broker_id), storage.stores[broker_id]
        try:
            found = inspect_root(store)
            if found is not None:
                check_broker_file(found.file, store, storage.file.cluster_id, broker_id)
            elif trust_copy:
                raise _not_there(broker_id, store)
            if found is None:
                command: RegisterBroker | None = RegisterBroker(
                    broker_id, storage.new_id(), known.rack, known.log_dir
                )
            else:
                command = _to_register(storage, image, broker_id, found, by_name=True, trust_copy=trust_copy)
            after = image if command is None else command.decide(image).image_after(image)
        except StratalogError as error:
            failures.append(Failure.of(f"broker {broker_id}", error))
            continue
        if found is None:
            new.add(broker_id)
        sends.send(store, puts=_PUTS_OF_FORMAT if found is None else 0, gets=_GETS_OF_REGISTRATION)
        sends.send_look(image, times=2)
        if command is not None:
            sends.send_commit(image)
            image = after
    return image, new, failures


def check_folder(root: str) -> None:
    """Check that the root at this address exists if it is a folder, without writing. Raises: LogDirError."""
    path = folder_path(root)
    if path is not None and not os.path.isdir(path):
        raise LogDirError(f"{root} is not a folder: create it, or mount its volume")


def plan_format(file: ClusterFile, stores: Mapping[int, Store], brokers: Sequence[int] | None = None) -> Report:
    """Return the report of a dry run that formats these roots (None: all).

    Raises: UnknownBrokerError; see ``check_log_not_lost`` for all roots.
    """
    run = OperationRun("format" if brokers is None else "brokers add", dry_run=True)
    for broker_id in [b.broker_id for b in file.brokers] if brokers is None else brokers:
        known, store = entry(file, broker_id), stores[broker_id]
        try:
            store.list("")
            found = read_broker_file(store)
            if found is not None:
                check_broker_file(found, store, file.cluster_id, broker_id)
            plan = "format" if found is None else "is formatted"
            run.add([FormatRow(broker=broker_id, rack=known.rack, plan=plan, log_dir=store.uri)])
        except StratalogError as error:
            run.fail(f"broker {broker_id}", error)
    if brokers is None and file.remote is not None:
        try:
            check_folder(file.remote)
        except LogDirError as error:
            run.fail("remote tier", error)
    if brokers is None and not run.failures:
        check_log_not_lost(file, stores)
    return run.report()


def check_log_not_lost(file: ClusterFile, stores: Mapping[int, Store]) -> bool:
    """Refuse to format a cluster again if its metadata log is lost or not mounted. Returns whether it has a log.

    Raises: InvalidCallError; StorageError kinds.
    """
    formatted = {broker: read_broker_file(stores[broker]) for broker in file.voters}
    voters = [Voter(broker, stores[broker], root.directory_id) for broker, root in formatted.items() if root]
    return has_log(file.cluster_id, voters, {b: store for b, store in stores.items() if b not in file.voters})


def _register(
    metadata: MetadataClient, storage: Storage, broker_id: int, *, by_name: bool, trust_copy: bool
) -> RegisteredRow:
    entry(storage.file, broker_id)
    store = storage.stores[broker_id]
    found = inspect_root(store)
    if found is None:
        raise _not_there(broker_id, store)
    check_broker_file(found.file, store, storage.file.cluster_id, broker_id)
    command = _to_register(storage, metadata.image(), broker_id, found, by_name=by_name, trust_copy=trust_copy)
    if command is not None:
        metadata.submit(command)
    broker = metadata.image().broker(broker_id)
    return RegisteredRow(
        broker=broker_id,
        rack=broker.rack,
        broker_epoch=broker.broker_epoch,
        directory_id=broker.directory_id,
        registered="before" if command is None else "now",
    )


def _to_register(
    storage: Storage,
    image: ClusterImage,
    broker_id: int,
    found: Root,
    *,
    by_name: bool,
    trust_copy: bool,
) -> RegisterBroker | None:
    """Return the command that registers a broker's root; None if nothing changes.

    Raises: UnsignedError; InvalidCallError for a trusted copy that is not a copy; StaleBrokerError for a moved
        root that the caller did not name.
    """
    known, store = entry(storage.file, broker_id), storage.stores[broker_id]
    present = image.brokers.get(broker_id)
    if present is None or present.directory_id != found.file.directory_id:
        check_signed(found.file, store, storage.key)
    if trust_copy and (present is None or present.directory_id != found.file.directory_id):
        raise InvalidCallError(
            f"broker {broker_id}: {store.uri} has directory id {found.file.directory_id}, but "
            f"{'none' if present is None else present.directory_id} is registered. The root was formatted again, "
            "so it is not a copy. Run this again without --trust-copy"
        )
    root = found.identity
    held = present is not None and present.fenced_by_hand and not by_name
    if present is not None and present.directory_id == found.file.directory_id:
        if same_root(root, present.root):
            root = present.root or root
        elif not by_name and not held:
            raise StaleBrokerError(
                f"broker {broker_id}: {store.uri} was moved, or restored from a copy: bootstrap it by name, with "
                "--trust-copy if the copy has all acknowledged records"
            )
    wanted = (found.file.directory_id, known.rack, known.log_dir, root)
    changed = not held and (
        trust_copy
        or present is None
        or present.fenced
        or (present.directory_id, present.rack, present.log_dir, present.root) != wanted
    )
    return RegisterBroker(broker_id, *wanted, trusted=trust_copy) if changed else None


def _not_there(broker_id: int, store: Store) -> BrokerUnreachableError:
    return BrokerUnreachableError(
        f"broker {broker_id}: {store.uri} has no broker.json: mount the volume, or format it"
    )
