"""Which language: ``python -m benchmarks.language --data ../shared/data``.

SIB-200's dev sentences in 21 languages, whole and cut to their first 3 and 5 words (3 characters for
a word of Japanese and Chinese, 5 of Thai): the share that is right, wrong and left open, and the time
of a call. Ours beside py3langid with all its 97 languages (what the package had before), and with
these 21 alone. Languages outside the 21 (xSID's Danish, Indonesian, Kazakh, Serbian): the share
taken for one of them. None of these texts was trained on. Writes ``benchmarks/results/language.json``
and ``.md``; takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from xlt_serve.text import language
from xlt_serve.text.language import Detection

HERE = Path(__file__).parent
UNITS = {"ja": 3, "zh": 3, "th": 5}
Detect = Callable[[str], Detection]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "language.json")
    options = parser.parse_args()
    texts = {
        file.stem.removeprefix("dev-"): column(file)
        for file in sorted((options.data / "sib200").glob("dev-*.tsv"))
    }
    others = {
        lg: column(options.data / "xsid" / f"valid-{lg}.tsv") for lg in ("da", "id", "kk", "sr")
    }
    detectors: dict[str, Detect] = {
        "py3langid": py3langid(()),
        "py3langid among 21": py3langid(tuple(texts)),
        "ours": language.detect,
        "ours among 21": lambda text: language.detect(text, tuple(texts)),
    }
    results = {
        name: {
            **{f"first {n} words": measured(detect, cut(texts, n)) for n in (3, 5)},
            "whole": measured(detect, texts),
            "outside": outside(detect, others, set(texts)),
        }
        for name, detect in detectors.items()
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(results))
    print(markdown(results))


def column(file: Path) -> list[str]:
    header, *lines = file.read_text(encoding="utf-8").splitlines()
    place = header.split("\t").index("text")
    return [line.split("\t")[place] for line in lines]


def cut(texts: dict[str, list[str]], words: int) -> dict[str, list[str]]:
    return {
        lg: [t[: words * UNITS[lg]] if lg in UNITS else " ".join(t.split()[:words]) for t in mine]
        for lg, mine in texts.items()
    }


def py3langid(among: tuple[str, ...]) -> Detect:
    identifier = language._identifier(among)

    def detect(text: str) -> Detection:
        found, confidence = identifier.classify(text[:2000])
        return Detection(str(found) if confidence >= 0.5 else None, float(confidence))

    return detect


def measured(detect: Detect, texts: dict[str, list[str]]) -> dict[str, Any]:
    detect("warm up")
    rows, times = {}, []
    for lg, mine in texts.items():
        found = []
        for text in mine:
            begun = time.perf_counter()
            found.append(detect(text).language)
            times.append(time.perf_counter() - begun)
        right = sum(f == lg for f in found) / len(found)
        unsure = sum(f is None for f in found) / len(found)
        rows[lg] = {"right": right, "wrong": 1 - right - unsure, "unsure": unsure}
    means = {key: statistics.mean(row[key] for row in rows.values()) for key in rows["en"]}
    return {"mean": means, "median_ms": 1000 * statistics.median(times), "languages": rows}


def outside(detect: Detect, texts: dict[str, list[str]], known: set[str]) -> dict[str, float]:
    """The share of texts in other languages that is taken for one of ours."""
    return {
        lg: sum(detect(text).language in known for text in mine) / len(mine)
        for lg, mine in texts.items()
    }


def markdown(results: dict[str, Any]) -> str:
    lines = ["# Language identification", ""]
    lines += ["Right / wrong / unsure, per cent; mean of 21 languages, 99 sentences each.", ""]
    rows = []
    for name, found in results.items():
        parts = [found[part]["mean"] for part in ("first 3 words", "first 5 words", "whole")]
        foreign = statistics.mean(found["outside"].values())
        rows.append(
            [
                name,
                *(shares(part, digits=1) for part in parts),
                f"{found['whole']['median_ms']:.3f}",
                "–" if name.endswith("21") else f"{100 * foreign:.0f}",
            ]
        )
    head = ["", "3 words", "5 words", "whole", "ms (whole)", "foreign taken for ours"]
    lines += table(head, rows)
    lines += ["", "First three words, right / wrong / unsure by language:", ""]
    rows = [
        [lg, *(shares(found["first 3 words"]["languages"][lg]) for found in results.values())]
        for lg in results["ours"]["whole"]["languages"]
    ]
    lines += table(["language", *results], rows)
    return "\n".join(lines) + "\n"


def shares(row: dict[str, float], digits: int = 0) -> str:
    return " / ".join(f"{100 * row[key]:.{digits}f}" for key in ("right", "wrong", "unsure"))


if __name__ == "__main__":
    main()
