"""Runs one mutation after the other in this process, which may die of any of them: another process watches it.

The process prints the start and the end of each mutation as lines of JSON.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stratalog.engine.driver.report import Report
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.replica import remembered_lineages
from stratalog.partitions.segments import reader as segment
from tests.fuzz.changes import draw_change
from tests.fuzz.decoders import Decoders
from tests.fuzz.keyed import SignedDecoders, believed
from tests.fuzz.mutations import Specimens
from tests.fuzz.operations import MANY, OPERATIONS, Scene, append_to, draw_operations, open_cluster
from tests.fuzz.oracle import OWN, RIGHT, Finding, Oracle, finding_of
from tests.fuzz.original import read_all
from tests.fuzz.paths import coverage_of
from tests.fuzz.tree import Tree

END_TO_END = 40
"""One in this many mutations changes a tree and runs operations over it; the others change the input of one
function."""
KEYED, SIGNED = 0.2, 0.08
"""Shares of mutations: among those of trees, the ones of the cluster with a key; among the others, the ones of
signed content.
"""
LATER_MS = 60_000
MOST_S = 10.0
"""The time limit of an operation, and the limit, by its own clock, of an operation on an unaffected part."""
PATIENCE_S = 65.0
"""The time for which affected operations may retry, until Kafka's timeouts of half a minute each are over."""
MOST_GROWTH_KB = 1024 * 1024

Tell = Callable[[list[Any]], None]


@dataclass(slots=True)
class Outcome:
    index: int
    kind: str = ""
    what: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    peak_kb: int = 0
    """The peak memory of the process during the mutation."""


