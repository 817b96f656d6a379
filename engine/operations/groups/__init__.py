"""Consumer groups: what they have committed, in ``__consumer_offsets``.

groups       commit and fetch offsets
admin        list, describe with lag, reset, delete, expire
lag_metrics  the lag of all groups as metrics
"""
