"""Whether the answers to drivers are linearizable, according to a third-party checker: porcupine, a Go module.

    calls          calls of drivers with the moments at which they were made and returned; the lines of a file
    recording      runs of the simulation under faults in which drivers append, fetch, commit and elect
    planted        faults that are planted into a sound history: the checker must refuse each of them
    checker/       the Go program: the sequential specification of a partition log and of a group's offset

``make servers`` builds the program. ``python -m tests.linearizability --histories 1000 --seed 1`` records that
many histories and judges them.
"""