class Work:
    """The clusters without a key and with one, and the work on copies of them."""

    def __init__(self, tree: Tree, keyed: Tree, seed: int, tell: Tell) -> None:
        self._seed = seed
        self._tell = tell
        self._trees = tree, keyed
        self._specimens = Specimens(tree.files), Specimens(keyed.files)
        plain, signed = self._specimens
        self._decoders: tuple[Decoders | SignedDecoders, ...] = (
            Decoders(plain, tree.folder / "scratch"),
            SignedDecoders(signed),
        )

    def run(self, index: int) -> None:
        """Run mutation ``index``: the same for the same seed, on any machine."""
        rng = random.Random(f"{self._seed}:{index}")
        outcome = Outcome(index)
        self._tell(["begin", index])
        _reset_peak()
        before_kb = resident_kb()
        if index % END_TO_END == 0:
            self._end_to_end(rng, outcome)
        else:
            self._function(rng, outcome)
        outcome.peak_kb = _peak_kb()
        grown = outcome.peak_kb - before_kb
        if grown > MOST_GROWTH_KB:
            outcome.findings.append(Finding("memory", outcome.kind, f"grew by {grown // 1024} MB"))
        findings = [asdict(found) for found in outcome.findings]
        messages = [outcome.kind, outcome.what, dict(outcome.outcomes), findings, outcome.peak_kb]
        self._tell(["end", index, *messages])

    # --------------------------------------------------------------------------- one function

    def _function(self, rng: random.Random, outcome: Outcome) -> None:
        decoders = self._decoders[rng.random() < SIGNED]
        run = decoders.draw(rng)
        self._tell(["what", f"function: {decoders.kind}", decoders.what[:500]])
        verdict = RIGHT
        try:
            run()
        except BaseException as error:
            verdict = self._judged(f"decode {decoders.kind}", error, outcome)
        outcome.kind, outcome.what = f"function: {decoders.kind}", decoders.what[:500]
        outcome.outcomes[f"decode: {verdict}"] += 1

    # ----------------------------------------------------------------------------- end to end

    def _end_to_end(self, rng: random.Random, outcome: Outcome) -> None:
        with_key = rng.random() < KEYED
        tree, specimens = self._trees[with_key], self._specimens[with_key]
        tree.fresh()
        segment.forget()
        remembered_lineages.clear()
        change = draw_change(rng, tree.now, specimens)
        if with_key:
            change = believed(change)
        outcome.kind = f"with key: {change.kind}" if with_key else change.kind
        outcome.what = change.what[:500]
        self._tell(["what", outcome.kind, outcome.what])
        oracle = Oracle(tree.truth, change)
        clock = ManualClock(tree.truth.now_ms + LATER_MS)
        ids = (f"{number:032x}" for number in range(1 << 64, 1 << 65))
        in_turn = rng.random() < 0.9
        scene: Scene | None = None

        def opened() -> object:
            nonlocal scene
            cluster = open_cluster(tree.now, clock, lambda: next(ids), lambda: tree.key, in_turn=in_turn)
            scene = Scene(rng, tree.now, clock, oracle, cluster)
            return None

        def step(name: str, run: Callable[[], object], *, must: bool) -> bool:
            return self._step(name, run, oracle, clock, outcome, must=must)

        if step("open", opened, must=oracle.alone) and scene is not None:
            at = scene
            for name in draw_operations(rng, change.kind):
                step(name, lambda name=name: OPERATIONS[name](at), must=oracle.alone and name in MANY)
        if (oracle.sound or oracle.alone) and step("open again", opened, must=True):
            step("read the metadata", lambda: oracle.check_metadata(scene.cluster), must=True)
            for topic in rng.sample(oracle.sound, min(2, len(oracle.sound))):
                if not topic.startswith("__") and topic not in ("typed", "ledger"):
                    step("append to sound", lambda topic=topic: _whole(append_to(scene, topic)), must=True)
                step("read sound", lambda topic=topic: _read_sound(scene, topic), must=True)
        self._check_storage(tree, oracle, outcome)

    def _step(
        self,
        name: str,
        run: Callable[[], object],
        oracle: Oracle,
        clock: ManualClock,
        outcome: Outcome,
        *,
        must: bool,
    ) -> bool:
        """Whether the operation returned. ``must``: the operation is on an unaffected part, so any error is a
        finding.
        """
        self._tell(["op", name])
        waited_s, began = clock.monotonic_s(), _working_s()
        verdict = RIGHT
        returned = False
        try:
            report = run()
            returned = True
            if isinstance(report, Report):
                oracle.check_report(report)
                verdict = OWN if report.failures else RIGHT
        except BaseException as error:
            verdict = self._judged(name, error, outcome)
            if verdict == OWN and must:
                verdict = "stopped"
                code = getattr(error, "code", "")
                outcome.findings.append(
                    Finding(verdict, name, f"{type(error).__name__} {code}: {str(error)[:300]}")
                )
        waited_s, took_s = clock.monotonic_s() - waited_s, _working_s() - began
        if waited_s > (MOST_S if must else PATIENCE_S):
            outcome.findings.append(Finding("waits", name, f"waits for {waited_s:.0f} s"))
        if took_s > MOST_S:
            outcome.findings.append(Finding("hang", name, f"takes {took_s:.0f} s"))
        outcome.outcomes[f"{name}: {verdict}"] += 1
        return returned

    def _judged(self, name: str, error: BaseException, outcome: Outcome) -> str:
        finding = finding_of(name, error)
        if finding is None:
            return OWN
        outcome.findings.append(finding)
        return finding.verdict

    def _check_storage(self, tree: Tree, oracle: Oracle, outcome: Outcome) -> None:
        for changed in tree.outside_changes(oracle.change.paths):
            outcome.findings.append(Finding("outside", "any", changed))
        if oracle.change.metadata:
            return
        covered = coverage_of(tree.now, oracle.truth.ends, frozenset(oracle.change.paths))
        for key, offsets in oracle.truth.covered.items():
            if not oracle.trusts(key[0]):
                continue
            lost = offsets - covered.get(key, frozenset())
            if lost:
                lost -= _only_there(tree, key, oracle)
            if lost:
                outcome.findings.append(Finding("lost", "any", f"{key} has no file with offset {min(lost)}"))


def _only_there(tree: Tree, key: tuple[str, int], oracle: Oracle) -> frozenset[int]:
    """Offsets that only the mutated files contain."""
    original = coverage_of(tree.original, oracle.truth.ends, frozenset(oracle.change.paths))
    return oracle.truth.covered[key] - original.get(key, frozenset())


def _whole(report: Report) -> Report:
    return report.raise_for_failures()


def _read_sound(scene: Scene, topic: str) -> None:
    for partition in range(scene.oracle.truth.topics[topic][1]):
        rows, _ = read_all(scene.cluster, topic, partition, Isolation.READ_UNCOMMITTED)
        scene.oracle.check_whole(topic, partition, Isolation.READ_UNCOMMITTED, rows)


def _reset_peak() -> None:
    """Reset the peak memory of this process."""
    with suppress(OSError):  # without a reset, the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _peak_kb() -> int:
    """The peak memory of this process since the reset."""
    return _status("self", "VmHWM")


def resident_kb(pid: int | str = "self") -> int:
    """The memory of a process; 0 if it has ended."""
    return _status(pid, "VmRSS")


def _status(pid: int | str, name: str) -> int:
    with suppress(OSError):
        found = re.search(rf"{name}:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) if found else 0
    return 0


def runnable_s(pid: int | str = "self") -> float:
    """The time for which a process has waited for a processor."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _working_s() -> float:
    """The elapsed time without the time in which this process waits for a processor."""
    return time.monotonic() - runnable_s()
