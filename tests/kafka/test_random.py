"""Random scripts, run step by step with both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Log, Transaction

pytestmark = pytest.mark.kafka

STEPS = 60
PARTITIONS = 2
IDS = ("x", "y")
ALL = range(PARTITIONS)

Step = tuple[str, Mapping[str, object]]
"""An operation and its arguments."""


class Player:
    """Runs the steps of a script with one log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._open: dict[str, Transaction] = {}
        log.create_topic("t", PARTITIONS)

    def play(self, step: Step) -> object:
        deed, given = step
        method: Callable[..., object] = getattr(self, deed)
        return method(**given)

    def append(self, partition: int, value: str, time_ms: int) -> object:
        return self._log.append("t", [value], partition, [time_ms])

    def read(self, partition: int, start: int, committed: bool) -> object:
        return self._log.read("t", start, partition, committed=committed)

    def list_offsets(self, at: At | int, committed: bool) -> object:
        return self._log.list_offsets("t", at, committed=committed)

    def delete_records(self, partition: int, before: int) -> object:
        return self._log.delete_records("t", {partition: before})

    def commit_offsets(self, offsets: Mapping[int, int]) -> object:
        return self._log.commit("g", "t", offsets)

    def committed(self, require_stable: bool) -> object:
        return self._log.committed("g", "t", ALL, require_stable=require_stable)

    def begin(self, name: str) -> object:
        self._open[name] = self._log.transaction(name)
        return None

    def append_in(self, name: str, partition: int, value: str) -> object:
        return self._open[name].append("t", [value], partition)

    def commit_offsets_in(self, name: str, offsets: Mapping[int, int]) -> object:
        return self._open[name].commit_offsets("g", offsets, "t")

    def end(self, name: str, commit: bool) -> object:
        transaction = self._open.pop(name)
        return transaction.commit() if commit else transaction.abort()


class Author:
    """Writes a script, and knows the log ends. Every record is a separate batch."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ends = [0] * PARTITIONS
        self._open: dict[str, set[int]] = {}
        self._values = 0

    def script(self) -> list[Step]:
        """Yield the steps; they end with the ends of all transactions, and a look at everything."""
        steps = [self._next() for _ in range(STEPS)]
        steps += [self._end_of(name) for name in sorted(self._open)]
        steps += [("list_offsets", {"at": at, "committed": True}) for at in (At.EARLIEST, At.LATEST)]
        return [*steps, ("committed", {"require_stable": True})]

    def _next(self) -> Step:
        deeds = {
            self._append: 4,
            self._append_in: 6,
            self._read: 4,
            self._list_offsets: 4,
            self._begin: 2,
            self._end: 2,
            self._delete_records: 1,
            self._commit_offsets: 2,
            self._commit_offsets_in: 2,
            self._committed: 2,
        }
        while True:
            (deed,) = self._random.choices(list(deeds), list(deeds.values()))
            step = deed()
            if step is not None:
                return step

    def _append(self) -> Step:
        partition = self._random.randrange(PARTITIONS)
        time_ms = LATER_MS + self._random.randrange(20)
        return "append", {"partition": partition, "value": self._value(partition), "time_ms": time_ms}

    def _append_in(self) -> Step | None:
        name = self._somebody(self._open)
        if name is None:
            return None
        partition = self._random.randrange(PARTITIONS)
        self._open[name].add(partition)
        return "append_in", {"name": name, "partition": partition, "value": self._value(partition)}

    def _read(self) -> Step:
        partition = self._random.randrange(PARTITIONS)
        start = self._random.randint(0, self._ends[partition] + 1)
        return "read", {"partition": partition, "start": start, "committed": self._coin()}

    def _list_offsets(self) -> Step:
        at = self._random.choice([At.EARLIEST, At.LATEST, LATER_MS + self._random.randrange(21)])
        return "list_offsets", {"at": at, "committed": self._coin()}

    def _delete_records(self) -> Step:
        partition = self._random.randrange(PARTITIONS)
        before = self._random.randint(-1, self._ends[partition] + 1)
        return "delete_records", {"partition": partition, "before": before}

    def _commit_offsets(self) -> Step:
        return "commit_offsets", {"offsets": self._offsets()}

    def _committed(self) -> Step:
        return "committed", {"require_stable": self._coin()}

    def _begin(self) -> Step | None:
        name = self._somebody(set(IDS).difference(self._open))
        if name is None:
            return None
        self._open[name] = set()
        return "begin", {"name": name}

    def _commit_offsets_in(self) -> Step | None:
        name = self._somebody(self._open)
        return None if name is None else ("commit_offsets_in", {"name": name, "offsets": self._offsets()})

    def _end(self) -> Step | None:
        name = self._somebody(self._open)
        return None if name is None else self._end_of(name)

    def _end_of(self, name: str) -> Step:
        for partition in self._open.pop(name):
            self._ends[partition] += 1
        return "end", {"name": name, "commit": self._coin()}

    def _value(self, partition: int) -> str:
        self._values += 1
        self._ends[partition] += 1
        return f"v{self._values}"

    def _offsets(self) -> dict[int, int]:
        chosen = self._random.sample(ALL, self._random.randint(1, PARTITIONS))
        return {partition: self._random.randint(0, self._ends[partition]) for partition in chosen}

    def _somebody(self, names: Iterable[str]) -> str | None:
        found = sorted(names)
        return self._random.choice(found) if found else None

    def _coin(self) -> bool:
        return self._random.random() < 0.5


@pytest.mark.parametrize("seed", range(8))
def test_a_random_script_has_the_same_answers_at_every_step(both: Both, seed: int) -> None:
    ours, kafka = Player(both.ours), Player(both.kafka)
    messages = []
    for number, step in enumerate(Author(seed).script()):
        answer = ours.play(step)
        messages.append(f"{number}: {step[0]} {dict(step[1])} -> {answer}")
        assert answer == kafka.play(step), "\n".join(messages)
