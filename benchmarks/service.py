"""The service against its peers: ``python -m benchmarks.service --data ../shared/data``.

XLM-R-base shape, random weights, the same for all; texts of mixed lengths in 21 languages, at most 128
tokens; all cores for each, one server at a time, rounds that take turns. Peers: infinity-emb (torch
and, where it starts, onnx), BentoML around transformers.pipeline with BentoML's own batching, and the
bare session fed with perfect batches, which has no queue, no HTTP and no tokenising to do.

Then on the small model: a lone request against the session alone, start against an empty BentoML
service, and memory over 20,000 requests. A measurement whose generator took more than a tenth of the
cores is marked invalid.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import Target, arrivals, closed, cores
from benchmarks.peers import checkpoint, environments
from xlt_serve.classifier import load
from xlt_serve.runtime.batching import plan

HERE = Path(__file__).parent
ROOT = HERE.parent
LENGTH = 128
CLIENTS = (1, 8, 32, 128)
GENERATOR_LIMIT = 0.1
PORT = 3999


@dataclass(frozen=True)
class Peer:
    """``command`` starts it on PORT; ``body`` is a request for one text."""

    name: str
    command: list[str]
    environment: dict[str, str]
    path: str
    ready: str
    body: Callable[[str], Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/service"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "service.json")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, nargs="*", default=list(CLIENTS))
    parser.add_argument("--peers", nargs="*", default=None, help="only these")
    parser.add_argument("--requests", type=int, default=20_000, help="of the memory test")
    parser.add_argument(
        "--parts", nargs="*", default=["peers", "lone", "start", "memory"], help="what to measure"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers are ended on every way out
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    texts = mixed(options.data)
    results["setting"] = setting(texts, options.data)
    if "peers" in options.parts:
        results["peers"] = compare(options, texts)
    if "lone" in options.parts:
        results["lone"] = lone(texts, options.seconds)
    if "start" in options.parts:
        results["start"] = start(options.rounds)
    if "memory" in options.parts:
        results["memory"] = memory(texts, options.requests)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    report = markdown(results)
    options.out.with_suffix(".md").write_text(report, encoding="utf-8")
    print(report)


def mixed(data: Path, seed: int = 0) -> list[str]:
    """Half are the beginnings of sentences, a third sentences, the rest two of them."""
    generator = random.Random(seed)
    out = []
    for file in sorted((data / "sib200").glob("dev-*.tsv")):
        rows = file.read_text(encoding="utf-8").splitlines()[1:]
        sentences = [row.split("\t")[2] for row in rows]
        for sentence in generator.sample(sentences, 24):
            kind = generator.random()
            if kind < 0.5:
                cut = max(8, len(sentence) // 3)
                sentence = sentence[:cut]
            elif kind > 0.85:
                sentence += " " + generator.choice(sentences)
            out.append(sentence)
    generator.shuffle(out)
    return out


def setting(texts: Sequence[str], data: Path) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data / "tokenizers" / "xlm-roberta" / "tokenizer.json"))
    lengths = [min(LENGTH, len(tokenizer.encode(text).ids)) for text in texts]
    return {
        "texts": len(texts),
        "tokens": {
            "mean": statistics.mean(lengths),
            **{f"p{q}": float(np.percentile(lengths, q)) for q in (10, 50, 90, 99)},
        },
        "cores": cores(),
        "processor": platform.processor() or platform.machine(),
        "versions": {
            name: __import__("importlib.metadata").metadata.version(name)
            for name in ("bentoml", "onnxruntime", "torch", "transformers", "tokenizers")
        },
    }


# The weights, as everyone wants them.


def prepare(work: Path, data: Path) -> dict[str, Path]:
    """The checkpoint with its tokenizer, and bundles of it."""
    folder = work / "checkpoint"
    checkpoint.save(folder)
    tokenizer = data / "tokenizers" / "xlm-roberta" / "tokenizer.json"
    shutil.copy(tokenizer, folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "XLMRobertaTokenizerFast",
                "model_max_length": LENGTH,
                **{"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>"},
                **{"sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
                "mask_token": "<mask>",
            }
        )
    )
    if not (folder / "onnx" / "model.onnx").is_file():  # infinity's optimum engine wants it there
        script = str(HERE / "peers" / "with_optimum.py")
        where = ["--checkpoint", str(folder), "--folder", str(folder / "onnx")]
        with contextlib.suppress(environments.NotInstalled):  # then that peer does not start
            python = str(environments.python("optimum"))
            subprocess.run([python, script, "make", *where, "--precision", "fp32"])
    out = {"checkpoint": folder}
    for precision in ("fp32", "int8"):
        out[precision] = work / precision
        if not (out[precision] / "bundle.json").is_file():
            bundle(folder, out[precision], precision)
    return out


def bundle(source: Path, folder: Path, precision: str) -> None:
    from xlt_training.export import graph, weights
    from xlt_training.export import int8 as quantize
    from xlt_training.loop.network import Classifier
    from xlt_training.loop.pretrained import load_classifier, load_tokenizer

    from xlt_serve import bundle as bundles

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    hf = load_classifier(str(source), {})
    plain = graph.plain(Classifier(hf, load_tokenizer(source), max_length=LENGTH).eval())
    weights.save({"plain": quantize.int8(plain) if precision == "int8" else plain}, folder)
    shutil.copy(source / "tokenizer.json", folder)
    described = bundles.Graph(
        "plain.onnx", tuple(node.name for node in plain.graph.input), ("logits",), precision
    )
    bundles.save(
        folder,
        bundles.Manifest(
            name=f"xlmr-base-{precision}",
            version="",
            task="random weights",
            pair=False,
            labels=tuple(f"LABEL_{number}" for number in range(checkpoint.LABELS)),
            source_language="en",
            languages=(),
            method={},
            graphs={"plain": described},
            tokenizer="tokenizer.json",
            max_length=LENGTH,
            pad_id=1,
        ),
    )


# The contestants.


def peers(made: dict[str, Path], wanted: Sequence[str] | None) -> list[Peer]:
    threads = str(cores())
    ours = [sys.executable, "-m", "xlt_serve.cli", "serve", "--port", str(PORT), "--bundle"]
    out = [
        Peer(
            f"xlt {precision}",
            [*ours, str(made[precision].absolute())],
            {"XLT_MAX_WAIT": "60", "XLT_STATE": str(made[precision].absolute().parent / "state")},
            "/classify",
            "/readyz",
            lambda text: {"texts": [text]},
        )
        for precision in ("int8", "fp32")
    ]
    out.append(
        Peer(
            "bentoml + pipeline",
            [
                sys.executable,
                "-m",
                "bentoml",
                "serve",
                "benchmarks.peers.plain_bentoml:Plain",
                "--port",
                str(PORT),
            ],
            {"CHECKPOINT": str(made["checkpoint"].absolute()), "THREADS": threads},
            "/classify",
            "/readyz",
            lambda text: {"texts": [text]},
        )
    )
    for engine in ("torch", "optimum"):
        name = f"infinity {engine}"
        if wanted is not None and name not in wanted:
            continue
        try:
            python = environments.python("infinity")
        except environments.NotInstalled as error:
            print(f"{name}: not installed ({error})", file=sys.stderr)
            continue
        out.append(
            Peer(
                name,
                [
                    str(python.parent.absolute() / "infinity_emb"),
                    "v2",
                    "--port",
                    str(PORT),
                    "--model-id",
                    str(made["checkpoint"].absolute()),
                    "--engine",
                    engine,
                    "--served-model-name",
                    "m",
                    "--device",
                    "cpu",
                    "--batch-size",
                    "32",
                    "--url-prefix",
                    "",
                    # Its own warm-up sends the optimum engine texts longer than XLM-R has positions.
                    *(["--no-model-warmup"] if engine == "optimum" else []),
                ],
                {"OMP_NUM_THREADS": threads, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"},
                "/classify",
                "/health",
                lambda text: {"model": "m", "input": [text]},
            )
        )
    return [peer for peer in out if wanted is None or peer.name in wanted]


@contextlib.contextmanager
def served(peer: Peer, seconds: float = 300) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """The server, and how long it took until it was ready."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BENTOML_DO_NOT_TRACK": "true"}
    environment |= peer.environment
    begun = time.perf_counter()
    log = Path("build") / "service" / f"{peer.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as handle:
        process = subprocess.Popen(
            peer.command, env=environment, stdout=handle, stderr=handle, start_new_session=True
        )
    try:
        while not answers(f"http://127.0.0.1:{PORT}{peer.ready}"):
            if process.poll() is not None or time.perf_counter() - begun > seconds:
                raise RuntimeError(f"{peer.name} did not start, see {log}")
            time.sleep(0.02)
        yield process, time.perf_counter() - begun
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# What is measured.


