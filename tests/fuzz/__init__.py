"""Mutations of stored bytes, and all readers over them: ``make fuzz SECONDS=60 SEED=1``.

A small real cluster is built once (``original``): three voters on folders, topics of every kind, a remote table;
and a second one with a key, which gets a share of the mutations. Each mutation is drawn from a seed and its index
alone: ``python -m tests.fuzz --only SEED:INDEX`` repeats it.

    mutations_of_...        other bytes, JSON, Parquet, metadata; ``sealing`` makes checksums right again
    mutations, changes      the choice of a file and of its change: content, name, link, special file, move, size
    decoders                39 of 40 mutations: the functions that decode the file, in memory
    tree, operations        one of 40 mutations: a fresh copy of the cluster's folder, and five operations that
                            read such a file; then another driver, for which everything that does not use the
                            mutated root must continue
    keyed                   the cluster with a key, and its signed content
    oracle                  the distinction between right results, stratalog's errors and findings
    work, watch             the process that a mutation may kill; its watcher, which limits memory and time, and
                            starts the next process
    report                  figures, and every finding with the command that repeats it
    planted                 faults that are planted into the engine, and must be found

``make test`` runs 10,000 mutations of one seed, 250 of them on the whole cluster, which takes about a minute on
two processors. Each finding becomes a test beside the affected code.
"""
