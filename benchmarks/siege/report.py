"""The report of ``benchmarks.siege``: goals, then a table for each part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.markdown import table
from benchmarks.siege.numbers import failings, spread

HEAD = """\
# What one bad client can do

`python -m benchmarks.siege`. A light client sends single texts, 25 a second at moments fixed beforehand,
with a key of its own: before, during and after each attack, which comes from another process. A row is
one attack on one freshly started server. All on 127.0.0.1.

How to read it:

- *first edition* is what the report on the first edition of the service said.
- *p50 / p99 / max*: milliseconds of the light client from when its request was due, before the attack →
  during it. *refused*: its 429; *errors*: all else but 200, no answer included.
- *probe*: p99 of `/livez` (`/health`), in ms, on a fresh connection each time; goal 100.
- *loop*: upper bound of the bucket with the longest delay of the event loop, in ms (`xlt_loop_lag_seconds`);
  goal 25. n/a: the server does not tell.
- *memory*: sum of the proportional set sizes of all processes of the server, idle → peak, in MB, and the
  ratio; goal: under 2.
- *attacker got*: its answers by status, or how its connections ended.
- *back*: seconds from the attacker's last byte to the first 200 of the light client.
- *end*: seconds from SIGTERM to the end of the server; in the attack by clients that don't read, while
  they still hold their connections.
- *CPU*: of light client and attacker, as a share of all cores. What they take, the server lacks: two cores
  are all there is.
- *stands*: whether every goal is met: no error, no refusal, those above, and no 500, false certificate, bad
  swap or changed answer for the attacker; else what is missed.
