"""Variants of steps of the quorum, each without one property; ``mutations`` says which sentence requires it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import MetadataRecord, VoterId
from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter
from stratalog.engine.quorum import upkeep
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.electorate import Electorate
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.state import CommittedLog, LogState
from stratalog.engine.quorum.upkeep import VoterUpkeep
from stratalog.engine.quorum.voter import Position, Voter, VoterListing, VoterLook, position_of
from stratalog.partitions.errors import NotControllerError, OutcomeUnknownError, RetriableError, StratalogError
from stratalog.partitions.paths import CheckpointName, ChunkName, ClaimName, DataName
from tests.simulation.variants import all_of, patched

__all__ = ["all_of", "everywhere", "patched"]


def everywhere(original: Any, variant: Any) -> Callable[[], AbstractContextManager[object]]:
    """Patch the variant under every name that a module of the quorum has for the original."""

    @contextmanager
    def applied() -> Iterator[None]:
        places = [
            (module, name)
            for module_name, module in list(sys.modules.items())
            if module_name.startswith("stratalog.engine.quorum")
            for name, value in vars(module).items()
            if value is original
        ]
        assert places, original
        patches = [patch.object(module, name, variant) for module, name in places]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    return applied


def always(*_: object, **__: object) -> bool:
    return True


def frozen_by_anybody(name: CheckpointName, looks: Sequence[VoterLook], electorate: Sequence[VoterId]) -> bool:
    return any(name in look.checkpoints for look in looks)


def never(*_: object, **__: object) -> bool:
    return False


def the_last(items: Iterable[bool]) -> bool:
    """A replacement for ``all``."""
    return [*items][-1]


def nothing(*_: object, **__: object) -> None:
    """Does nothing."""


# ----------------------------------------------------------------------------------- claim

_survey = MetadataLog._survey


def survey_and_remember(log: MetadataLog, **how: bool) -> Any:
    """Surveys like the product, but keeps the looks for ``looks_from_before``."""
    survey = _survey(log, **how)
    _before.update({(id(look.voter.store), look.voter.directory_id): look for look in survey.looks})
    return survey


def looks_from_before(voters: Iterable[Voter], epoch: int) -> list[VoterLook]:
    """Uses, after the claim, the looks from before it."""
    chosen = [(id(voter.store), voter.directory_id) for voter in voters]
    return [_before[voter] for voter in chosen if voter in _before]


_before: dict[tuple[int, str], VoterLook] = {}


def first_of(looks: Sequence[VoterLook]) -> DataName | CheckpointName | None:
    """Uses the log end of the first voter of a majority, instead of the greatest log end."""
    return next(iter(looks)).last


def claim_of_anybody(voter: Voter, epoch: int, claimant: str) -> bool:
    """Accepts a claim of any driver."""
    voter.store.create(voter.path(ClaimName(epoch)), claimant.encode())
    return True


def electorate_of_old(electorate: Electorate, state: LogState) -> tuple[Voter, ...]:
    """Returns the voters that the driver knows, whatever the log says."""
    return electorate.voters


# ---------------------------------------------------------------------------------- commit

_look, _create, _commit = Voter.look, Voter.create, MetadataLog.commit
_created: dict[tuple[int, str], list[DataName]] = {}
_looked: dict[tuple[int, str], VoterLook] = {}


def look_of_memory(voter: Voter) -> VoterLook:
    """Assumes the result of a create without looking at the voter."""
    key = id(voter.store), voter.directory_id
    created = _created.pop(key, [])
    if not created or key not in _looked:
        _looked[key] = look = _look(voter)
        return look
    before = _looked[key]
    files = frozenset({*before.files, *created})
    return replace(before, files=files, last=max((*files, *before.checkpoints), key=position_of))


def create_and_believe(voter: Voter, name: DataName, data: bytes) -> None:
    with suppress(OutcomeUnknownError):
        _create(voter, name, data)
    _created.setdefault((id(voter.store), voter.directory_id), []).append(name)


def commit_and_keep_the_claim(log: MetadataLog, records: Sequence[MetadataRecord]) -> ClusterImage:
    """Keeps the claim even if the commit fails."""
    claim = log._claim
    try:
        return _commit(log, records)
    except StratalogError:
        log._claim = claim
        raise


def commit_and_repeat_what_was_tried(log: MetadataLog, records: Sequence[MetadataRecord]) -> ClusterImage:
    """The next batch first repeats, under a name, the batch that this driver tried to commit at its offset."""
    tried: dict[int, tuple[bytes, ...]] = log.__dict__.setdefault("tried", {})
    tried.setdefault(log.next_name.base_offset, BatchRecords.of(log.next_name, records, 0).values)
    image = _commit(log, records)
    claim = log._claim
    assert claim is not None
    latest = tuple(
        replace(one, values=wanted) if len(wanted) == len(one.values) else one
        for one in claim.state.latest
        for wanted in (tried.get(one.name.base_offset, one.values),)
    )
    log._claim = replace(claim, state=replace(claim.state, latest=latest))
    return image


def shown_whatever_is_claimed(state: LogState, look: VoterLook) -> bool:
    later = look.last is not None and position_of(look.last) > state.position
    return not later and state.held_by(look)


def held_by_its_end(state: LogState, look: VoterLook) -> bool:
    """Checks only whether the last file exists."""
    return look.last is not None and position_of(look.last)[:2] >= (state.epoch, 0)


def by_offset(name: DataName | CheckpointName) -> Position:
    """Chooses the epoch after the offset."""
    match name:
        case DataName(base_offset=offset, epoch=epoch):
            return offset, epoch, True
        case CheckpointName(end_offset=offset, epoch=epoch):
            return offset, epoch, False


def snapshot_after_batch(name: DataName | CheckpointName) -> Position:
    """Takes a snapshot after the batch that continues from it."""
    epoch, offset, is_batch = position_of(name)
    return epoch, offset, not is_batch


def last_batch(files: Sequence[DataName], checkpoints: object) -> DataName | None:
    """Ignores snapshots."""
    return max(files, key=position_of, default=None)


# ---------------------------------------------------------------------------------- client


def change_without_commit(client: MetadataClient, command: AddVoter | RemoveVoter) -> Any:
    """Changes the voters on top of any log that the claim found."""
    log = client._log
    for _ in range(4):
        decision = command.decide(log.read())
        if not decision.records:
            return decision.answer
        if isinstance(command, AddVoter):
            log.admit(command.voter)
        with suppress(NotControllerError, OutcomeUnknownError):
            decision = command.decide(log.claim())
            if decision.records:
                log.commit(decision.records)
            return decision.answer
    raise RetriableError("others are faster")


# ---------------------------------------------------------------------------------- upkeep


def settle_what_is_seen(log: MetadataLog) -> CommittedLog:
    """Returns the greatest log of a majority, committed or not."""
    survey = _survey(log, everybody=True)
    return CommittedLog(survey.state, tuple(_listings_of(log)))


def _listings_of(log: MetadataLog) -> Iterator[VoterListing]:
    for voter in log.voters:
        with suppress(StratalogError):
            yield voter.list()


def copy_as_it_is(cluster_id: str, source: VoterListing, name: CheckpointName, target: Voter) -> None:
    """Copies without verifying the content."""
    staged = target.store.stage_copy(source.voter.store, source.checkpoints[name], target.path(name))
    staged.commit()


_doomed_on = upkeep.doomed_on
Doomed = list[DataName | CheckpointName | ChunkName | ClaimName]


def doomed_with_the_latest(listing: VoterListing, log_start: int) -> Doomed:
    """Deletes the latest snapshot, too."""
    also = [name for name in listing.checkpoints if name.end_offset == log_start]
    return [*_doomed_on(listing, log_start), *also]


def doomed_with_all_claims(listing: VoterListing, log_start: int) -> Doomed:
    """Deletes the greatest claim, too."""
    found = _doomed_on(listing, log_start)
    return [*found, *(ClaimName(epoch) for epoch in listing.claims[-1:])] if log_start else found


def doomed_wherever(listing: VoterListing, log_start: int) -> Doomed:
    """Deletes even if the voter has no snapshot up to there."""
    return [
        *(name for name in listing.files if name.base_offset < log_start),
        *(name for name in listing.checkpoints if name.end_offset < log_start),
    ]


def latest_of_all(live: Sequence[VoterUpkeep], now_ms: int, lag_ms: int) -> int:
    """The latest snapshot that every live voter holds, at any age."""
    shared = set.intersection(*(set(one.whole) for one in live)) if live else set()
    return max((name.end_offset for name in shared), default=0)


def latest_of_any(live: Sequence[VoterUpkeep], now_ms: int, lag_ms: int) -> int:
    """The latest snapshot that any live voter holds."""
    return max((name.end_offset for one in live for name in one.whole), default=0)
