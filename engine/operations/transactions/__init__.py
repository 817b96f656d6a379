"""Transactions (KIP-98): appends to several partitions, and offsets of a group, all or nothing.

transact     a transaction as its producer sees it
coordinator  transactional ids: who holds them, and what is decided of their transactions
markers      the end of a transaction in each partition
admin        list, describe, finish, abort; find what hangs (KIP-664)
"""
