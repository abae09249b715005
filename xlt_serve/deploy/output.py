"""The folder that a build is written to: whole or not at all, and never over what is not ours.

``build.json`` lists what was written, each file with its sha256. A folder that holds anything else, or a
file that was changed since, is left alone.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlt_serve.deploy.build_folder import files
from xlt_serve.errors import UsageError

RECEIPT = "build.json"


def refuse_foreign(out: Path) -> None:
    """A UsageError if replacing ``out`` would lose anything that no build wrote."""
    if out.is_dir():
        found = files(out)
        if not found:
            return
        written = _receipt(out)
        for name, sha256 in found.items():
            if name != RECEIPT and written.get(name) != sha256:
                rule = "was changed since" if name in written else "is not of a build"
                raise UsageError(out / name, rule, "give another --out, or move it away")
    elif out.exists() or out.is_symlink():
        raise UsageError(out, "is no folder", "give another --out")


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new folder beside ``out``, which takes its place if nothing goes wrong."""
    refuse_foreign(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f"{out.name}-half-", dir=out.parent))
    try:
        half.chmod(0o755)
        yield half
        refuse_foreign(out)  # it took its time
        old = half.with_name(half.name.replace("-half-", "-old-"))
        if out.exists():
            out.rename(old)
        try:
            half.rename(out)
        except OSError:
            if old.exists():
                old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def write_receipt(folder: Path, about: dict[str, Any]) -> None:
    text = json.dumps(about | {"files": files(folder)}, indent=2, ensure_ascii=False)
    (folder / RECEIPT).write_text(text + "\n", encoding="utf-8")


def _receipt(out: Path) -> dict[str, Any]:
    try:
        written = json.loads((out / RECEIPT).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        written = None
    return written if isinstance(written, dict) else {}
