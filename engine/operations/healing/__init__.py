"""Damaged files replaced, and what was truncated found again.

heal            files of brokers replaced by verified copies (plan: which; files: how)
history         what replicas have discarded and still hold
recover         ... exported (export)
"""
