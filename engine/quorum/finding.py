"""The greatest metadata log on some roots, before it is known which of them are voters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from types import MappingProxyType

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.checkpoints import Loading
from stratalog.engine.quorum.contents import Contents, Note
from stratalog.engine.quorum.damage import DAMAGED, FAR_AHEAD, far_ahead, without_damaged
from stratalog.engine.quorum.state import LogState, is_majority
from stratalog.engine.quorum.voter import Voter, VoterLook
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import LogGapError, NoMajorityError, SourceChangedError, StratalogError
from stratalog.partitions.root import BrokerFile, check_broker_file, read_broker_file
from stratalog.partitions.store.protocol import Store

_ATTEMPTS = 5


class Search:
    """Lists roots, and reads the metadata on them. A majority of the voters in the result must confirm it."""

    def __init__(
        self,
        cluster_id: str,
        cached: LogState,
        note: Note,
        loading: Loading = nullcontext,
        key: ClusterKey | None = None,
        whose: Mapping[int, BrokerFile] = MappingProxyType({}),
    ) -> None:
        """``cached``: an earlier log, used if it fits. ``key`` verifies files. ``whose``: the known owners of
        these brokers' roots; a listing notices a change of the owner.
        """
        self._cluster_id = cluster_id
        self._cached = cached
        self._key = key
        self._note = note
        self._contents = Contents(cluster_id, note, loading)
        self._whose = dict(whose)
        self._roots: dict[int, Store] = {}
        self.failures: list[StratalogError] = []
        """Roots that were unreachable, damaged or foreign at the last listing."""

    def at(self, stores: Mapping[int, Store], *, majority: bool = False) -> LogState:
        """Return the greatest log on these brokers and on the brokers listed earlier. With ``majority``, list only
        a majority of the brokers if they are the voters and intact, because a majority has every committed batch.

        Raises: CorruptionError kinds; InconsistentClusterIdError; RetriableError.
        """
        self._roots.update(stores)
        for _ in range(_ATTEMPTS):
            with suppress(SourceChangedError):  # the file has been deleted since it was listed: list again
                found = self._at_majority() if majority else None
                if found is not None:
                    return found
                looks = self._looks()
                try:
                    return self._greatest({look.voter.id: look for look in looks})
                except LogGapError as error:
                    if self.failures:  # another root may have the missing file
                        raise NoMajorityError(
                            f"{error}; {'; '.join(dict.fromkeys(map(str, self.failures)))}"
                        ) from error
                    raise
        raise SourceChangedError(
            f"the metadata of cluster {self._cluster_id!r} changes faster than it can be read"
        )

    def _at_majority(self) -> LogState | None:
        """The greatest log of the first majority of the roots; None if more roots must be listed."""
        looks = self._looks(len(self._roots) // 2 + 1)
        epochs = sorted(look.epoch for look in looks)
        if self.failures or not looks or epochs[-1] > epochs[0] + FAR_AHEAD:
            return None
        with suppress(*DAMAGED):
            state = self._contents.greatest(looks, LogState(), self._cached)
            if is_majority((look.voter.id for look in looks), state.image.voters):
                return state
        return None

    def _greatest(self, looks: dict[VoterId, VoterLook]) -> LogState:
        """The greatest log of these voters; if some of them are damaged, the greatest log of the others, provided
        that the others are a majority of the voters that this log names.

        Raises: CorruptionError kinds; InconsistentClusterIdError; SourceChangedError.
        """
        holding = [voter for voter, look in looks.items() if look.epoch > 0]
        for voter, stray in far_ahead(looks, holding, 0).items():
            self._leave_out(looks.pop(voter), stray)

        def greatest(some: Sequence[VoterLook]) -> LogState:
            return self._contents.greatest(some, LogState(), self._cached)

        try:
            return greatest(tuple(looks.values()))
        except DAMAGED as error:
            damaged, state = without_damaged(
                looks, greatest, lambda others, state: is_majority(others, state.image.voters), error
            )
            for voter in damaged:
                self._leave_out(looks[voter], error)
            return state

    def _leave_out(self, look: VoterLook, error: StratalogError) -> None:
        self._note(f"{look.voter} is left out: {error}")
        self.failures.append(error)

    def _looks(self, most: int | None = None) -> list[VoterLook]:
        """Listings of the first ``most`` roots, or of all of them."""
        looks: list[VoterLook] = []
        self.failures.clear()
        for broker_id, store in list(self._roots.items())[:most]:
            try:
                found = self._whose.pop(broker_id, None) or read_broker_file(store)
                if found is not None:
                    check_broker_file(found, store, self._cluster_id, broker_id)
                    looks.append(Voter(broker_id, store, found.directory_id, self._key).look())
            except StratalogError as error:
                self.failures.append(error)
        return looks
