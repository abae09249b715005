from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from xlt_serve.bundle import MODELS, shipped
from xlt_serve.errors import BundleError, ItemError
from xlt_serve.text import patterns, tokens
from xlt_serve.text.tokens import LARGEST, Encoder

EVIL = r"(x+)+$"
AWKWARD = [
    (word * LARGEST)[: LARGEST // len(word.encode()) * len(word) // 2] + "!"
    for word in ("a", "Aa", " ", "\n", " \n", "'s", "中", "ʰ")
]


def written(tmp_path: Path, encoder: Path, **parts: Any) -> Path:
    """A tokenizer file with parts of it replaced."""
    content = json.loads((encoder / "tokenizer.json").read_text(encoding="utf-8"))
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content | parts), encoding="utf-8")
    return file


def split(pattern: str) -> dict[str, Any]:
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


def replaced(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": " "}


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": split(EVIL)},
        {"normalizer": replaced(EVIL)},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [replaced(" {2,}"), {"type": "Lowercase"}, replaced(EVIL)],
            }
        },
    ],
)
def test_an_unknown_expression_needs_consent(
    tmp_path: Path,
    encoders: dict[str, Path],
    parts: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = written(tmp_path, encoders["bert"], **parts)
    with pytest.raises(BundleError, match=r"\(x\+\)\+.*no known tokenizer.*XLT_TRUST_TOKENIZER=1"):
        Encoder(file, 64)
    assert Encoder(file, 64, trust=True).encode(["rain"])
    monkeypatch.setenv(patterns.TRUST, "1")
    assert Encoder(file, 64).encode(["rain"])
    with pytest.raises(BundleError):
        Encoder(file, 64, trust=False)


def test_known_expressions_need_none(tmp_path: Path, encoders: dict[str, Path]) -> None:
    for pattern in patterns.KNOWN:
        for parts in ({"pre_tokenizer": split(pattern)}, {"normalizer": replaced(pattern)}):
            patterns.check(written(tmp_path, encoders["bert"], **parts))
    for name in shipped():
        patterns.check(MODELS / name / "tokenizer.json")


def test_no_known_expression_is_slow_on_any_large_text() -> None:
    """What a client may send is at most ``LARGEST``: squares of it would be seconds."""
    for pattern in patterns.KNOWN:
        tried = (pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str,)
        for run in (*tried, normalizers.Replace(Regex(pattern), " ").normalize_str):
            for text in AWKWARD:
                start = time.process_time()
                run(text)
                took = time.process_time() - start
                assert took < 1, f"{pattern!r} took {took:.1f} s over {text[:4]!r}…"


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff", b"{"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    for trust in (False, True):
        with pytest.raises(BundleError, match="is not a tokenizer file"):
            Encoder(file, 64, trust)


def test_a_tokenizer_without_tokens_is_refused(tmp_path: Path, encoders: dict[str, Path]) -> None:
    file = written(tmp_path, encoders["bert"], normalizer=replaced("[a-z]"))
    with pytest.raises(BundleError, match="makes no token"):
        Encoder(file, 64, trust=True)


def test_a_panic_of_the_library_is_the_error_of_its_text(
    tmp_path: Path, encoders: dict[str, Path]
) -> None:
    encoder = Encoder(
        written(tmp_path, encoders["bert"], pre_tokenizer=split(EVIL)), 64, trust=True
    )
    good, bad, also_good = encoder.encode(["rain", "x" * 40 + "!", "wind"])
    assert [good, also_good] == encoder.encode(["rain", "wind"])
    assert isinstance(bad, ItemError)
    assert bad.code == "not_tokenised"
    assert str(bad).startswith("41 characters: the tokenizer fails on it (")
    pairs = encoder.encode([("rain", "wind"), ("rain", "x" * 40 + "!")])
    assert [isinstance(pair, ItemError) for pair in pairs] == [False, True]


def test_a_tokenizer_that_panics_on_all_is_refused(
    tmp_path: Path, encoders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, encoders["bert"], pre_tokenizer=split(EVIL))
    monkeypatch.setattr(tokens, "SAMPLE", "x" * 40 + "!")
    with pytest.raises(BundleError, match=r"the tokenizer: fails on .* \(.*retry-limit"):
        Encoder(file, 64, trust=True)
