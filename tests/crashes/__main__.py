"""The command line of the campaign."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tests.crashes.campaign import Campaign
from tests.crashes.stream_driver import WAYS
from tests.crashes.streams import StreamCampaign


def main() -> None:
    """Run the campaign. A fault ends the campaign, and the folder is kept."""
    parser = argparse.ArgumentParser(prog="tests.crashes", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how often a job is struck")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", choices=WAYS, help="drivers of a stream that is written this way")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stratalog-crashes-"))
    if given.stream is not None:
        streams = StreamCampaign(folder, given.seed, lambda line: print(line, flush=True))
        print(f"{dict(streams.run(given.stream, given.runs))}: each record once")
        shutil.rmtree(folder)
        return
    campaign = Campaign(folder, given.seed, lambda line: print(line, flush=True))
    try:
        campaign.run(given.runs)
    except BaseException:
        print(f"seed {given.seed}: what is left of it is in {folder}")
        raise
    finally:
        print(campaign.table())
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
