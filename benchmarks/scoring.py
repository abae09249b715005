"""How fast is `xlt score`, and does it lose a row? ``python -m benchmarks.scoring``.

Four parts, each by itself with ``--part``:

- ``small``: mixed-length texts in 21 languages on the shipped bundle's encoder: `xlt score` as a
  process of its own, against ``transformers.pipeline(batch_size=32)`` on the same weights, and
  against the bare session fed with perfect batches.
- ``base``: the same for XLM-R-base's shape with random weights, in fp32 and int8.
- ``memory``: the largest memory of a run over 10⁴ and over 10⁶ rows, with a session that does
  nothing, so that what is measured is everything around it.
- ``kills``: a run that is killed at random moments, compared byte for byte with one that isn't.

The systems take turns in rounds on the same texts and cores. What counts is the median of the ratios
within a round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xlt_serve.bench.machine import machine
from xlt_serve.bundle import MODELS

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent
DATA = Path(os.environ.get("XLT_DATA", ROOT.parent / "shared" / "data"))
GOALS = {"fp32": 2.5, "int8": 6.0, "session": 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--texts", type=int, default=50_000, help="of the small model")
    parser.add_argument("--base-texts", type=int, default=1_000)
    parser.add_argument(
        "--pipeline-texts", type=int, default=2_000, help="at most, for the pipeline"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the memory part")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kill-rows", type=int, default=12_000)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "scoring")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scoring.json")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["machine"] = machine()
    for part in options.part:
        print(f"== {part}", flush=True)
        results[part] = PARTS[part](options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(json.dumps(results[part], indent=1, ensure_ascii=False), flush=True)
    options.out.with_suffix(".md").write_text(markdown(results))


def small(options: argparse.Namespace) -> dict[str, Any]:
    checkpoint = options.work / "small"
    tokenizer = MODELS / "encoders" / "small"
    bundles = prepared(
        checkpoint, tokenizer, lambda: encoder_of(str(tokenizer), checkpoint), options.work
    )
    return raced(options, checkpoint, bundles, mixed(options.texts))


def base(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.peers import checkpoint as shape

    checkpoint = options.work / "base"
    tokenizer = DATA / "tokenizers" / "xlm-roberta"
    bundles = prepared(checkpoint, tokenizer, lambda: shape.save(checkpoint), options.work)
    return raced(options, checkpoint, bundles, mixed(options.base_texts))


def encoder_of(name: str, folder: Path) -> None:
    """A classifier with a fresh head on an encoder: its speed is what counts here."""
    import torch
    from xlt_training.loop.pretrained import load_classifier

    torch.manual_seed(0)
    load_classifier(name, {"num_labels": 7}).save_pretrained(folder)


def prepared(
    checkpoint: Path, tokenizer: Path, make: Callable[[], Any], work: Path
) -> dict[str, Path]:
    """A transformers folder with its tokenizer, and a bundle of it in each precision."""
    from transformers import AutoConfig
    from xlt_training.loop.pretrained import load_tokenizer, save_tokenizer

    from benchmarks import random_bundles

    out = {p: work / f"{checkpoint.name}-{p}" for p in random_bundles.PRECISIONS}
    if all((folder / "bundle.json").is_file() for folder in out.values()):
        return out
    checkpoint.mkdir(parents=True, exist_ok=True)
    make()
    words = load_tokenizer(tokenizer)
    if words.pad_token is None:  # the bare tokenizer.json does not say which piece it is
        pad = AutoConfig.from_pretrained(checkpoint).pad_token_id
        words.pad_token = words.convert_ids_to_tokens(pad)
    save_tokenizer(words, checkpoint)
    random_bundles.in_each_precision(checkpoint, out, max_length=128)
    return out


def mixed(count: int) -> list[str]:
    """Sentences of all 21 languages, one to four of them together, in a random order."""
    pools = []
    for file in sorted((DATA / "sib200").glob("train-*.tsv")):
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        pools.append([line.split("\t")[2] for line in lines])
    generator = random.Random(0)
    out = []
    for number in range(count):
        pool = pools[number % len(pools)]
        sentences = min(4, 1 + int(generator.expovariate(1.2)))
        whole = " ".join(generator.choices(pool, k=sentences))
        # Short ones too: headlines and search words are what most people classify.
        words = whole.split(" ")
        keep = (
            len(words)
            if generator.random() < 0.5
            else generator.randint(2, max(2, len(words) // 2))
        )
        out.append(" ".join(words[:keep]) if len(words) > 1 else whole[: max(8, len(whole) // 2)])
    generator.shuffle(out)
    return out


def raced(
    options: argparse.Namespace, checkpoint: Path, bundles: dict[str, Path], texts: list[str]
) -> dict[str, Any]:
    """Texts per second of each system, and their ratios round by round."""
    source = write_texts(options.work / f"{checkpoint.name}.jsonl", texts)
    speeds: dict[str, list[float]] = {}
    labels: dict[str, list[str]] = {}
    for turn in range(options.rounds):
        part = texts[: options.pipeline_texts]
        speeds.setdefault("pipeline", []).append(piped(checkpoint, part))
        for precision, bundle in bundles.items():
            rate, found = scored(
                bundle, source, options.work / f"{checkpoint.name}-{precision}.out.jsonl"
            )
            speeds.setdefault(f"xlt score {precision}", []).append(rate)
            labels[precision] = found
            speeds.setdefault(f"session {precision}", []).append(bare(bundle, texts))
        print(
            {name: round(rates[-1], 1) for name, rates in speeds.items()},
            f"round {turn + 1}",
            flush=True,
        )

    def ratio(first: str, second: str) -> float:
        pairs = zip(speeds[first], speeds[second], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    same = sum(a == b for a, b in zip(labels["fp32"], labels["int8"], strict=True)) / len(texts)
    return {
        "texts": len(texts),
        "mean_characters": round(statistics.mean(map(len, texts)), 1),
        "texts_per_second": {name: [round(r, 1) for r in rates] for name, rates in speeds.items()},
        "ratios": {
            p: {
                "to the pipeline": ratio(f"xlt score {p}", "pipeline"),
                "goal": GOALS[p],
                "to the bare session": ratio(f"xlt score {p}", f"session {p}"),
                "session goal": GOALS["session"],
            }
            for p in bundles
        },
        "int8 labels as fp32": round(same, 4),
    }


def scored(bundle: Path, source: Path, out: Path) -> tuple[float, list[str]]:
    """`xlt score` as users run it. Its own figure: reading to writing, without loading."""
    fresh(out)
    command = xlt_score(str(source), str(out), "--bundle", str(bundle))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    found = re.search(r"([\d.,]+) rows/s", done.stderr)
    assert found, done.stderr
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return float(found[1].replace(",", "")), [row["xlt_label"] for row in rows]


def bare(bundle: Path, texts: Sequence[str]) -> float:
    """Perfect batches, made beforehand, and nothing else: the better of both ways to use the cores."""
    source = write_texts(bundle.parent / "texts.jsonl", texts)
    return program("bare", str(bundle), str(source))


def piped(checkpoint: Path, texts: Sequence[str]) -> float:
    """In the order in which the texts come, as the pipeline takes them."""
    source = write_texts(checkpoint.parent / "texts.jsonl", texts)
    return program("pipeline", str(checkpoint), str(source))


def write_texts(file: Path, texts: Sequence[str]) -> Path:
    rows = (json.dumps({"id": n, "text": t}, ensure_ascii=False) for n, t in enumerate(texts))
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return file


def program(name: str, *arguments: str) -> float:
    """What one of ``benchmarks.scoring_programs`` prints, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scoring_programs", name, *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def xlt_score(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "xlt_serve.cli", "score", *arguments]


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """The high-water mark of whole processes."""
    found: dict[str, Any] = {}
    for ending in ("csv", "parquet"):
        for rows in sorted({10_000, 100_000, options.rows}):
            source = options.work / f"rows-{rows}.csv"
            with source.open("w", encoding="utf-8") as handle:
                handle.write("id,text\n")
                for number in range(rows):
                    handle.write(
                        f"{number},das ist der Text Nummer {number} {'mit Worten ' * (number % 9)}\n"
                    )
            out = options.work / f"rows.{ending}"
            found[f"{ending} {rows}"] = round(program("nothing", str(source), str(out)) / 1024, 1)
            print(ending, rows, found[f"{ending} {rows}"], "MB", flush=True)
            source.unlink()
    return {"largest_mb": found}


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """The real bundle and the real command, killed at random moments."""
    texts = mixed(options.kill_rows)
    source = write_texts(options.work / "kills.jsonl", texts)
    whole, out = options.work / "whole.jsonl", options.work / "killed.jsonl"
    fresh(whole)
    fresh(out)
    how = ("--window", "50", "--quiet")
    begun = time.perf_counter()
    subprocess.run(xlt_score(str(source), str(whole), *how), env=environment(), check=True)
    seconds = time.perf_counter() - begun
    command = xlt_score(str(source), str(out), *how)
    generator = random.Random(0)
    hits = 0
    for _ in range(options.kills):
        process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
        journal = Path(f"{out}.partial") / "journal.jsonl"
        before = journal.stat().st_size if journal.exists() else 0
        # Loading takes seconds, and a kill in there is no art: wait for new work first.
        while process.poll() is None and (not journal.exists() or journal.stat().st_size == before):
            time.sleep(0.01)
        time.sleep(generator.random() * seconds / options.kills / 2)
        if process.poll() is None:
            hits += 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        if out.exists():
            break
    subprocess.run(command, env=environment(), check=True)
    ids = [json.loads(line)["id"] for line in out.open(encoding="utf-8")]
    return {
        "rows": len(texts),
        "kills_that_hit": hits,
        "lost_or_doubled": len(texts) - len(set(ids)) + len(ids) - len(set(ids)),
        "same_bytes": hashlib.sha256(out.read_bytes()).hexdigest()
        == hashlib.sha256(whole.read_bytes()).hexdigest(),
    }


