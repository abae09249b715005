"""The lock files, read as pip reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

SERVE = ROOT / "xlt_serve" / "deploy" / "lock-serve.txt"
GPU = ROOT / "xlt_serve" / "deploy" / "lock-gpu.txt"
CUDA = ROOT / "xlt_serve" / "deploy" / "lock-cuda.txt"
DEV = ROOT / ".ci" / "lock-dev.txt"
DOCS = ROOT / ".ci" / "lock-docs.txt"
TORCH = ROOT / ".ci" / "lock-torch.txt"


class Pin(NamedTuple):
    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def here(self) -> bool:
        """Whether pip would install it on this machine."""
        marker = Requirement(f"{self.name}; {self.marker}").marker if self.marker else None
        return marker is None or marker.evaluate()


def pins(file: Path) -> list[Pin]:
    out = []
    for line in file.read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            head, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
            requirement = Requirement(head)
            (pinned,) = requirement.specifier
            assert pinned.operator == "==", line
            marker = str(requirement.marker or "")
            name = canonicalize_name(requirement.name)
            out.append(Pin(name, pinned.version, marker, tuple(hashes)))
    return out
