"""Findings about brokers and the quorum: metadata, roots, folders. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import join

from stratalog.engine.health.finding import CURRENT_LEADER, Cause, HealthFinding, Severity
from stratalog.engine.health.sight import Sight
from stratalog.engine.metadata.probed_roots import Another, Blocked, NotOurs, Same, Unreachable
from stratalog.partitions.store.local_space import folder_path, mount_point
from stratalog.partitions.store.rules import STAGING_FOLDER


def quorum_findings(sight: Sight) -> Iterator[HealthFinding]:
    """Findings about voters that cannot be read, or that have contradictory data."""
    ids = {found.voter.broker_id: found for found in sight.quorum.voters if found.error is not None}
    if sight.no_majority is not None:
        yield HealthFinding(
            severity=Severity.ERROR,
            kind=CURRENT_LEADER,
            subjects=("metadata",),
            what=f"too few voters answer, so nothing can be changed or appended: {sight.no_majority}. Bring back "
            "the storage of a majority of the voters, then run the command",
            do=sight.commands("maintain"),
            because=frozenset(ids),
        )
    for broker_id, found in sorted(ids.items()):
        because: frozenset[Cause] = frozenset()
        what, do = f"this voter is ignored: {found.error}", sight.commands("quorum", "describe")
        broker = sight.image.brokers.get(broker_id)
        if broker is not None and broker.directory_id != found.voter.directory_id:
            what = "this voter lost its storage, and its broker is back. The command lets it vote again"
            do = sight.commands("quorum", "replace-voter", str(broker_id))
        elif not isinstance(sight.roots.get(broker_id), Same):
            do, because = root_remedy(sight, broker_id), frozenset({broker_id})
        yield HealthFinding(
            severity=Severity.ERROR,
            kind="offline-voter",
            subjects=(f"broker {broker_id}",),
            what=what,
            do=do,
            because=because,
        )


def root_remedy(sight: Sight, broker_id: int) -> str:
    """Return the command that brings a broker back once its storage exists again."""
    broker = sight.image.brokers.get(broker_id)
    match sight.roots.get(broker_id):
        case Another():
            return sight.commands("bootstrap", str(broker_id))
        case Same() if broker is not None and broker.fenced_by_hand:
            return sight.commands("brokers", "unfence", str(broker_id))
        case Unreachable(lacks=lacks) if lacks is not None and _replaceable(sight, broker_id):
            path = folder_path(sight.image.brokers[broker_id].log_dir)
            if lacks == "folder" and path is not None:
                return join(["mkdir", path])
            return sight.commands("bootstrap", str(broker_id))
        case _:
            return sight.commands("maintain")


def _replaceable(sight: Sight, broker_id: int) -> bool:
    """Whether the broker is fenced and in no ISR, so that other replicas have all of its acknowledged records."""
    partitions = (one for topic in sight.image.topics.values() for one in topic.partitions)
    return sight.image.brokers[broker_id].fenced and not any(broker_id in one.isr for one in partitions)


def broker_findings(sight: Sight) -> Iterator[HealthFinding]:
    """Findings about roots that differ from their registration, and about brokers out of service."""
    for broker_id, broker in sorted(sight.image.brokers.items()):
        severity, kind, do = Severity.ERROR, "OfflineLogDirectoryCount", root_remedy(sight, broker_id)
        match sight.roots.get(broker_id):
            case Unreachable(error, lacks) if lacks is not None and _replaceable(sight, broker_id):
                steps = (
                    f"The command creates the folder of the root. Afterwards, run bootstrap {broker_id} to "
                    "rebuild the broker there"
                    if lacks == "folder"
                    else "The command rebuilds the broker from the other replicas"
                )
                what = (
                    f"its root is lost or not mounted ({error}). If its volume still exists, mount it first: "
                    f"the next maintain brings the broker back. {steps}"
                )
            case Unreachable(error):
                what = (
                    f"its root does not answer ({error}). Mount the root, or bring its server back, then run the "
                    f"command; if the root is lost, rebuild the broker: bootstrap {broker_id}"
                )
            case NotOurs(error):
                what = (
                    f"the root belongs to another broker or cluster: {error}. Correct the cluster file or the "
                    "mount, then run the command"
                )
            case Blocked(error):
                kind, do = "read-only-log-dir", join(["rm", f"{folder_path(broker.log_dir)}/{STAGING_FOLDER}"])
                what = f"{error}. The next run then brings the broker back"
            case Another():
                what = "its root was replaced: it is new and empty, moved, or restored from a copy"
            case None:
                severity, kind = Severity.WARNING, "FencedBrokerCount"
                what = (
                    "the broker is registered, but not in the cluster file: add it to the file, or decommission it"
                )
                do = sight.commands("brokers", "decommission", str(broker_id))
            case Same() if broker.fenced:
                by_hand = " by hand" if broker.fenced_by_hand else ""
                severity, kind = Severity.WARNING, "FencedBrokerCount"
                what = f"the broker is fenced{by_hand}, but its root answers"
            case Same() if broker_id in sight.unlisted:
                what, do = (
                    "its root answers, but cannot be listed; the command shows the reason",
                    sight.commands("describe"),
                )
            case Same():
                continue
        yield HealthFinding(severity=severity, kind=kind, subjects=(f"broker {broker_id}",), what=what, do=do)
    unknown = sorted(sight.in_file - sight.image.brokers.keys())
    if unknown:
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="ActiveBrokerCount",
            subjects=tuple(f"broker {broker_id}" for broker_id in unknown),
            what="the broker is in the cluster file, but was never registered: format it, or remove it from the "
            "file",
            do=sight.commands("format"),
        )


def clock_findings(sight: Sight) -> Iterator[HealthFinding]:
    """Findings about clocks that disagree. Because of them, nothing is deleted by age, on one broker or on all."""
    faults = {f"broker {broker_id}": what for broker_id, what in sight.clocks.broker_faults.items()}
    if (
        sight.clocks.driver_fault is not None and sight.clocks.apart
    ):  # otherwise this process may have no access to the storage
        faults["this driver"] = sight.clocks.driver_fault
    for subject, what in faults.items():
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="clock-skew",
            subjects=(subject,),
            what=what,
            do="timedatectl set-ntp true",
        )


def folder_findings(sight: Sight) -> Iterator[HealthFinding]:
    """Findings about read-only folders and nearly full file systems. Object storage shows such problems only when
    it refuses a write.
    """
    limit = sight.config.health_log_dir_max_used_ratio
    for broker_id, folder in sorted(sight.folders.items()):
        if folder.unwritable is not None:
            full = folder.unwritable.full
            remount = join(["mount", "-o", "remount,rw", mount_point(folder.path)])
            yield HealthFinding(
                severity=Severity.ERROR,
                kind="log-dir-used-ratio" if full else "read-only-log-dir",
                subjects=(f"broker {broker_id}",),
                what=str(folder.unwritable),
                do=sight.commands("maintain", "--only", "merge,retain,vacuum") if full else remount,
            )
            continue
        if folder.read_only:
            yield HealthFinding(
                severity=Severity.ERROR,
                kind="read-only-log-dir",
                subjects=(f"broker {broker_id}",),
                what=(
                    f"{len(folder.read_only):,} of its folders refuse writes by this user, such as "
                    f"{folder.read_only[0]}. Restore the rights"
                ),
                do=join(["chmod", "-R", "u+rwX", folder.path]),
            )
        space = folder.space
        if space is not None and space.used_ratio > limit:
            yield HealthFinding(
                severity=Severity.ERROR if space.used_ratio > (1 + limit) / 2 else Severity.WARNING,
                kind="log-dir-used-ratio",
                subjects=(f"broker {broker_id}",),
                what=f"{space.used_ratio:.0%} of its file system is used, {space.free_bytes:,} bytes are free "
                f"(health.log.dir.max.used.ratio = {limit:g}). The command deletes files that are due for "
                "deletion; if that is not enough, add storage, reduce retention, or move partitions (reassign)",
                do=sight.commands("maintain", "--only", "merge,retain,vacuum"),
            )
