"""Replaces damaged or missing files with good files: stage and verify, list again, name, delete, list again.

A concurrent sync must never find an offset missing. So good bytes take the damaged file's name in one step. If the
good files have other names, they exist before the damaged file is deleted. Without a good file, the damaged file
is kept. After a crash the replica is as damaged as before, or repaired. Two concurrent heals write the same
verified bytes. A delayed heal writes these bytes again, possibly after the replica has rejoined the ISR.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

from isal import isal_zlib

from stratalog.engine.replicas.registers import local_start_state, parsed_epoch, read_register
from stratalog.engine.replicas.repair import BadEpoch, BadFile, BadLocalStart, Copy, Repair
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError, CorruptSegmentError, SourceChangedError, StratalogError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.producer_changes import applied
from stratalog.partitions.producers import encode
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.segments.check import check_segment
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.store import StagedWriter

_READ_BYTES = 8 * 1024 * 1024


def apply_repair(target: Replica, leader: Replica, repair: Repair, may_touch: Callable[[], None]) -> None:
    """Apply a repair to ``target``. ``may_touch`` raises when the view of the repair has changed; it is called
    after everything has been staged, directly before the first change.

    Raises: StaleMetadataError kinds; SourceChangedError when the source has changed since it was verified;
        CorruptSegmentError when the target does not return the bytes that were written; StorageError kinds.
    """
    if isinstance(repair.damage, BadEpoch) and not repair.damage.needed:
        may_touch()
        target.store.delete([target.path(EpochName(repair.damage.epoch))])
    elif isinstance(repair.damage, BadEpoch):
        _repair_epoch(target, leader, EpochName(repair.damage.epoch), may_touch)
    elif isinstance(repair.damage, BadLocalStart) and not repair.starts_over:
        _repair_local_start(target, leader, repair.state_of, LocalStartName(repair.damage.offset), may_touch)
    elif repair.put or repair.starts_over or isinstance(repair.damage, BadFile):
        _join(target, leader, may_touch)
        if repair.starts_over:
            _start_over(target, leader, may_touch)
        _repair_files(target, repair, may_touch)


def _join(target: Replica, leader: Replica, may_touch: Callable[[], None]) -> None:
    """Write the register of an epoch before the files of that epoch, as in any replica."""
    if target.broker_id == leader.broker_id:
        return
    joined = leader.list(fresh=True).joined_epoch
    if target.list(fresh=True).joined_epoch < joined:
        _repair_epoch(target, leader, EpochName(joined), may_touch)


def _start_over(target: Replica, leader: Replica, may_touch: Callable[[], None]) -> None:
    """Start the log over, as for a follower whose log ends below its leader's local start (protocol, section 3).
    Writes the register before anything else.
    """
    log = leader.log(fresh=True)
    state = encode(leader.producers_at_local_start(log))
    may_touch()
    target.store.create(target.path(LocalStartName(log.local_start)), state)


def _repair_files(target: Replica, repair: Repair, may_touch: Callable[[], None]) -> None:
    with ExitStack() as cleanup:
        # 1. Stage the verified bytes.
        staged: list[StagedWriter] = []
        for copy in repair.put:
            staged.append(_stage(copy, target))
            cleanup.callback(_drop, staged[-1])
        # 2. Check that the bad file has not changed since it was found: another heal may have replaced it.
        bad = repair.damage.file if isinstance(repair.damage, BadFile) else None
        present = {file.name: file.object.version for file in target.list(fresh=True).data}
        if bad is not None and present.get(bad.name) != bad.object.version:
            bad = None
        may_touch()
        # 3. Name the good files first. If another file already has a good file's name, another heal has created
        #    that file.
        for copy, one in zip(repair.put, staged, strict=True):
            if bad is not None and copy.held.name == bad.name:
                one.replace()
            else:
                one.commit()
        # 4. Delete the bad file if other files replace it.
        if bad is not None and not repair.forgotten and all(copy.held.name != bad.name for copy in repair.put):
            target.store.delete([bad.object.name])
    # 5. List again.
    listed = {file.name: file for file in target.list(fresh=True).data}
    for copy in repair.put:
        _check_there(target, copy, listed.get(copy.held.name))


def _stage(copy: Copy, target: Replica) -> StagedWriter:
    source = copy.held.file.object
    crc32 = 0
    staged = target.store.stage_writer(target.path(copy.held.name))
    try:
        with copy.store.open(source) as reader:
            while data := reader.read(_READ_BYTES):
                crc32 = isal_zlib.crc32(data, crc32)
                staged.file.write(data)
        if crc32 != copy.content:
            raise SourceChangedError(
                f"{copy.store.uri_of(source.name)} has changed since it was verified; verify again"
            )
    except BaseException:
        _drop(staged)
        raise
    return staged


def _drop(staged: StagedWriter) -> None:
    with suppress(StratalogError):
        staged.abort()


def _check_there(target: Replica, copy: Copy, listed: DataFile | None) -> None:
    """Check that the target holds the bytes of the copy. Raises: CorruptSegmentError."""
    what = target.store.uri_of(target.path(copy.held.name))
    if listed is None:
        raise SourceChangedError(
            f"{what} was written, but no longer exists: something else deletes files there; try again"
        )
    checked = check_segment(target.store, listed)
    if checked.bad or checked.segment.crc32 != copy.content:
        raise CorruptSegmentError(f"{what} does not read back as it was written: the storage may be failing")


def _repair_local_start(
    target: Replica, other: Replica, state_of: Copy | None, name: LocalStartName, may_touch: Callable[[], None]
) -> None:
    """Restore the producer state of a local start: from the file that ends there, or else from the same register
    of the ``other`` replica.

    Raises: CorruptionError when that register is damaged too; SourceChangedError when it is gone.
    """
    if state_of is not None:
        footer = read_segment(state_of.store, state_of.held.file, remembered=False).footer
        if footer.producers_since is None:
            content = encode(applied({}, footer.producers))
        else:
            with errors_of(other):
                content = encode(other.producers_at(other.log(), name.offset))
    else:
        with errors_of(other):
            content = local_start_state(other, name)
    with suppress(CorruptionError):
        local_start_state(target, name)
        return  # another heal has repaired it
    may_touch()
    _put_register(target, name, content)


def _put_register(target: Replica, name: EpochName | LocalStartName, content: bytes) -> None:
    """Write a register. Raises: CorruptionError, SourceChangedError when it does not read back as written."""
    register = target.store.stage_writer(target.path(name))
    try:
        register.file.write(content)
        register.replace()
    except BaseException:
        _drop(register)
        raise
    if read_register(target, name) != content:
        raise CorruptionError(f"{target}: {name} does not read back as it was written: the storage may be failing")


def _repair_epoch(target: Replica, leader: Replica, name: EpochName, may_touch: Callable[[], None]) -> None:
    """Copy the leader's register of that epoch. If the leader never joined that epoch, join the leader's greatest
    epoch if that epoch is later, and delete the damaged register.

    Raises: CorruptionError when the leader has neither that register nor a later epoch.
    """
    wanted, content = _leaders_register(leader, name)
    if _held(target, wanted) != content:
        may_touch()
        _put_register(target, wanted, content)
    if wanted != name:
        may_touch()
        target.store.delete([target.path(name)])


def _held(target: Replica, name: EpochName) -> bytes | None:
    """The content of a register; None if it is missing, or too large to be a register."""
    with suppress(FileNotFoundError, CorruptionError):
        return read_bounded(target.store, target.path(name), REGISTER_BYTES)
    return None


def _leaders_register(leader: Replica, name: EpochName) -> tuple[EpochName, bytes]:
    joined = EpochName(leader.list(fresh=True).joined_epoch)
    for wanted in (name, joined):
        if wanted.epoch >= name.epoch:
            with suppress(FileNotFoundError):
                content = read_bounded(leader.store, leader.path(wanted), REGISTER_BYTES)
                parsed_epoch(leader, wanted, content)
                return wanted, content
    raise CorruptionError(
        f"{leader} has joined only epoch {joined.epoch}, and has no register of epoch {name.epoch}: there is no "
        "copy to repair the register from"
    )
