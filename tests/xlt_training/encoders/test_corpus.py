from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from xlt_training.encoders import corpus


def test_a_fingerprint_ignores_case_space_and_punctuation() -> None:
    assert corpus.fingerprint("Hello , World !") == corpus.fingerprint("hello, world!")
    assert corpus.fingerprint("Ｆｕｌｌ　ｗｉｄｔｈ") == corpus.fingerprint("full width")
    # Vowel signs go too: a row too many is dropped, never one too few.
    assert corpus.fingerprint("नमस्ते") == corpus.fingerprint("नमसत")
    assert corpus.fingerprint("one text") != corpus.fingerprint("another")


@pytest.mark.real
@pytest.mark.slow
def test_no_evaluation_text_is_left_but_enough_is(data: Path) -> None:
    """Against sets read here by other code, so that a mistake in the filter can't hide itself."""
    banned = corpus.evaluation_fingerprints(data) | corpus.noncommercial_fingerprints(data)
    sentences, pairs = corpus.sentences(data, banned), corpus.pairs(data, banned)
    assert len(sentences) > 500_000
    often = Counter(pair.language for pair in pairs)
    assert min(often[language] for language in ("ar", "bg", "de", "sw")) > 1000
    kept = {corpus.fingerprint(sentence.text) for sentence in sentences}
    for pair in pairs:
        kept |= {corpus.fingerprint(pair.english), corpus.fingerprint(pair.other)}
    for pattern, columns in (
        ("sib200/dev-*.tsv", [2]),
        ("sib200/test-*.tsv", [2]),
        ("xsid/valid-*.tsv", [2]),
        ("sentiment/dev-*.tsv", [1]),
        ("pawsx/dev-*.tsv", [1, 2]),
        ("nli/dev-*.tsv", [1, 2]),
        ("xnli/dev-*.tsv", [1, 2]),
    ):
        for file in data.glob(pattern):
            for line in file.read_text(encoding="utf-8").splitlines()[1:]:
                fields = line.split("\t")
                for column in columns:
                    mark = corpus.fingerprint(fields[column])
                    assert not mark or mark not in kept, (file.name, line)
