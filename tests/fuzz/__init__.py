"""Mutations of stored bytes, and all readers over them: ``make fuzz SECONDS=60 SEED=1``.

A small real cluster is built once (``original``): three voters on folders, topics of every kind, a remote table;
and a second one with a key, which gets a share of the mutations. Each mutation is drawn from a seed and its index
alone: ``python -m tests.fuzz --only SEED:INDEX`` repeats it.

    mutations_of_...        other bytes, JSON, Parquet, metadata; ``sealing`` makes checksums right again
    mutations, changes      which file, and how: content, name, link, special file, move, too much of it
    decoders                of 39 in 40: the functions over it, in memory
    tree, operations        of one in 40: a fresh copy of the cluster's folder, and five operations that read such
                            a file; then another driver, for which everything has to go on that has no part in
                            the root that was mutated
    keyed                   the cluster with a key, and what it signs
    oracle                  what is right, what is a stratalog error, and what is a finding
    work, watch             the process that may die of it; who watches its memory and its time, and goes on
    report                  figures, and every finding with what repeats it
    planted                 faults that are put into the engine, and have to be found

``make test`` runs 10,000 mutations of one seed, 250 of them on the whole cluster, which takes about a minute on
two processors. Each finding becomes a test beside the affected code.
"""
