"""The engine's state machines beside the cluster image: what topics with ``cleanup.policy=snapshot`` hold.

Purpose
    A log of state is short because a snapshot stands for its beginning. That works for whatever is a fold over
    a log (``stratalog.snapshots.state_machine`` has the laws); these are the folds. The log alone decides: who
    appends looks first, and afterwards asks the fold whether what he appended counted. So no coordinator has to
    run, and of any number of drivers that act at once the log makes one history.

        consumer_offsets    what groups have committed, and     of __consumer_offsets, by group
                            what transactions have pending
        group_commits       what a group may commit             a call -> offsets, or an error
        transaction_state   transactional ids and their state   of __transaction_state, by transactional id
        transaction_steps   what a coordinator decides          present state + request -> next state
        latest_by_key       the latest record of each key       of any topic of a user
        keyed               machines of keys and values as rows of a log
        internal_topics     names, configs, and the partition of a key

Data in and out
    In: records with their offsets, in order. Out: states, what a snapshot of them holds, what to append.

May not know
    Stores, clusters, Spark; what time it is: times are in the records, or are passed in.
"""