def fresh(out: Path) -> None:
    """Nothing of an earlier run: it would be gone on with, or be done already."""
    out.unlink(missing_ok=True)
    Path(f"{out}.score.json").unlink(missing_ok=True)
    shutil.rmtree(f"{out}.partial", ignore_errors=True)


def environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }


def markdown(results: dict[str, Any]) -> str:
    found = results["machine"]
    lines = [
        "# Batch scoring",
        "",
        f"{found['processor']}, {found['cores']} cores, load before {found['load_before']}. Texts per second, "
        "median of the rounds; ratios are medians of the rounds' own.",
        "",
        "| model | pipeline | xlt score fp32 | × pipeline (goal 2.5) | xlt score int8 | × pipeline (goal 6) "
        "| of the bare session, fp32 / int8 (goal .9) |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in ("small", "base"):
        if part not in results:
            continue
        one = results[part]
        speed = {name: statistics.median(rates) for name, rates in one["texts_per_second"].items()}
        ratios = one["ratios"]
        lines.append(
            f"| {part}, {one['texts']:,} texts | {speed['pipeline']:.0f} | {speed['xlt score fp32']:.0f} | "
            f"{ratios['fp32']['to the pipeline']:.2f} | {speed['xlt score int8']:.0f} | "
            f"{ratios['int8']['to the pipeline']:.2f} | {ratios['fp32']['to the bare session']:.2f} / "
            f"{ratios['int8']['to the bare session']:.2f} |"
        )
    if "memory" in results:
        shown = ", ".join(
            f"{name} rows: {mb} MB" for name, mb in results["memory"]["largest_mb"].items()
        )
        lines += ["", f"Largest memory with a session that does nothing: {shown}."]
    if "kills" in results:
        k = results["kills"]
        lines += [
            "",
            f"Killed {k['kills_that_hit']} times over {k['rows']:,} rows: {k['lost_or_doubled']} rows lost or "
            f"doubled, output {'the same' if k['same_bytes'] else 'NOT the same'} byte for byte.",
        ]
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "small": small,
    "base": base,
    "memory": memory,
    "kills": kills,
}

if __name__ == "__main__":
    main()
