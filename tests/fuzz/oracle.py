"""The allowed results of an operation over mutated storage, and the findings.

right           the operation returned, and everything in its result was once appended or committed
own error       the operation raised a stratalog error, which stops no more than it may
foreign         the operation raised another exception, or a failure in its report is not a stratalog error
wrong data      it returned records that were never appended there, or silently fewer than were committed
wrong metadata  it returned topics or configs that differ from the committed ones
stopped         a part failed that does not use the mutated root
lost            no file holds some offsets any more
outside         something outside the roots has changed, or a file was changed in place
unescaped       a table contains control characters
waits           the operation waited longer, by its own clock, than it may
death, hang, memory    found by the watcher of the process
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratalog import Cluster
from stratalog.engine.driver.folding import folded, zeros
from stratalog.engine.driver.report import Report
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.isolation import Isolation
from tests.fuzz.changes import Change
from tests.fuzz.original import Key, Original, Row

RIGHT, OWN = "right", "own error"
APPENDED = b"appended while it is fuzzed"


_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal or a log interprets; lines of a table end with a line feed."""


class WrongError(Exception):
    """A wrong result of an operation. ``verdict`` is one of those above."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


@dataclass(slots=True)
class Finding:
    """Something that must not happen."""

    verdict: str
    operation: str
    error: str
    trace: str = ""

    @property
    def signature(self) -> str:
        """A text that is the same for findings that probably have one cause."""
        last = [line.strip() for line in self.trace.strip().splitlines()[-3:-1]]
        return f"{self.verdict} | {self.operation} | {self.error[:60]} | {' '.join(last)[:160]}"


def codes(kind: type[StratalogError] = StratalogError) -> Iterator[str]:
    """The codes of all of stratalog's errors except the base class."""
    for one in kind.__subclasses__():
        yield one.code
        yield from codes(one)


CODES = frozenset(codes())


def finding_of(operation: str, error: BaseException) -> Finding | None:
    """The finding for an error; None if it is one of stratalog's."""
    if isinstance(error, WrongError):
        return Finding(error.verdict, operation, str(error))
    if isinstance(error, StratalogError):
        return None
    trace = "".join(traceback.format_exception(error, limit=-12))
    verdict = "memory" if isinstance(error, MemoryError) else "foreign"
    return Finding(verdict, operation, f"{type(error).__name__}: {str(error)[:300]}", trace[-6000:])


@dataclass
class Oracle:
    """Knows the truth, and the operations since then."""

    truth: Original
    change: Change
    appended: dict[Key, int] = field(default_factory=dict)
    """The log end of each partition, according to the appends acknowledged since."""
    dropped: set[str] = field(default_factory=set)
    """Topics that were deleted or shortened since."""

    @property
    def sound(self) -> tuple[str, ...]:
        """Topics without a file in the mutated root."""
        if self.change.metadata or not self.change.root:
            return ()
        return tuple(name for name in self.truth.sound_topics(self.change.root) if name not in self.dropped)

    @property
    def alone(self) -> bool:
        """Whether only a driver that trusts this root is affected."""
        return not self.change.metadata and self.change.root.startswith("b")

    @staticmethod
    def is_own(error: BaseException) -> bool:
        """Whether the error is one of stratalog's."""
        return isinstance(error, StratalogError)

    def trusts(self, topic: str) -> bool:
        """Whether the records of a topic must be right, because the mutation has not forged them."""
        if self.change.metadata or topic in self.dropped:
            return False
        return not (self.change.forged and self.change.topic in (topic, None) and topic not in self.sound)

    def check_rows(self, topic: str, partition: int, isolation: Isolation, rows: list[Row]) -> None:
        """Raises: WrongError."""
        if not self.trusts(topic):
            return
        truth = self.truth.records[topic, partition, isolation.value]
        end = self.truth.ends[topic, partition]
        for row in rows:
            if row["offset"] >= end:
                # An uncommitted append may be committed by a later driver.
                if APPENDED not in _bytes_of(row["value"]) and topic not in (
                    "__consumer_offsets",
                    "__transaction_state",
                ):
                    raise WrongError("wrong data", f"{topic}-{partition}: {row} was never appended")
            elif truth.get(row["offset"]) != row:
                raise WrongError("wrong data", f"{topic}-{partition}: {row}, and not {truth.get(row['offset'])}")

    def check_whole(self, topic: str, partition: int, isolation: Isolation, found: Mapping[int, Row]) -> None:
        """Check that a successful read from the log's start to its end returned everything. Raises: WrongError."""
        self.check_rows(topic, partition, isolation, list(found.values()))
        if not self.trusts(topic) or topic in ("snaps", *INTERNAL_TOPICS):  # snapshots take the place of records
            return
        lacking = self.truth.records[topic, partition, isolation.value].keys() - found.keys()
        if lacking:
            raise WrongError(
                "wrong data",
                f"{topic}-{partition}: a whole read gives no offset {min(lacking)} of {len(lacking)} lacking",
            )

    def check_append(self, report: Report) -> None:
        """Check that acknowledged records come after all others. Raises: WrongError."""
        for row in report.rows:
            key = str(row.get("topic", "")), int(str(row.get("partition", 0)))
            if row.get("base_offset") is None or not self.trusts(key[0]) or key not in self.truth.ends:
                continue
            known = self.appended.get(key, self.truth.ends[key])
            if int(str(row["base_offset"])) < known:
                raise WrongError(
                    "wrong data", f"{key}: appended at {row['base_offset']}, the log ended at {known}"
                )
            self.appended[key] = int(str(row["next_offset"]))

    def check_report(self, report: Report) -> None:
        """Check a report. Raises: WrongError for a failure with a foreign error, or of a sound topic; for control
        characters."""
        # The content of the remote tier, and the folders of former replicas.
        sound = () if report.operation in ("restore --drill", "discarded", "recover") else self.sound
        for failure in report.failures:
            if failure.code not in CODES:
                raise WrongError("foreign", f"a failure in the report: {failure}")
            named = [topic for topic in sound if _names(failure.item, topic)]
            if named:
                raise WrongError(
                    "stopped", f"{report.operation}: {failure.item}: {failure.code}: {failure.message[:200]}"
                )
        text = str(report)
        odd = sorted({f"{ord(c):#x}" for c in _CONTROL.findall(text)})
        if odd:
            raise WrongError("unescaped", f"{report.operation} prints {odd}")
        rows = folded(report.rows)
        lines = 1 + len(report.notes) + len(report.failures) + bool(zeros(report.columns, rows))
        if rows:
            lines += 2 + min(len(rows), 200) + (len(rows) > 200)
        if text.count("\n") + 1 != lines:
            raise WrongError(
                "unescaped", f"{report.operation} prints {text.count(chr(10)) + 1} lines, not {lines}"
            )
        report.to_json()

    def check_metadata(self, cluster: Cluster) -> None:
        """Check the metadata. Raises: WrongError if topics differ from the committed ones."""
        if self.change.metadata:
            return
        image = cluster.image
        for name, (topic_id, partitions, configs) in self.truth.topics.items():
            if name in self.dropped:
                continue
            topic = image.topics.get(topic_id)
            now = None if topic is None else (topic.name, len(topic.partitions))
            if topic is None or now != (name, partitions) or not set(configs) <= set(topic.configs.items()):
                raise WrongError("wrong metadata", f"topic {name!r} is {now}, and was {partitions} partitions")


def _bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _names(item: str, topic: str) -> bool:
    return item == topic or item.startswith((f"{topic}-", f"{topic} ", f"topic '{topic}'"))
