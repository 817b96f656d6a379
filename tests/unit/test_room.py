"""Memory that threads use in turns."""

from __future__ import annotations

import threading

from stratalog.partitions.cache import Room


def test_no_more_is_taken_than_there_is_and_every_caller_gets_a_turn() -> None:
    room, lock = Room(100), threading.Lock()
    taken, most, done = 0, 0, 0

    def take(size: int) -> None:
        nonlocal taken, most, done
        for _ in range(50):
            with room.of(size):
                with lock:
                    taken += size
                    most = max(most, taken)
                with lock:
                    taken -= size
                    done += 1

    threads = [threading.Thread(target=take, args=(size,)) for size in (10, 40, 60, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert done == 200
    assert most <= 100


def test_a_request_for_more_than_the_room_gets_all_of_it() -> None:
    room = Room(100)
    with room.of(1_000):
        assert room._taken == 100
    assert room._taken == 0
