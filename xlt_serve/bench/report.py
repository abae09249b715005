"""One HTML file that holds all of a run: open it anywhere, send it to anyone."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from xlt_serve.bench.compare import point_name
from xlt_serve.bench.plots import Series, heat, lines, stacked

STYLE = """
:root{color-scheme:light dark;--ink:#111827;--soft:#6b7280;--line:#e5e7eb;--page:#fff;--warn:#fef3c7}
@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--line:#374151;--page:#111827;--warn:#78350f}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1180px;
margin:0 auto;padding:24px}h1{font-size:24px;margin:0}h2{font-size:18px;margin:32px 0 8px}
p.about{color:var(--soft);margin:4px 0 16px}.plots{display:flex;flex-wrap:wrap;gap:24px}
figure{margin:0;max-width:100%}figcaption{font-weight:600;margin-bottom:4px}svg{max-width:100%;height:auto}
.t{font:12px system-ui,sans-serif;fill:var(--ink)}.m{text-anchor:middle}.e{text-anchor:end}
.g{stroke:var(--line)}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:3px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}.note{background:var(--warn);padding:8px 12px;border-radius:6px}
details{margin-top:24px}pre{overflow-x:auto;font-size:12px}
"""


def page(report: dict[str, Any]) -> str:
    """Self-contained: styles and plots inside, no script, no address of anything."""
    title = f"Latency of {report['target']}"
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in report["notes"])
    plots = "".join(
        f"<figure><figcaption>{html.escape(caption)}</figcaption>{plot}</figure>"
        for caption, plot in _plots(report["points"])
        if plot
    )
    details = json.dumps(
        {key: value for key, value in report.items() if key != "points"},
        indent=2,
        ensure_ascii=False,
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><p class=about>{html.escape(_about(report))}</p>{notes}"
        f"<div class=plots>{plots}</div><h2>All points, milliseconds</h2>"
        f"<div class=scroll>{_table(report['points'])}</div>"
        "<p class=about>Closed loop: so many clients, each waits for its answer. Open loop: Poisson "
        "arrivals, latency counted from when a request was due, so a stall shows in everyone who "
        "had to wait for it. Latencies are of answers with status 200; a request without any answer "
        "counts as the slowest, one that was refused only as an error. Texts per second: those that "
        "were answered without an error. Brackets: 95 % interval of p99 from order statistics.</p>"
        f"<details><summary>How and where</summary><pre>{html.escape(details)}</pre></details></html>\n"
    )


def _about(report: dict[str, Any]) -> str:
    found = report["machine"]
    gpu = f", {report['gpu']['name']}" if report.get("gpu") else ", no GPU"
    active = f"; provider active: {', '.join(report['providers'])}" if report["providers"] else ""
    return (
        f"{report['when']} · {found['processor']}, {found['cores']} cores{gpu}"
        f" · onnxruntime {found['packages'].get('onnxruntime', found['packages'].get('onnxruntime-gpu', 'none'))}{active}"
    )


def _plots(points: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    loaded = [p for p in points if "loop" in p and p["latency_ms"]["count"]]
    modes = list(dict.fromkeys(p["mode"] for p in loaded))
    curve = []
    for mode in modes:
        for loop in ("closed", "open"):
            mine = [p for p in loaded if p["mode"] == mode and p["loop"] == loop]
            for measure in ("p50", "p99"):
                spots = [(p["items_per_second"], p["latency_ms"][measure]) for p in mine]
                if spots:
                    curve.append(Series(f"{mode} {loop} {measure}", spots))
    yield "Latency against throughput", lines(curve, "texts per second", "ms", log_y=True)
    for mode in modes:
        mine = [p for p in loaded if p["mode"] == mode and p["loop"] == "open"]
        found = [
            Series(m, [(p["rate"], p["latency_ms"][m]) for p in mine])
            for m in ("p50", "p90", "p95", "p99", "max")
        ]
        yield (
            f"Percentiles by rate, {mode}, open loop",
            lines(
                [s for s in found if s.points], "requests per second asked for", "ms", log_y=True
            ),
        )
        both = [p for p in loaded if p["mode"] == mode and p["server_ms"]]
        if both:
            yield f"Queue against compute, {mode}, mean ms", _queue(both)
    yield from _grids([p for p in points if "rows" in p])


def _queue(points: list[dict[str, Any]]) -> str:
    names = [point_name(point).split(" ", 1)[1] for point in points]
    parts = [parts_of(point) for point in points]
    return stacked(names, [(name, [part[name] for part in parts]) for name in parts[0]], "ms")


def parts_of(point: dict[str, Any]) -> dict[str, float]:
    """Where a point's mean latency goes: the server's queue, its runs, what else it does for a
    prediction (its ``predict_ms`` holds all three), and the way there and back."""
    own = {name: found["mean"] for name, found in point["server_ms"].items()}
    queue, run = own.get("queue_ms", 0.0), own.get("run_ms", 0.0)
    predict = own.get("predict_ms", queue + run)
    return {
        "queue": queue,
        "run": run,
        "rest of predicting": max(0.0, predict - queue - run),
        "HTTP and load generator": max(0.0, point["latency_ms"]["mean"] - predict),
    }


def _grids(points: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    kinds = list(dict.fromkeys(_kind(p) for p in points))
    for kind in kinds:
        mine = [p for p in points if _kind(p) == kind]
        rows = sorted({p["rows"] for p in mine})
        lengths = sorted({p["length"] for p in mine})
        for measure in ("p50", "p99"):
            values = {(p["rows"], p["length"]): p["latency_ms"][measure] for p in mine}
            yield f"{kind}: {measure} ms", heat(rows, lengths, values, "tokens", "rows")
    spots = [
        Series(
            f"{kind} × {n}",
            [
                (p["length"], p["latency_ms"]["p50"])
                for p in points
                if _kind(p) == kind and p["rows"] == n
            ],
        )
        for kind in kinds
        for n in sorted({p["rows"] for p in points})
    ]
    if any(len(one.points) > 1 for one in spots):
        yield "Median by length", lines([s for s in spots if s.points], "tokens", "ms", True, True)


def _kind(point: dict[str, Any]) -> str:
    if "peer" in point:
        return str(point["peer"])
    return point_name(point).rsplit(" ", 3)[0]


def _table(points: list[dict[str, Any]]) -> str:
    head = ("", "per second", "count", "p50", "p90", "p95", "p99", "", "max", "errors")
    out = ["<table><tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for point in points:
        found = point["latency_ms"]
        speed = point.get("items_per_second") or point.get("tokens_per_second") or 0.0
        unit = "texts" if "loop" in point else "tokens"
        cells = [html.escape(point_name(point)), f"{speed:,.0f} {unit}", str(found["count"])]
        if found["count"]:
            cells += [f"{found[m]:.2f}" for m in ("p50", "p90", "p95", "p99")]
            low, high = found["intervals"]["p99"]
            cells += [f"[{low:.2f}, {high:.2f}]", f"{found['max']:.2f}"]
        else:
            cells += [""] * 6
        cells.append(
            html.escape(", ".join(f"{n} × {s}" for s, n in point.get("errors", {}).items()))
        )
        out.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "".join(out) + "</table>"
