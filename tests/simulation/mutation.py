"""An omitted step of the protocol, and the runs of which one must then fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tests.simulation.configuration import (
    Configuration,
    configuration_of,
)
from tests.simulation.running import Result, Run
from tests.simulation.strategies import Script, Seeded


@dataclass(frozen=True, slots=True)
class Mutation:
    """One omitted step that is marked (!)."""

    name: str
    what: str
    """The sentence of the protocol."""
    apply: Callable[[], AbstractContextManager[object]]
    theme: str | None = None
    """The theme of its runs; None selects all themes."""
    directed: Configuration | None = None
    """Runs of this configuration only, with schedules by seed."""
    script: Sequence[tuple[str, str]] = ()
    """A hand-written schedule of the directed configuration, for a window so small that seeds rarely hit it."""
    shaped: Callable[[Configuration], Configuration] = lambda configuration: configuration
    """Changes the configuration of each run."""
    voters: int | None = None
    first: int = 1
    """The first seed."""
    seeds: int = 1000
    """The number of seeds, one of which must fail."""

    def configuration(self, seed: int) -> Configuration:
        """The configuration of a seed, as this mutation needs it."""
        if self.directed is not None:
            return self.shaped(replace(self.directed, seed=seed))
        configuration = replace(configuration_of(seed, self.theme, self.voters), ahead_ms=())
        return self.shaped(configuration)

    def run(self, seed: int) -> Result:
        """The run of a seed; patch the product before."""
        configuration = self.configuration(seed)
        return Run(configuration).run(Script(*self.script) if self.script else Seeded(configuration))
