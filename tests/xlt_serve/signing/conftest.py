"""A bundle that is whole but runs nothing, and pairs of keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Manifest
from xlt_serve.signing import key_files


class Pair(NamedTuple):
    private: Path
    public: Path


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Path]:
    def made(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
        manifest = Manifest(
            name=name,
            version="",
            task="none",
            pair=False,
            labels=("a", "b"),
            source_language="en",
            languages=("en",),
            method={},
            graphs={},
            tokenizer="tokenizer.json",
            max_length=16,
            pad_id=0,
        )
        return bundles.save(folder, manifest).path

    return made


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[str], Pair]:
    def made(name: str) -> Pair:
        private = tmp_path / f"{name}.pem"
        public, _ = key_files.write_new(private)
        return Pair(private, public)

    return made
