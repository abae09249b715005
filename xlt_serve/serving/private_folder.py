"""A folder of ours, in a place where others may write too: ``/tmp``, say."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def made(folder: Path) -> None:
    """Make it, readable by us alone, if it is not there; ``PermissionError`` where it is another's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check(folder)


def check(folder: Path) -> None:
    """``PermissionError`` where it is another's. One of ours that others may write to is closed to them.

    Its name can be guessed, so that somebody may have planted it. A link of another user's is not
    followed: what is behind it would be believed, or cleaned up. One of ours, or of root's, is.
    """
    try:
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid in (0, os.getuid()):
            found = folder.stat()
    except FileNotFoundError:
        return
    if not ours(found):
        raise PermissionError(f"{folder} belongs to somebody else")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is no folder")
    if found.st_mode & 0o022:
        folder.chmod(0o700)


def ours(found: os.stat_result) -> bool:
    """Others may have put something there while they could."""
    return found.st_uid == os.getuid()
