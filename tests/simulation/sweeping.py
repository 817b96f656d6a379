"""The law of the sweep: a partition that ``maintain`` would skip, by the stored results of its runs and one look
at the brokers, needs no work.

Other drivers, appends and faults interrupt the runs; their results are on storage in the end.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.stored_schedule import load_stored
from stratalog.engine.upkeep.maintenance.sweep import sweep
from stratalog.engine.upkeep.memory.times import decode
from stratalog.engine.upkeep.replication.merge import merge
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.retain import retain
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.paths import MAINTENANCE
from tests.ports import with_ports
from tests.simulation.actor import Actor
from tests.simulation.scheduler import Violation
from tests.simulation.world import World

_STEPS: dict[str, Callable[..., Report]] = {"replicate": replicate, "merge": merge, "retain": retain}


def check_sweep(actor: Actor) -> None:
    """Give each step the partitions that it would not have got. Raises: Violation if that changes anything."""
    world, ports = actor.world, actor.ports
    image = probe_brokers(ports.metadata, ports.storage).image
    times = decode(load_stored(ports.storage, image, MAINTENANCE).line)
    if not times.settled:
        return
    ends = {key: entry.remote_end for key, entry in load_schedule(ports.storage, image).schedule.entries.items()}
    looks, now_ms = sweep(ports.storage, image, ends), ports.clock.now_ms()
    for step, run in _STEPS.items():
        keys = {key for key, look in looks.items() if times.is_settled(step, key, look.digest, now_ms)}
        if not keys:
            continue
        world.ledger.count(f"sweep: {step} passed over")
        before = _files(world)
        report = with_ports(run, ports)(only=keys)
        changed = sorted(before ^ _files(world))
        if (
            step != "replicate"
        ):  # the first step that opens the log of a new leader writes the register of its epoch
            changed = [one for one in changed if not one[1].endswith(".epoch")]
        if changed:
            raise Violation(
                f"{step} had something to do for {sorted(keys)}, and was not told: {changed}: {report}"
            )


def _files(world: World) -> set[tuple[int, str, str]]:
    """Every file of every broker: its place, its name, and its version."""
    return {
        (broker, name, entry[0].version)
        for broker, root in world.roots.items()
        for entries in root.folders.values()
        for name, entry in entries.items()
        if not name.endswith(".schedule")
    }
