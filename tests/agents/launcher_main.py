"""A real launcher whose server is a file: `python -m tests.agents.launcher_main FOLDER TERM GRACE -- COMMAND`.

The file `FOLDER/server` says what the server answers: `up`, `down` or `back` (taken back). What the launcher says at
its end stands in `FOLDER/left`.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path

from agents.launch import Launcher, Ranks
from fleet.errors import TemporaryError
from fleet.lease import LeaseTerms


class FileKeeper:
    """Renewals by one word in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def renew(self) -> bool:
        said = (self.folder / "server").read_text().strip()
        if said == "down":
            raise TemporaryError("nobody answers", delay=0.05)
        return said == "up"

    async def leave(self, text: str) -> None:
        (self.folder / "left").write_text(text)


def main() -> None:
    folder, term, grace, wait = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    ranks = Ranks(sys.argv[6:], grace)
    logging.basicConfig(level=logging.INFO)
    code = asyncio.run(Launcher(ranks, LeaseTerms(term=term, grace=grace), FileKeeper(folder), wait).run())
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
