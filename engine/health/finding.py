"""A finding is one problem, with its subjects, the time when it was first found, and the command that fixes it.
The report has all findings.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from stratalog.engine.driver.report import Failure, Report, Value, show, utc_text
from stratalog.partitions.amounts import span_text
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.html_table import code_line, head_line, marked_line
from stratalog.partitions.printable import printable

CURRENT_LEADER = "current-leader"
"""The kind of finding for a missing majority of voters."""
WIDTH = 100
_NAMED = 5
"""The maximum number of subjects or topics that a line names."""


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """An operator must act: records are in danger or unreachable, or the problem will not disappear by itself."""
    WARNING = "warning"
    """The next runs of ``maintain`` should fix it, or it is the result of a manual change."""
    INFO = "info"
    """Worth knowing."""


_MARKS = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.INFO: ""}


KINDS = frozenset(
    (
        *(CURRENT_LEADER, "offline-voter", "OfflineLogDirectoryCount", "FencedBrokerCount", "ActiveBrokerCount"),
        *("read-only-log-dir", "log-dir-used-ratio", "clock-skew"),
        *("OfflinePartitionsCount", "UnderMinIsrPartitionCount", "UnderReplicatedPartitions", "MaxLag"),
        *(
            "damaged-replicas",
            "lost-log",
            "behind-remote",
            "retention-lag",
            "compaction-lag",
            "unfinished-erasure",
        ),
        *("offline-remote-tier", "remote-table", "RemoteCopyErrorsPerSec", "RemoteCopyLagBytes"),
        *("records-lag-max", "committed-beyond-log-end", "state-unread", "PartitionsWithLateTransactionsCount"),
        *("upkeep", "upkeep-failing"),
    )
)
"""All kinds of findings: the rows of the table in docs/operations.md."""
Cause = int | str
"""A broker, or ``REMOTE_TIER``. A finding about a cause may have other findings as its effects."""
REMOTE_TIER = "remote tier"
"""The subject of findings and failures about the remote tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One finding, which covers all subjects with the same problem."""

    severity: Severity
    kind: str
    """One of ``KINDS``: the name of Kafka's metric if Kafka has one."""
    subjects: tuple[str, ...]
    """Brokers, partitions, groups, topics, steps; at least one."""
    what: str
    """A sentence."""
    do: str
    """The complete command line to run."""
    since_ms: int | None = None
    """The time since which the problem has been known; the problem may be older. None if this time is unknown."""
    because: frozenset[Cause] = frozenset()
    """The causes of this finding. Their findings absorb this finding (``by_cause``)."""
    affected: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The subjects of this finding's effects, by kind of finding."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is not a kind of finding")

    @property
    def subject(self) -> str:
        """The text of the first subjects, with the number of the remaining subjects."""
        return some(self.subjects)

    def row(self) -> dict[str, Value]:
        """The row of this finding in the report."""
        return {
            "severity": str(self.severity),
            "finding": self.kind,
            "subjects": " ".join(self.subjects),
            "count": len(self.subjects),
            "since": None if self.since_ms is None else utc_text(self.since_ms),
            "what": self.what,
            "do": self.do,
            "affected": ", ".join(f"{kind} {len(names)}" for kind, names in self.affected.items()) or None,
        }

    def lines(self, now_ms: int) -> list[str]:
        """The printed form: no line is wider than ``WIDTH``."""
        head = f"{self.severity.upper():7}  {self.kind}  {self.subject}"
        since = ""
        if self.since_ms is not None:
            since = f" (since {utc_text(self.since_ms // 1000 * 1000)}, {span_text(now_ms - self.since_ms)})"
        return [*_wrapped(head, ""), *_wrapped(f"{self.what}{since}", "  "), *_command(self.do)]


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED:,} more"


def grouped(findings: Iterable[HealthFinding]) -> list[HealthFinding]:
    """Combine findings with the same text into one finding for all their subjects. The time of a combined finding
    is the earliest known time. The most urgent findings come first.
    """
    merged: dict[tuple[str, str, str, str], list[HealthFinding]] = {}
    for one in findings:
        merged.setdefault((one.severity, one.kind, one.what, one.do), []).append(one)
    found = []
    for alike in merged.values():
        first = alike[0]
        times = [one.since_ms for one in alike if one.since_ms is not None]
        subjects = tuple(dict.fromkeys(subject for one in alike for subject in one.subjects))
        affected: dict[str, tuple[str, ...]] = {}
        for one in alike:
            for kind, names in one.affected.items():
                affected[kind] = tuple(dict.fromkeys((*affected.get(kind, ()), *names)))
        found.append(replace(first, subjects=subjects, since_ms=min(times, default=None), affected=affected))
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))


