"""Tier to an S3 server, against a plain multipart upload of the same files to the same server."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

from engine import Cluster
from jobs.benchmarks.bench import Bench, cluster_file, data_files, size_of
from jobs.benchmarks.measuring import in_turn, seconds_of
from jobs.benchmarks.s3_server import S3Endpoint, running_server
from jobs.benchmarks.table import Line, speed_line

AT_LEAST = 0.8
PART_BYTES = 16 * 1024 * 1024
THREADS = 8
