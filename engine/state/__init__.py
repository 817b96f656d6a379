"""The engine's state machines other than the cluster image: the content of topics with
``cleanup.policy=snapshot``.

Purpose
    A log of state is short, because a snapshot replaces its beginning. This works for any fold over a log
    (``stratalog.snapshots.state_machine`` has the laws). This package has the folds. Only the log decides: a
    driver reads, appends, and then checks in the fold whether its record took effect. So no coordinator has to
    run, and the log puts the decisions of all concurrent drivers into one order.

        consumer_offsets    offsets of groups, committed or pending in transactions: __consumer_offsets, by group
        group_commits       checks the arguments of a commit: a call -> offsets, or an error
        transaction_state   transactional ids and their state: __transaction_state, by transactional id
        transaction_steps   the decisions of a coordinator: current state + request -> next state
        latest_by_key       the latest record of each key of a user's topic
        keyed               state machines with keys and values as rows of a log
        operations          the events of __operations: an event <-> a record
        internal_topics     names, configs, and the partition of a key

Data in and out
    Input: records with their offsets, in order. Output: states, the records of their snapshots, and records to
    append. Times are in the records, or are passed in.
"""