@dataclass(frozen=True, slots=True)
class Commands:
    """Builds the command lines of findings, for one cluster file."""

    cluster_file: str

    def __call__(self, job: str, *arguments: str, topics: Iterable[str] = ()) -> str:
        """Return ``stratalog JOB ...``. For more than a few topics the command line omits ``--topics``."""
        named = sorted(set(topics))
        wanted = ["--topics", ",".join(named)] if 0 < len(named) <= _NAMED else []
        return shlex.join(["stratalog", job, *arguments, *wanted, "--cluster", self.cluster_file])


@dataclass(frozen=True, slots=True, repr=False)
class HealthReport(Report):
    """The findings as rows; errors are also failures. ``totals`` has the figures."""

    findings: tuple[HealthFinding, ...] = ()
    unread: tuple[Failure, ...] = ()
    """Failures that are not findings: objects that could not be examined."""
    lags: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of records that a group has not processed, by group and topic."""
    used_ratios: Mapping[int, float] = field(default_factory=dict)
    """The used fraction of each broker's file system, from 0 to 1, if known."""
    now_ms: int = 0

    def _state(self) -> str:
        counts = {level: sum(one.severity is level for one in self.findings) for level in Severity}
        counted = [f"{count} {level}{'s'[: count - 1]}" for level, count in counts.items() if count]
        return ", ".join(counted) or "nothing found"

    @property
    def counted(self) -> dict[tuple[str, str], int]:
        """The number of subjects, by severity and kind."""
        counts: dict[tuple[str, str], int] = {}
        for one in self.findings:
            key = str(one.severity), one.kind
            counts[key] = counts.get(key, 0) + len(one.subjects)
        return counts

    def text(self, width: int | None = None) -> str:
        """The report for people. Only commands are wider than ``WIDTH``, whatever the terminal's ``width``."""
        lines = [f"health: {self._state()}, {self.counts.requests} storage requests, {self.seconds:.1f} s"]
        for one in self.findings:
            lines += ["", *one.lines(self.now_ms)]
        for failure in self.unread:
            lines += ["", *_wrapped(f"FAILED   {failure}", "")]
        notes = [line for note in self.notes for line in _wrapped(f"note: {note}", "")]
        return "\n".join([*lines, "", *notes, *_wrapped(self._figures(), "")])

    def _figures(self) -> str:
        """Return the figures as text. Figures that are zero are counted, but not shown."""
        shown = [f"{name} {show(value)}" for name, value in self.totals.items() if value]
        nothing = len(self.totals) - len(shown)
        return ", ".join([*shown, *([f"{nothing} more figures are 0"] if nothing else [])])

    def _repr_html_(self) -> str:
        kind = "bad" if self.failures else "warn" if self.findings else "good"
        cost = f"{self.counts.requests} storage requests, {self.seconds:.1f} s"
        lines = [head_line(cost, kind, f"health: {self._state()}")]
        for one in self.findings:
            since = "" if one.since_ms is None else f" (since {utc_text(one.since_ms // 1000 * 1000)})"
            line = f"{one.kind}, {one.subject}: {one.what}{since}"
            lines += [marked_line(_MARKS[one.severity], str(one.severity), line), code_line(one.do)]
        lines += [marked_line("bad", "FAILED", str(one)) for one in self.unread]
        lines += [marked_line("warn", "note", note) for note in self.notes]
        return "".join([*lines, head_line(self._figures()) if self.totals else ""])


def unopened(cluster_file: str, error: StratalogError, now_ms: int) -> HealthReport:
    """Return the health of a cluster that cannot be opened, as a single finding."""
    one = HealthFinding(
        severity=Severity.ERROR,
        kind=CURRENT_LEADER,
        subjects=("metadata",),
        what=f"the cluster cannot be opened: {error}. Bring back the storage of a majority of the voters, then "
        "run the command",
        do=Commands(cluster_file)("maintain"),
    )
    return HealthReport("health", [one.row()], failures_of([one]), findings=(one,), now_ms=now_ms)


def failures_of(found: Iterable[HealthFinding]) -> list[Failure]:
    """Return the errors as failures of a report."""
    return [
        Failure(one.subject, one.kind, f"{one.what}; {one.do}") for one in found if one.severity is Severity.ERROR
    ]


def figures_of(named: Mapping[str, int | None]) -> dict[str, Value]:
    """Return the known figures as totals of a report."""
    return {name: value for name, value in named.items() if value is not None}


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )


def _command(line: str) -> list[str]:
    """Return a command line for the shell, broken between words if it is too wide."""
    lines = ["  do:"]
    for word in shlex.split(line):
        quoted = printable(shlex.quote(word))
        if len(lines[-1]) + len(quoted) + 3 > WIDTH and lines[-1].strip() != "do:":
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {quoted}"
    return lines
