"""The service against its peers: ``python -m benchmarks.service --data ../shared/data``.

All servers have the same random weights in the shape of XLM-R-base. Texts have mixed lengths, at most
128 tokens, in 21 languages. One server runs at a time, on all cores; they take turns in rounds. Peers:
infinity-emb (torch and, where it starts, onnx) and BentoML around transformers.pipeline with BentoML's
own batching. Beside them the bare session fed with perfect batches: no queue, no HTTP, no tokenising.

Then on the small model: a lone request against the session alone, start against an empty BentoML
service, and memory over 20,000 requests. A measurement is marked invalid if the load generator took
more than a tenth of the cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service_peers import LENGTH, Peer, bentoml, peers, prepare, served, small
from benchmarks.service_report import markdown
from xlt_serve.bench import loops, machine
from xlt_serve.bench.http_load import under_load
from xlt_serve.bench.loops import LoadRun
from xlt_serve.classifier import load
from xlt_serve.errors import XltError
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.session import available_cores

HERE = Path(__file__).parent
CLIENTS = (1, 8, 32, 128)
PACKAGES = ("bentoml", "onnxruntime", "torch", "transformers", "tokenizers")


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
        "cores": available_cores(),
        "processor": machine.processor(),
        "versions": {name: v for name, v in machine.versions().items() if name in PACKAGES},
    }


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
            except XltError as error:
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
    bodies = peer.bodies(texts)
    random.Random(seed).shuffle(bodies)
    with served(peer) as server:
        out["ready_seconds"] = server.seconds
        for clients in options.clients:
            before = padding(server.url)
            run = under_load(
                server.url,
                bodies,
                lambda send, n=clients: loops.closed(send, n, options.seconds),  # type: ignore[misc]
            )
            found = summary(run, warm_up=options.seconds / 5, end=options.seconds)
            out["closed"][str(clients)] = found | waste(before, padding(server.url))
        # The first server sets the rates for all: half and 0.7 of what it can do.
        rate = rate or 0.7 * max(row["per_second"] for row in out["closed"].values())
        out["open_rate"] = rate
        for share in (0.5 / 0.7, 1.0):
            run = under_load(
                server.url,
                bodies,
                lambda send, r=share * rate: loops.open_loop(  # type: ignore[misc]
                    send, r, options.seconds, seed=seed, patience=60
                ),
            )
            out["open"][f"{share * rate:.1f}"] = summary(run, warm_up=0, end=run.seconds)
    return out


def summary(run: LoadRun, warm_up: float, end: float, deadline: float = 1.0) -> dict[str, Any]:
    """Of the requests that were answered after ``warm_up`` seconds. Throughput counts answers until
    ``end``. Latency, in seconds, counts later answers, too: else the slower a server, the faster it
    would look. No answer counts as the slowest."""
    counted = LoadRun([s for s in run.samples if s.done >= warm_up], run.seconds, run.generator)
    good = [s for s in counted.samples if s.reply.status == 200]
    latencies = np.array(loops.times(counted) or [float("nan")]) / 1000
    statuses = loops.statuses(counted)
    return {
        "per_second": sum(s.done <= end for s in good) / (end - warm_up),
        **{f"p{q}": float(np.percentile(latencies, q)) for q in (50, 90, 95, 99)},
        "max": float(latencies.max()),
        "good_within_1s": sum(s.latency <= deadline for s in good) / max(1, statuses.total()),
        "statuses": {str(status): number for status, number in statuses.items()},
        "generator_cpu": run.generator / available_cores(),
    }


def padding(url: str) -> dict[str, float]:
    """Our own counters, where there are any."""
    out = {"xlt_tokens_total": 0.0, "xlt_padded_tokens_total": 0.0}
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
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
    classifier = load(folder, threads=available_cores())
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

        at_once = available_cores() if single_threaded else 1
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
    peer = small()
    with served(peer) as server:
        run = under_load(
            server.url,
            peer.bodies(texts),
            lambda send: loops.closed(send, 1, 0.8 * seconds, warm_up=0.2 * seconds),
        )
    session, whole = statistics.median(alone), statistics.median(loops.times(run)) / 1000
    return {
        "session_ms": 1000 * session,
        "request_ms": 1000 * whole,
        "overhead_ms": 1000 * (whole - session),
        "generator_cpu": run.generator / available_cores(),
    }


def start(rounds: int) -> dict[str, float]:
    """Seconds until ready, ours and an empty BentoML service's, the medians of turns."""
    found: dict[str, list[float]] = {"empty": [], "xlt small": []}
    for _ in range(max(3, rounds)):
        for peer in (bentoml("empty", "Empty"), small()):
            with served(peer) as server:
                found[peer.name].append(server.seconds)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return medians | {"difference": medians["xlt small"] - medians["empty"]}


def memory(texts: list[str], requests: int) -> dict[str, Any]:
    """Resident megabytes of the worker after each tenth of the requests."""
    import psutil

    peer = small()
    with served(peer) as server:
        process = psutil.Process(server.process.pid)
        seen = []
        done = 0
        while done < requests:
            part = 0
            while part < requests / 10:
                run = under_load(
                    server.url, peer.bodies(texts), lambda send: loops.closed(send, 16, 5)
                )
                part += loops.statuses(run)[200]
            done += part
            family = [process, *process.children(recursive=True)]
            seen.append(max(one.memory_info().rss for one in family) / 1e6)
    return {"requests": done, "megabytes": seen, "growth_after_first_tenth": seen[-1] / seen[0]}


if __name__ == "__main__":
    main()