"""
NAMES = {"xlt": "xlt-serve", "bentoml": "BentoML + pipeline", "infinity": "infinity"}
COLUMNS = (
    "attack", "finding", "first edition", "server", "p50 / p99 / max before → during", "refused",
    "errors", "probe", "loop", "memory", "attacker got", "back", "end", "CPU", "stands",
)  # fmt: skip


def markdown(results: Mapping[str, Any]) -> str:
    lines = [HEAD]
    if here := results.get("setting"):
        lines.append(
            f"{here['processor']}, {here['cores']} cores, {here['memory_gb']} GB; load before"
            f" {here['load_before']}."
            + (" **A quick run: no figures to quote.**" if here["quick"] else "")
        )
    lines += ["", *table(["goal", "measured", "met"], goals(results))]
    sections: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
        "attacks": ("Attacks", attacks),
        "fairness": ("Fairness", fairness),
        "shedding": ("Load shedding", shedding),
        "death": ("Death of a worker", death),
        "fuzz": ("Bad requests", fuzz),
        "schemathesis": ("schemathesis", schemathesis),
    }
    for name, (title, shown) in sections.items():
        if name in results:
            lines += ["", f"## {title}", "", *shown(results[name])]
    return "\n".join(lines) + "\n"


def goals(results: Mapping[str, Any]) -> list[Sequence[object]]:
    out: list[Sequence[object]] = []
    if rows := [row["xlt"] for row in results.get("attacks", {}).values() if "xlt" in row]:
        ran = [row for row in rows if "failed" not in row]
        stand = sum(not failings(row) for row in ran)
        out.append(("attacks withstood", f"{stand} of {len(rows)}", met(stand == len(rows))))
        worst = max((row["ratio"] for row in ran), default=math.nan)
        out.append(("peak memory under 2 × idle", f"{worst:.2f} ×", met(worst < 2)))
    if rows := results.get("fairness", []):
        refused = sum(row["attacked"]["refused"] for row in rows)
        kept = min(row["heavy_kept"] for row in rows)
        verdicts = ", ".join(row["fair"] for row in rows)
        fair = all(row["fair"] == "yes" for row in rows)
        out.append(("light p99 ≤ alone + 2 × longest run", verdicts, met(fair)))
        out.append(("no light client refused", refused, met(not refused)))
        out.append(("heavy keeps ≥ .9", f"{kept:.2f}", met(kept >= 0.9)))
    if runs := results.get("shedding", []):
        out += _shedding_goals(runs)
    if found := results.get("death"):
        others = found["lost_of_others"]
        out.append(("nothing lost but its own when a worker dies", others, met(not others)))
    if found := results.get("fuzz"):
        wrong = found["server_errors"]
        out.append((f"no 5xx in {found['requests']:,} bad requests", wrong, met(not wrong)))
    if found := results.get("schemathesis"):
        said = f"exit {found['exit']} after {found['seconds']:.0f} s"
        out.append(("schemathesis finds nothing", said, met(found["exit"] == 0)))
    return out


def _shedding_goals(runs: Sequence[Mapping[str, Any]]) -> list[Sequence[object]]:
    floods = [found for run in runs for name, found in run.items() if name != "unloaded"]
    only = all(
        set(f["statuses"]) <= {"200", "429"} and not f["without_retry_after"] for f in floods
    )
    worst = spread([value for f in floods for value in f["relative"].values()])["most"]
    longest = max(max(f["refused_after_same_key"], f["refused_after_other_key"]) for f in floods)
    return [
        ("floods: only 200, and 429 with Retry-After", "yes" if only else "others, too", met(only)),
        ("floods: accepted p99 ≤ 3 × unloaded", f"{worst:.2f} × at worst", met(worst <= 3)),
        ("floods: refused ≤ 1 s after the end", f"{longest:.2f} s at worst", met(longest <= 1)),
    ]


def met(yes: bool) -> str:
    return "yes" if yes else "**no**"


def attacks(found: Mapping[str, Any]) -> list[str]:
    rows: list[Sequence[object]] = []
    for name, about in found.items():
        for kind in NAMES:
            if kind in about:
                rows.append(_attack_row(name, about, kind, about[kind]))
    return table(COLUMNS, rows)


def _attack_row(
    name: str, about: Mapping[str, Any], kind: str, row: Mapping[str, Any]
) -> Sequence[object]:
    ours = kind == "xlt"
    start = (name, about["finding"], about["first"] if ours else "", NAMES[kind])
    if "failed" in row:
        why = row["failed"].replace("|", "/").replace("\n", " ")[:120]
        return (*start, *[""] * 6, f"not started: {why}", "", "", "", "**no**")
    missed = failings(row)
    back = row["recovered"]
    return (
        *start,
        f"{_times(row['before'])} → {_times(row['during'])}",
        f"{row['during']['refused']} of {row['during']['requests']}",
        counted(row["during"]["errors"]),
        number(row["livez"]["p99"]),
        "n/a" if row["lag_ms"] is None else number(row["lag_ms"]),
        f"{row['idle_mb']:.0f} → {row['peak_mb']:.0f} ({row['ratio']:.2f} ×)",
        counted(row["attacker"]),
        "never" if back is None else f"{back:.2f}",
        f"{row['end_seconds']:.1f}",
        f"{row['generator_cpu']:.2f}",
        "yes" if not missed else f"**{', '.join(missed)}**",
    )


def _times(client: Mapping[str, Any]) -> str:
    return " / ".join(number(client[key]) for key in ("p50", "p99", "max"))


def number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return "over the last bucket" if math.isinf(value) else f"{value:,.0f}"


def counted(found: Mapping[str, int]) -> str:
    return ", ".join(f"{what} × {count:,}" for what, count in found.items()) or "0"


def fairness(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    about = (
        "Eight connections of 1,000-item requests with one key, a light client (50 a second) with"
        " another; alone and attacked in one run. The longest run is known by its bucket of"
        " `xlt_run_seconds`: *fair* is judged by its lower bound."
    )
    head = ["run", "light alone p50 / p99 / max", "attacked", "refused", "errors", "longest run, ms",
            "fair", "heavy alone, items/s", "beside", "kept", "heavy answers", "CPU"]  # fmt: skip
    body = [
        (
            place + 1,
            _times(row["alone"]),
            _times(row["attacked"]),
            f"{row['attacked']['refused']} of {row['attacked']['requests']}",
            counted(row["attacked"]["errors"]),
            "n/a" if row["longest_run_ms"] is None
            else "{:.0f} to {:.0f}".format(*row["longest_run_ms"]),
            row["fair"],
            f"{row['heavy_alone']:.0f}",
            f"{row['heavy_beside']:.0f}",
            f"{row['heavy_kept']:.2f}",
            counted(row["heavy_statuses"]),
            f"{row['generator_cpu']:.2f}",
        )
        for place, row in enumerate(rows)
    ]  # fmt: skip
    return [about, "", *table(head, body)]


def shedding(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    about = (
        f"Floods at five times what a closed loop of eight clients gets, {len(runs)} run(s), each on a fresh"
        " service: median [least, most]. *Relative*: p99 of accepted requests by how many texts they have,"
        " from when they were sent, to that of a lone client in the same run. *Refused after*: seconds from"
        " the flood's last request until a new client's last refused one, with the flood's own key and with"
        " another. In the mixed flood .8 of the requests have one text, .15 sixteen, .05 256."
    )
    head = ["flood", "capacity, requests/s", "sent", "answers", "429 without Retry-After",
            "relative: 1", "16", "256", "refused after, same key", "other key", "CPU",
            "generator late, p99 ms"]  # fmt: skip
    body = []
    for mix in dict.fromkeys(name for run in runs for name in run if name != "unloaded"):
        rows = [run[mix] for run in runs if mix in run]
        statuses: dict[str, int] = {}
        for row in rows:
            for status, count in row["statuses"].items():
                statuses[status] = statuses.get(status, 0) + count
        body.append(
            (
                mix,
                ranged([row["capacity"] for row in rows]),
                f"{sum(row['sent'] for row in rows):,}",
                counted(dict(sorted(statuses.items()))),
                sum(row["without_retry_after"] for row in rows),
                *(
                    ranged([row["relative"][size] for row in rows if size in row["relative"]])
                    for size in ("1", "16", "256")
                ),
                ranged([row["refused_after_same_key"] for row in rows]),
                ranged([row["refused_after_other_key"] for row in rows]),
                ranged([row["generator_cpu"] for row in rows]),
                ranged([row["generator_lag_p99_ms"] for row in rows]),
            )
        )
    quiet = {
        size: ranged([run["unloaded"][size] for run in runs if size in run["unloaded"]])
        for size in ("1", "16", "256")
    }
    alone = "; ".join(f"{size}: {found}" for size, found in quiet.items())
    return [about, "", *table(head, body), "", f"Unloaded p99, ms, by texts of a request: {alone}."]


def ranged(values: Sequence[float]) -> str:
    found = spread(values)
    if math.isnan(found["median"]):
        return "–"
    if len(values) == 1:
        return f"{found['median']:.3g}"
    return "{median:.3g} [{least:.3g}, {most:.3g}]".format(**found)


def death(found: Mapping[str, Any]) -> list[str]:
    back = found["new_worker_after"]
    return [
        f"One of {found['workers']} workers killed under load: {counted(found['statuses'])}. It had"
        f" {found['in_flight_on_it']} connections; of {found['lost']} lost requests {found['lost_of_its_own']}"
        f" were on these and {found['lost_of_others']} were not."
        + (f" A new worker process was there after {back:.1f} s." if back is not None else "")
        + " First edition: 6 lost, 9 s."
    ]


def fuzz(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{found['requests']:,} requests (seed {found['seed']}), {found['per_second']:.0f} a second:"
        f" {found['server_errors']} × 5xx, {found['unanswered']} whole requests without an answer. First"
        " edition: 5 × 500 and a reset in 28,400.",
        "",
        *table(["kind", "answers"], [(k, counted(said)) for k, said in found["by_kind"].items()]),
    ]
    if found["failures"]:
        lines += ["", "The first that should not be:", ""]
        lines += [f"- {one['said']}: `{one['data'][:200]}`" for one in found["failures"][:10]]
    return lines


def schemathesis(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{found['seconds']:.0f} s, seed {found['seed']}, all checks but {', '.join(found['excluded'])} (whether"
        " texts fit a bundle, and options each other, is in no schema), exit"
        f" {found['exit']} (0: no failure). First edition: 4 failures in 3,143 cases.",
        "",
        "```",
        *_end_of(found["summary"]),
        "```",
    ]


def _end_of(summary: str) -> list[str]:
    """From schemathesis' own summary on, or what it said last."""
    lines = summary.strip().splitlines()
    starts = [place for place, line in enumerate(lines) if " SUMMARY " in line]
    return lines[starts[-1] :] if starts else lines[-25:]
