"""The greatest metadata log on some roots, whoever's voters they are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress

from engine.quorum.checkpoints import Loading
from engine.quorum.contents import Contents, Note
from engine.quorum.state import LogState
from engine.quorum.voter import Voter, VoterLook
from partitions.errors import InvalidCallError, LogGapError, NoMajorityError, SourceChangedError, StratalogError
from partitions.root import check_broker_file, read_broker_file
from partitions.store.protocol import Store

_ATTEMPTS = 5


class Search:
    """Looks at roots as they are now, and at the metadata that they hold. What it finds is to be confirmed by a
    majority of the voters that it names."""

    def __init__(self, cluster_id: str, cached: LogState, note: Note, loading: Loading = nullcontext) -> None:
        """``cached``: a log that was read before, used where it fits."""
        self._cluster_id = cluster_id
        self._cached = cached
        self._contents = Contents(cluster_id, note, loading)
        self._roots: dict[int, Store] = {}
        self.failures: list[StratalogError] = []

    def at(self, stores: Mapping[int, Store]) -> LogState:
        """The greatest log on these brokers and those before.

        Raises: InvalidCallError kinds for roots of somebody else; CorruptionError kinds; RetriableError.
        """
        self._roots.update(stores)
        for _ in range(_ATTEMPTS):
            with suppress(SourceChangedError):  # deleted since it was listed: look again
                looks = self._looks()
                try:
                    return self._contents.greatest(looks, LogState(), self._cached)
                except LogGapError as error:
                    if self.failures:  # somebody else may have what is missing
                        raise NoMajorityError(
                            f"{error}; {'; '.join(dict.fromkeys(map(str, self.failures)))}"
                        ) from error
                    raise
        raise SourceChangedError(
            f"the metadata of cluster {self._cluster_id!r} changes faster than it can be read"
        )

    def _looks(self) -> list[VoterLook]:
        looks: list[VoterLook] = []
        self.failures.clear()
        for broker_id, store in self._roots.items():
            try:
                found = read_broker_file(store)
                if found is not None:
                    check_broker_file(found, store, self._cluster_id, broker_id)
                    looks.append(Voter(broker_id, store, found.directory_id).look())
            except InvalidCallError:
                raise
            except StratalogError as error:
                self.failures.append(error)
        return looks
