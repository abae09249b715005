"""What every peer's script does: ``make`` its model once, then ``run`` it on request.

Peers live in environments of their own, so nothing of ours is imported but the protocol, a file that
needs numpy alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "xlt_serve" / "bench" / "outside"))
import peer
from peer import Predict

Make = Callable[[Path, Path, str], None]  # checkpoint, folder to fill, precision
Load = Callable[[Path, str, int], Predict]  # folder, precision, threads

__all__ = ["Predict", "main", "peer"]


def main(make: Make, load: Load) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("make", "run"))
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=Path)
    options = parser.parse_args()
    if options.command == "make":
        options.folder.mkdir(parents=True, exist_ok=True)
        make(options.checkpoint, options.folder, options.precision)
        return
    peer.answer(
        options.batches, lambda: (load(options.folder, options.precision, options.threads), {})
    )
