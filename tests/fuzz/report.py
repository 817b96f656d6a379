"""The summary of many mutations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.fuzz.oracle import Finding
from tests.fuzz.work import Outcome

COMMAND = "python -m tests.fuzz"
_EXAMPLES = 3


@dataclass
class Found:
    """Findings that look the same."""

    first: Finding
    examples: list[tuple[int, str, str]] = field(default_factory=list)
    """Index, kind and mutation of the first few."""
    count: int = 0


@dataclass
class Summary:
    seed: int
    tell: Callable[[str], object] = lambda text: None
    mutations: int = 0
    seconds: float = 0.0
    peak_kb: int = 0
    """The peak memory of a process."""
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts by operation and verdict."""
    found: dict[str, Found] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Add one mutation. A new kind of finding is printed immediately."""
        self.mutations += 1
        self.peak_kb = max(self.peak_kb, outcome.peak_kb)
        self.kinds[outcome.kind] += 1
        for text, count in outcome.outcomes.items():
            operation, _, verdict = text.rpartition(": ")
            self.outcomes[operation, verdict] += count
        for finding in outcome.findings:
            found = self.found.setdefault(finding.signature, Found(finding))
            found.count += 1
            if len(found.examples) < _EXAMPLES:
                found.examples.append((outcome.index, outcome.kind, outcome.what))
            if found.count == 1:
                self.tell("\n".join(self.lines_of(found)))

    @property
    def verdicts(self) -> Counter[str]:
        """The counts of verdicts of operations, and of findings outside of operations."""
        found: Counter[str] = Counter()
        for (_, verdict), count in self.outcomes.items():
            found[verdict] += count
        return found

    def lines(self) -> Iterator[str]:
        """The report: figures, then every finding with the command that repeats it."""
        rate = self.mutations / self.seconds if self.seconds else 0.0
        yield (
            f"seed {self.seed}: {self.mutations} mutations in {self.seconds:.0f} s ({rate:.0f} a second), "
            f"{self.peak_kb // 1024} MB at most"
        )
        yield "by kind: " + ", ".join(f"{kind or '-'} {count}" for kind, count in sorted(self.kinds.items()))
        operations: dict[str, list[str]] = {}
        for (operation, verdict), count in sorted(self.outcomes.items()):
            operations.setdefault(operation, []).append(f"{verdict} {count}")
        yield "operations: " + "; ".join(f"{name}: {', '.join(seen)}" for name, seen in operations.items())
        yield f"outcomes of {sum(self.outcomes.values())} operations: " + (
            ", ".join(f"{verdict} {count}" for verdict, count in self.verdicts.most_common())
        )
        findings = Counter({text: found.count for text, found in self.found.items()})
        yield f"findings: {sum(findings.values())} of {len(findings)} kinds"
        for text, _ in findings.most_common():
            yield ""
            yield from self.lines_of(self.found[text])

    def lines_of(self, found: Found) -> Iterator[str]:
        """One finding, and the command that repeats it."""
        yield f"[{found.count}] {found.first.verdict}: {found.first.operation}: {found.first.error}"
        for index, kind, what in found.examples:
            yield f"    {COMMAND} --only {self.seed}:{index}    # {kind}: {what[:200]!r}"
        yield from (f"    | {line}" for line in found.first.trace.splitlines()[-16:])
