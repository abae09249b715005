from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlt_serve import bundle as bundles
from xlt_serve.deploy import build_folder
from xlt_serve.deploy.build_folder import Shipment

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A build of the shipped bundle, without the bento."""
    count = iter(range(100))

    def written(names: tuple[str, ...] = ("topics",), signed: bool = False, **options: Any) -> Path:
        folder = tmp_path / f"build{next(count)}"
        folder.mkdir()
        bundle = bundles.load("topics")
        if signed:
            (tmp_path / "release.pub").write_text("a public key\n")
            options["signers"] = tmp_path / "release.pub"
        build_folder.write(Shipment(dict.fromkeys(names, bundle), **options), folder)
        return folder

    return written