def compare(options: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    made = prepare(options.work, options.data)
    rounds: list[dict[str, Any]] = []
    rate = 0.0
    for number in range(options.rounds):
        found: dict[str, Any] = {}
        for precision in ("int8", "fp32"):
            found[f"bare {precision}"] = bare(made[precision], texts, options.seconds)
        for peer in peers(made, options.peers):
            try:
                found[peer.name] = measured(peer, texts, options, rate, number)
            except RuntimeError as error:
                found[peer.name] = {"failed": str(error)}
                continue
            rate = rate or found[peer.name]["open_rate"]
            print(json.dumps({peer.name: found[peer.name]}), file=sys.stderr, flush=True)
        rounds.append(found)
    return {"rounds": rounds, "open_rate": rate}


def measured(
    peer: Peer, texts: list[str], options: argparse.Namespace, rate: float, seed: int
) -> dict[str, Any]:
    out: dict[str, Any] = {"closed": {}, "open": {}}
    with served(peer) as (_, seconds):
        out["ready_seconds"] = seconds
        target = Target(PORT, peer.path, [peer.body(text) for text in texts])
        for clients in options.clients:
            before = padding()
            found = asyncio.run(closed(target, clients, options.seconds, seed))
            out["closed"][str(clients)] = found.summary() | waste(before, padding())
        # The first server sets the rates for all: half and 0.7 of what it can do.
        rate = rate or 0.7 * max(row["per_second"] for row in out["closed"].values())
        out["open_rate"] = rate
        for share in (0.5 / 0.7, 1.0):
            found = asyncio.run(arrivals(target, share * rate, options.seconds, seed))
            out["open"][f"{share * rate:.1f}"] = found.summary()
    return out


def padding() -> dict[str, float]:
    """Our own counters, where there are any."""
    out = {"xlt_tokens_total": 0.0, "xlt_padded_tokens_total": 0.0}
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return out
    for line in text.splitlines():
        name = line.partition("{")[0]
        if name in out:
            out[name] += float(line.rsplit(" ", 1)[1])
    return out


def waste(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    padded = after["xlt_padded_tokens_total"] - before["xlt_padded_tokens_total"]
    real = after["xlt_tokens_total"] - before["xlt_tokens_total"]
    return {"padding_waste": 1 - real / padded} if padded else {}


def bare(folder: Path, texts: list[str], seconds: float) -> dict[str, float]:
    """Texts a second of the session alone, all lengths known beforehand: with all cores for one run, and
    with one for each; in batches of several sizes. ``per_second`` is the best of them."""
    classifier = load(folder, threads=cores())
    pieces = [tokens.pieces[0] for tokens in classifier.encoder.encode(texts)]  # type: ignore[union-attr]
    ways = [
        (budget, single_threaded) for single_threaded in (False, True) for budget in (128, 256, 512)
    ]
    mean = statistics.mean(piece.length for piece in pieces)
    found = {}
    for budget, single_threaded in ways:
        runner = classifier.runners.of("plain", single_threaded)
        cut = plan([piece.length for piece in pieces], budget)
        random.Random(0).shuffle(cut)  # a window need not end with the same lengths
        batches = [[pieces[i] for i in batch] for batch in cut]
        runner.run(batches[0])
        numbers = itertools.count()
        begun = time.perf_counter()
        end = begun + max(2.0, seconds / len(ways))

        def work(
            runner: Any = runner, batches: Any = batches, numbers: Any = numbers, end: float = end
        ) -> int:
            done = 0
            while time.perf_counter() < end:
                batch = batches[next(numbers) % len(batches)]
                runner.run(batch)
                done += sum(piece.length for piece in batch)
            return done

        at_once = cores() if single_threaded else 1
        with ThreadPoolExecutor(at_once) as pool:
            tasks = [pool.submit(work) for _ in range(at_once)]
            # By tokens: a short window may hold more of the long texts than another.
            done = sum(task.result() for task in tasks) / mean
        way = "a run on each core" if single_threaded else "a run on all cores"
        found[f"{way}, {budget} tokens"] = done / (time.perf_counter() - begun)
    return {"per_second": max(found.values()), **found}


def lone(texts: list[str], seconds: float) -> dict[str, float]:
    """The small model: what a request takes beside the run of its batch."""
    classifier = load()
    pieces = [tokens.pieces[0] for tokens in classifier.encoder.encode(texts)]  # type: ignore[union-attr]
    runner = classifier.runners.of("plain")
    alone = []
    for _ in range(3):
        for piece in pieces:
            begun = time.perf_counter()
            runner.run([piece])
            alone.append(time.perf_counter() - begun)
    peer = _small()
    with served(peer):
        target = Target(PORT, peer.path, [peer.body(text) for text in texts])
        found = asyncio.run(closed(target, 1, seconds))
    session, whole = statistics.median(alone), statistics.median(found.seconds)
    return {
        "session_ms": 1000 * session,
        "request_ms": 1000 * whole,
        "overhead_ms": 1000 * (whole - session),
        "generator_cpu": found.cpu,
    }


def _small() -> Peer:
    command = [sys.executable, "-m", "xlt_serve.cli", "serve", "--port", str(PORT)]
    state = {"XLT_STATE": str((Path("build") / "service" / "state-small").absolute())}
    return Peer("xlt small", command, state, "/classify", "/readyz", lambda text: {"texts": [text]})


def start(rounds: int) -> dict[str, float]:
    """Seconds until ready, ours and an empty BentoML service's, the medians of turns."""
    empty = Peer(
        "empty",
        [
            sys.executable,
            "-m",
            "bentoml",
            "serve",
            "benchmarks.peers.plain_bentoml:Empty",
            "--port",
            str(PORT),
        ],
        {},
        "/nothing",
        "/readyz",
        lambda text: {},
    )
    found: dict[str, list[float]] = {"empty": [], "xlt small": []}
    for _ in range(max(3, rounds)):
        for peer in (empty, _small()):
            with served(peer) as (_, seconds):
                found[peer.name].append(seconds)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return medians | {"difference": medians["xlt small"] - medians["empty"]}


def memory(texts: list[str], requests: int) -> dict[str, Any]:
    """Resident megabytes of the worker after each tenth of the requests."""
    import psutil

    peer = _small()
    with served(peer) as (process, _):
        target = Target(PORT, peer.path, [peer.body(text) for text in texts])
        seen = []
        done = 0
        while done < requests:
            part = 0
            while part < requests / 10:
                part += asyncio.run(closed(target, 16, 5, seed=done)).answered
            done += part
            family = [process.pid, *(c.pid for c in psutil.Process(process.pid).children(True))]
            seen.append(max(psutil.Process(pid).memory_info().rss for pid in family) / 1e6)
    return {"requests": done, "megabytes": seen, "growth_after_first_tenth": seen[-1] / seen[0]}


# What is said about it.


def markdown(results: dict[str, Any]) -> str:
    lines = ["# The service against its peers", ""]
    tokens = results["setting"]["tokens"]
    lines.append(
        f"{results['setting']['texts']} texts in 21 languages, tokens: mean {tokens['mean']:.0f}, median"
        f" {tokens['p50']:.0f}, p90 {tokens['p90']:.0f}, p99 {tokens['p99']:.0f};"
        f" {results['setting']['cores']} cores. Means over rounds; latencies in ms."
    )
    lines += ["", "| | goal | measured |", "|---|---|---|"]
    lines += [f"| {name} | {goal} | {found} |" for name, goal, found in goals(results)]
    if "peers" in results:
        lines += ["", *_closed_table(results["peers"]["rounds"])]
    for part in ("lone", "start", "memory"):
        if part in results:
            shown = ", ".join(
                f"{name} {value:.3g}"
                for name, value in results[part].items()
                if not isinstance(value, list)
            )
            lines += ["", f"**{part}**: {shown}"]
    return "\n".join(lines) + "\n"


def goals(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What is wanted of the service, and what it does: ratios of one run."""
    out = []
    if "peers" in results:
        rounds = results["peers"]["rounds"]
        best = {name: _best(rounds, name) for found in rounds for name in found}
        others = {
            name: (rate, p99)
            for name, (rate, p99) in best.items()
            if rate and not name.startswith(("xlt", "bare"))
        }
        mine, half = best["xlt int8"], best["xlt fp32"]
        torch = others.get("infinity torch")
        if torch:
            out.append(("int8 to infinity's torch engine", "≥ 5", f"{mine[0] / torch[0]:.2f}"))
            out.append(("fp32 to it", "≥ 1.2", f"{half[0] / torch[0]:.2f}"))
            for name, own in (("int8", mine), ("fp32", half)):
                worst = max(own[1][load] / torch[1][load] for load in own[1] if load in torch[1])
                out.append((f"its p99 to {name}'s, worst load", "≥ 1", f"{1 / worst:.2f}"))
        if others:
            name = max(others, key=lambda other: others[other][0])
            out.append(
                (f"int8 to the best peer ({name})", "≥ 2", f"{mine[0] / others[name][0]:.2f}")
            )
        for precision, own in (("int8", mine), ("fp32", half)):
            share = own[0] / best[f"bare {precision}"][0]
            out.append((f"{precision} to the bare session", "≥ .85", f"{share:.2f}"))
        wasted = [
            (row["padding_waste"], clients)
            for found in rounds
            for clients, row in found["xlt int8"]["closed"].items()
        ]
        share, clients = max(wasted)
        out.append((f"padding at worst ({clients} clients)", "≤ .10", f"{share:.3f}"))
    for part, key, name, goal in (
        ("lone", "overhead_ms", "a lone request over the session, ms", "≤ 3"),
        ("start", "difference", "ready after an empty BentoML service, s", "≤ 3"),
        ("memory", "growth_after_first_tenth", "memory at the end to a tenth of the way", "flat"),
    ):
        if part in results:
            out.append((name, goal, f"{results[part][key]:.2f}"))
    return out


def _best(rounds: list[dict[str, Any]], name: str) -> tuple[float, dict[str, float]]:
    """The most texts a second, and the p99 of each closed load; means over rounds."""
    rows = [found[name] for found in rounds if name in found and "failed" not in found[name]]
    if not rows:
        return 0.0, {}
    if "closed" not in rows[0]:
        return statistics.mean(row["per_second"] for row in rows), {}
    loads = rows[0]["closed"]

    def mean(load_: str, key: str) -> float:
        return statistics.mean(row["closed"][load_][key] for row in rows if load_ in row["closed"])

    return max(mean(load_, "per_second") for load_ in loads), {x: mean(x, "p99") for x in loads}


def _closed_table(rounds: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for found in rounds for name in found))
    lines = [
        "| server | load | texts/s | p50 | p99 | padding | answers other than 200 | generator |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        rows = [found[name] for found in rounds if name in found and "failed" not in found[name]]
        if not rows:
            lines.append(f"| {name} | did not start | | | | | | |")
            continue
        if "closed" not in rows[0]:
            mean = statistics.mean(row["per_second"] for row in rows)
            lines.append(f"| {name} | perfect batches | {mean:.1f} | | | | | |")
            continue
        for kind, unit in (("closed", "clients"), ("open", "per second")):
            loads = list(dict.fromkeys(load for row in rows for load in row[kind]))
            for load_ in loads:
                there = [row[kind][load_] for row in rows if load_ in row[kind]]
                lines.append(_row(name, f"{load_} {unit}", there))
    return lines


def _row(name: str, load_: str, there: list[dict[str, Any]]) -> str:
    def mean(key: str) -> float:
        return statistics.mean(row[key] for row in there)

    other = sum(n for row in there for status, n in row["statuses"].items() if status != "200")
    wasted = f"{mean('padding_waste'):.3f}" if "padding_waste" in there[0] else ""
    cpu = max(row["generator_cpu"] for row in there)
    flag = " **invalid**" if cpu > GENERATOR_LIMIT else ""
    return (
        f"| {name} | {load_} | {mean('per_second'):.1f} | {1000 * mean('p50'):.0f} |"
        f" {1000 * mean('p99'):.0f} | {wasted} | {other} | {cpu:.3f}{flag} |"
    )


if __name__ == "__main__":
    main()
