"""Several commands in one commit."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.metadata.commands import Command, Decision
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class Together:
    """All of these or none, each decided on what those before it leave. Answer: the image that they make."""

    commands: tuple[Command[object], ...]

    def decide(self, image: ClusterImage) -> Decision[ClusterImage]:
        """Raises: what the commands raise."""
        records: list[MetadataRecord] = []
        for command in self.commands:
            decided = command.decide(image).records
            if decided:
                image = apply(image, image.next_offset, decided)
                records += decided
        return Decision(tuple(records), image)
