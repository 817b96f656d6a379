"""The engine and Kafka, side by side."""

from __future__ import annotations

from collections.abc import Callable

from tests.kafka.log import Log, Trace

Script = Callable[[Log], Trace]


class Both:
    """One empty log of each."""

    def __init__(self, ours: Log, kafka: Log) -> None:
        self.ours, self.kafka = ours, kafka

    def same(self, script: Script) -> Trace:
        """The trace of a script, which must be the same for both."""
        ours, kafka = self.each(script)
        assert ours == kafka, f"ours:  {ours}\nKafka: {kafka}"
        return ours

    def each(self, script: Script) -> tuple[Trace, Trace]:
        """The traces of a script: ours, and Kafka's."""
        return script(self.ours), script(self.kafka)
