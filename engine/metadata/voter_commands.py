"""Commands that add or remove one metadata voter at a time. Pure.

``stratalog.engine.quorum.electorate`` explains why changing one voter at a time is safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import VoterId, VotersRecord
from stratalog.partitions.errors import InvalidCallError, StaleBrokerError, UnknownBrokerError

Voters = tuple[VoterId, ...]


@dataclass(frozen=True, slots=True)
class AddVoter:
    """Make an incarnation of a broker's root a voter. Changes nothing if it already is a voter. Answer: the
    voters.
    """

    voter: VoterId

    def decide(self, image: ClusterImage) -> Decision[Voters]:
        """Raises: UnknownBrokerError; StaleBrokerError when the broker is registered with another root;
        InvalidCallError when another root of the broker is a voter.
        """
        if self.voter in image.voters:
            return Decision((), image.voters)
        self.check_registered(image)
        broker_id = self.voter.broker_id
        if any(voter.broker_id == broker_id for voter in image.voters):
            raise InvalidCallError(
                f"broker {broker_id} is a metadata voter with different storage: replace the voter, or remove it "
                "first"
            )
        replaced = tuple(other for other in image.replaced if other != broker_id)
        return _become(image, (*image.voters, self.voter), replaced)

    def check_registered(self, image: ClusterImage) -> None:
        """Check that this root of the broker is registered. Raises: UnknownBrokerError, StaleBrokerError for
        another root.
        """
        broker_id = self.voter.broker_id
        if image.broker(broker_id).directory_id != self.voter.directory_id:
            raise StaleBrokerError(
                f"broker {broker_id} is registered with directory {image.broker(broker_id).directory_id}, "
                f"not with {self.voter.directory_id}: bootstrap or register the broker first"
            )


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    """Remove a broker from the voters; its storage is unchanged. Changes nothing for a broker that is not a voter.
    ``returning``: the broker will be added again with different storage. Answer: the voters.
    """

    broker_id: int
    returning: bool = False

    def decide(self, image: ClusterImage) -> Decision[Voters]:
        """Raises: UnknownBrokerError when the broker is neither a voter nor registered; InvalidCallError for the
        last voter.
        """
        kept = tuple(voter for voter in image.voters if voter.broker_id != self.broker_id)
        others = tuple(other for other in image.replaced if other != self.broker_id)
        replaced = (*others, self.broker_id) if self.returning else others
        if kept == image.voters and replaced == image.replaced:
            if self.broker_id not in image.brokers:
                raise UnknownBrokerError(f"broker {self.broker_id} is neither a metadata voter nor registered")
            return Decision((), image.voters)
        if not kept:
            raise InvalidCallError(
                f"broker {self.broker_id} is the only metadata voter, and holds the only copy "
                "of the metadata: add another voter first"
            )
        return _become(image, kept, replaced)


def _become(image: ClusterImage, voters: Voters, replaced: tuple[int, ...]) -> Decision[Voters]:
    record = VotersRecord(cluster_id=image.cluster_id, voters=voters, replaced=replaced)
    return Decision((record,), voters)
