"""``xlt bench``: latency that one can believe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command, words
from xlt_serve.errors import UsageError, XltError

MORE = """examples:
  xlt bench topics --json now.json --html now.html         rows × lengths of the graph itself
  xlt bench topics --serve                                 the service, in closed and open loop
  xlt bench http://localhost:3000 --clients 1,8,32 --rates 50,100,200
  xlt bench http://localhost:3000 --modes plain,smoothed
  xlt bench topics --against transformers --checkpoint runs/topics
  xlt bench http://localhost:7997 --api infinity --model m an infinity server, the same texts
  xlt bench --compare before.json after.json --fail-if-slower 5%
  xlt bench topics --serve --compare before.json --fail-if-slower 5%    measure, then compare

The open loop sends requests at random moments (Poisson), fixed beforehand, and counts latency from
those moments: a server that stalls can't make the load generator wait, and so hide the stall.
--compare tests blocks of each run by permutation, corrected for the number of points. With
--fail-if-slower it fails (exit code 1) where a median or a 95th percentile is significantly more than
the given share slower, where errors are new or so much more frequent, and where a point was not
measured again. With one file it measures first, in the open loop at the rates of that file. Latencies
are of answers with status 200; no answer counts as the slowest. In the modes paired and translate,
texts are sent as their own translations. Provider cuda or tensorrt without a GPU is an error, never a
run on the CPU."""


class Slower(XltError):
    code = "slower"


class Faulty(XltError):
    code = "faulty"


def add(commands: Any) -> None:
    sub = command(
        commands,
        "bench",
        run,
        "measure the latency of a bundle or of a running service",
        MORE,
        "Measure the latency of a bundle's graph or of a running service.",
    )
    sub.add_argument("target", nargs="?", metavar="BUNDLE_OR_URL", help="default: topics")
    sub.add_argument("--json", type=Path, default=None, metavar="FILE", help="the whole run")
    sub.add_argument("--html", type=Path, default=None, metavar="FILE", help="one page with plots")
    sub.add_argument("--seconds", type=float, default=None, help="for each point (2; served: 10)")
    group = sub.add_argument_group("a bundle")
    group.add_argument(
        "--provider", type=words, default=["cpu"], metavar="cpu,cuda,tensorrt", help="default: cpu"
    )
    group.add_argument("--rows", type=_numbers, default=[1, 8, 32], metavar="1,8,32")
    group.add_argument("--lengths", type=_numbers, default=[16, 32, 64, 128], metavar="16,32,…")
    group.add_argument("--threads", type=int, default=0, help="default: all cores")
    group.add_argument(
        "--device", default=None, metavar="0,1|all", help="numbers of GPUs, each by itself (0)"
    )
    group.add_argument("--graphs", type=words, default=["plain"], help="plain,… or all (plain)")
    group.add_argument("--serve", action="store_true", help="serve it, and measure that, too")
    group.add_argument(
        "--against",
        type=words,
        default=[],
        metavar="NAME[=PYTHON],…",
        help="transformers, optimum, openvino, ctranslate2, in this or another environment",
    )
    group.add_argument(
        "--checkpoint", type=Path, default=None, metavar="DIR", help="the same weights for them"
    )
    group = sub.add_argument_group("a service")
    group.add_argument("--clients", type=_numbers, default=[1, 8, 32, 128], metavar="1,8,…")
    group.add_argument(
        "--rates",
        type=_floats,
        default=[],
        metavar="R,…",
        help="requests a second (default: a tenth of the best to saturation)",
    )
    group.add_argument("--modes", type=words, default=["plain"], metavar="plain,smoothed,paired")
    group.add_argument("--items", type=int, default=1, help="texts in a request (default: 1)")
    group.add_argument("--texts", type=Path, default=None, metavar="FILE", help="one a line")
    group.add_argument("--warm-up", type=float, default=2.0, metavar="S", help="default: 2 s")
    group.add_argument("--pair", action="store_true", help="lines are pairs, a tab between them")
    group.add_argument("--api", choices=("xlt", "infinity"), default="xlt")
    group.add_argument("--model", default="", help="its name at an infinity server")
    group = sub.add_argument_group("two runs")
    group.add_argument("--compare", type=Path, nargs="+", metavar=("BEFORE", "AFTER"))
    group.add_argument("--fail-if-slower", default=None, metavar="5%")


def run(options: argparse.Namespace) -> None:
    from xlt_serve.bench import compare

    given = options.compare or []
    if options.fail_if_slower and not given:
        raise UsageError("--fail-if-slower", "goes with --compare", "give two runs")
    if len(given) > 2:
        raise UsageError(f"--compare with {len(given)} files", "compares two runs", "give two")
    limit = compare.percentage(options.fail_if_slower) if options.fail_if_slower else 1.0
    runs = [compare.read(file) for file in given]
    if len(runs) == 2:
        _compare(runs[0], runs[1], limit, bool(options.fail_if_slower))
        return
    from xlt_serve.bench import measure as running
    from xlt_serve.bench import report as reports

    rates = compare.rates(runs[0]) if runs else {}
    report = running.run(plan(options, rates), lambda line: print(line, flush=True))
    for note in report["notes"]:
        print(f"note: {note}", file=sys.stderr)
    if options.json:
        running.write(report, options.json)
        print(f"json: {options.json}")
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        options.html.write_text(reports.page(report), encoding="utf-8")
        print(f"html: {options.html}")
    if runs:
        _compare(runs[0], report, limit, bool(options.fail_if_slower))


def plan(options: argparse.Namespace, earlier: Mapping[str, Sequence[float]]) -> Any:
    """``earlier``: rates of the open loop in another run, by mode, for where none are given."""
    from xlt_serve.bench import texts
    from xlt_serve.bench.measure import Plan, is_url
    from xlt_serve.bench.served import Load

    if options.seconds is not None and options.seconds <= 0:
        raise UsageError(f"--seconds {options.seconds}", "must be more than 0")
    if min(options.clients) < 1 or options.items < 1 or min([*options.rates, 1.0]) <= 0:
        raise UsageError("--clients, --rates and --items", "must be at least 1 (a rate above 0)")
    if is_url(options.target) and (options.against or options.serve):
        raise UsageError("--against and --serve", "go with a bundle", "give a bundle, not a URL")
    if options.against and not options.checkpoint:
        raise UsageError("--against", "needs the same weights", "give --checkpoint FOLDER")
    given: list[Any] = texts.read(options.texts) if options.texts else list(texts.mixed(512))
    if options.pair:
        given = [line.split("\t", 1) if "\t" in line else [line, line] for line in given]
    served: dict[str, Any] = {
        "clients": options.clients,
        "rates": options.rates,
        "earlier": earlier,
        "modes": options.modes,
        "items": options.items,
        "warm_up": options.warm_up,
        "pair": options.pair,
        "key": os.environ.get("XLT_API_KEY"),
        "api": options.api,
        "options": {"plain": {"model": options.model}} if options.api == "infinity" else {},
    }
    if options.seconds:
        served["seconds"] = options.seconds
    return Plan(
        target=options.target,
        providers=options.provider,
        rows=options.rows,
        lengths=options.lengths,
        threads=options.threads,
        devices=devices_of(options) or (0,),
        graphs=options.graphs,
        seconds=options.seconds or 2.0,
        serve=options.serve,
        load=Load(given, **served),
        against=options.against,
        checkpoint=options.checkpoint,
    )


def devices_of(options: argparse.Namespace) -> tuple[int, ...]:
    gpus = [provider for provider in options.provider if provider != "cpu"]
    return common.devices_of(options.device, gpus[0] if gpus else "cpu")


def _compare(before: dict[str, Any], after: dict[str, Any], limit: float, gate: bool) -> None:
    from xlt_serve.bench import compare

    if gate and (other := compare.other_loads(before, after)):
        key, earlier, later = other[0]
        raise UsageError(
            "the two runs",
            f"had other loads: {key} was {earlier} before and {later} after",
            "measure both with the same texts, --items and threads, or leave out --fail-if-slower",
        )
    lines = compare.compare(before, after, limit)
    print(compare.table(lines, limit))
    faults = compare.faults(before, after, limit)
    for fault in faults:
        print(f"{fault.name:34} FAULTY: {fault.what}")
    for difference in compare.differences(before, after):
        print(f"note: not the same besides: {difference}", file=sys.stderr)
    slower = [line for line in lines if line.slower]
    if gate and faults:
        raise Faulty(
            f"{len(faults)} of the {len(before['points'])} points",
            f"fail as they did not before, or are gone; the first: {faults[0].name}, {faults[0].what}",
            "mend it, or measure the same loads (--compare BEFORE alone takes its rates)",
        )
    if gate and slower:
        raise Slower(
            f"{len(slower)} of {len(lines)} comparisons",
            f"are significantly more than {limit - 1:.1%} slower",
            f"the worst: {max(slower, key=lambda line: line.ratio.ratio).name}",
        )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in words(text)]


def _floats(text: str) -> list[float]:
    return [float(part) for part in words(text)]
