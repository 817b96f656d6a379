"""The engine's state machines beside the cluster image: the content of topics with ``cleanup.policy=snapshot``.

Purpose
    A log of state is short because a snapshot stands for its beginning. That works for any fold over a log
    (``stratalog.snapshots.state_machine`` has the laws); these are the folds. The log alone decides: a driver
    looks, appends, and then asks the fold whether its record counted. So no coordinator has to run, and of any
    number of drivers that act at once the log makes one history.

        consumer_offsets    offsets of groups, committed or     of __consumer_offsets, by group
                            pending in transactions
        group_commits       the offsets a group may commit      a call -> offsets, or an error
        transaction_state   transactional ids and their state   of __transaction_state, by transactional id
        transaction_steps   the decisions of a coordinator      present state + request -> next state
        latest_by_key       the latest record of each key       of any topic of a user
        keyed               machines of keys and values as rows of a log
        operations          the events of __operations      an event <-> a record
        internal_topics     names, configs, and the partition of a key

Data in and out
    In: records with their offsets, in order. Out: states, what a snapshot of them holds, what to append.

May not know
    Stores, clusters, Spark; what time it is: times are in the records, or are passed in.
"""
