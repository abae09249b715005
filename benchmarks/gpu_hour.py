"""All parts of ``gpu.sh``: each in a process of its own, none stops the others, the report after each.

It needs the standard library alone, since what it reports first may be that nothing can be installed.
Variables: ``DEVICE`` (cuda; cpu rehearses every part without a GPU), ``GPU_DEVICE`` (0), ``OUT``,
``PYTHON`` (an environment that is ready: nothing is installed), ``REPEATS``, ``ROWS``, ``SECONDS``,
``TESTS`` (what pytest is given).
"""

from __future__ import annotations

import html
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENCODER = ROOT / "xlt_serve" / "models" / "encoders" / "small"
LAST_CUDA_12 = "onnxruntime-gpu[cuda,cudnn]>=1.25.1,<1.27"
"""Of the wheels for CUDA 12: a driver before 580 runs no other."""

TENSORRT = ">=10.14,<11"
KEPT = 20_000
"""Characters of a part's output that the report has, of its end."""


@dataclass(frozen=True)
class Part:
    """A command with a limit in minutes; ``needs``: parts without which it makes no sense."""

    name: str
    call: tuple[str, ...]
    minutes: float
    needs: tuple[str, ...] = ()


@dataclass
class Done:
    """``state``: done, failed (with the code), too slow, or skipped (with what was missing)."""

    name: str
    state: str
    seconds: float = 0.0
    call: str = ""
    said: str = ""


def main(given: Sequence[str]) -> int:
    out = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results" / "gpu").absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        parts = list(plan(given, Path(work), out, os.environ))
        done: list[Done] = []
        for part in parts:
            print(f"== {part.name}", flush=True)
            done.append(run(part, done))
            print(f"   {done[-1].state}, {done[-1].seconds:.0f} s", flush=True)
            write(out, done)
    wrong = [each.name for each in done if each.state != "done"]
    print(f"report: {out / 'gpu.html'}\nto send back: it and {out / 'gpu.json'}")
    if wrong:
        print(f"gpu.sh: {len(wrong)} of {len(done)} parts are not done: {', '.join(wrong)}")
    return 1 if wrong else 0


def plan(
    given: Sequence[str], work: Path, out: Path, settings: Mapping[str, str]
) -> Iterator[Part]:
    """What the hour consists of, in the order of its worth: figures first, tests last."""
    cpu = settings.get("DEVICE") == "cpu"
    device = settings.get("GPU_DEVICE") or "0"
    python = settings.get("PYTHON") if cpu else None
    python = python or str(ROOT / ".venv-gpu" / "bin" / "python")
    xlt = (python, "-m", "xlt_serve.cli")
    source, data = (*given, "", "")[:2]
    if not cpu:
        yield Part("the GPU", ("nvidia-smi",), 1)
        yield from installation(python, driver_cuda())
    here = () if cpu else ("install", "one onnxruntime")
    yield Part("environment", (python, "-m", "pip", "list"), 2)
    yield Part("providers", (python, "-m", "benchmarks.gpu", "--look", "--device", device), 2)
    for precision in ("fp32",) if cpu else ("fp16", "fp32"):
        call = (*xlt, "export", *exported(source, data), "--out", str(work / precision))
        call = (*call, "--precision", precision, "--tensorrt")
        yield Part(f"export {precision}", call, 20, here)
    best = "fp32" if cpu else "fp16"
    bundle, cache, needs = str(work / best), str(work / "engines"), (f"export {best}",)
    for provider in ("cpu",) if cpu else ("cuda", "cuda-graphs", "cpu"):
        call = measurement(python, provider, bundle, device, settings)
        yield Part(f"latency {provider}", (*call, str(out / f"latency-{provider}.json")), 15, needs)
    engine = (*xlt, "engine", bundle, "--device", device, "--cache", cache)
    yield Part("engines", engine, 30, needs)
    if not cpu:
        call = (
            *measurement(python, "tensorrt", bundle, device, settings),
            str(out / "latency-tensorrt.json"),
        )
        yield Part("latency tensorrt", (*call, "--cache", cache), 15, needs)
    provider = "cpu" if cpu else "cuda"
    seconds = settings.get("SECONDS") or "10"
    served = (*xlt, "bench", bundle, "--provider", provider, "--serve", "--seconds", seconds)
    served = (*served, "--clients", "1,8" if cpu else "1,8,32", "--rates", "5" if cpu else "50,200")
    files = ("--json", str(out / "service.json"), "--html", str(out / "service.html"))
    yield Part("service", (*served, "--rows", "1", "--lengths", "16", *files), 20, needs)
    tests = (settings.get("TESTS") or "-m gpu").split()
    yield Part("tests", (python, "-m", "pytest", "-q", *tests), 40, here)


def exported(source: str, data: str) -> tuple[str, ...]:
    """What ``xlt export`` is given: a checkpoint, or an encoder, of which all graphs can be made."""
    if source and (Path(source) / "xlt.json").is_file():
        return (source, *(("--data", data) if data else ("--agreement", "0")))
    return (source or str(ENCODER), "--untrained", "--graphs", "plain,perturbed,paired")


def measurement(
    python: str, provider: str, bundle: str, device: str, settings: Mapping[str, str]
) -> tuple[str, ...]:
    repeats, rows = settings.get("REPEATS") or "100", settings.get("ROWS") or "1,8,32"
    call = (python, "-m", "benchmarks.gpu", bundle, "--providers", provider, "--device", device)
    return (*call, "--repeats", repeats, "--rows", rows, "--out")


def installation(python: str, cuda: float | None) -> Iterator[Part]:
    """The wheel whose CUDA this driver speaks. Training brings the CPU's onnxruntime, and the two
    overwrite each other: only one may stay."""
    old = cuda is not None and cuda < 13
    wheel = LAST_CUDA_12 if old else "onnxruntime-gpu[cuda,cudnn]>=1.28"
    tensorrt = f"tensorrt-cu{12 if old else 13}{TENSORRT}"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    models = str(ROOT / "xlt_serve" / "models")
    yield Part("venv", (sys.executable, "-m", "venv", str(Path(python).parent.parent)), 2)
    everything = (*pip, "install", "-q", "-e", models, "-e", f"{ROOT}[dev]")
    yield Part(
        "install", (*everything, "nvidia-ml-py", "polygraphy", "onnx-graphsurgeon"), 30, ("venv",)
    )
    away = (*pip, "uninstall", "-q", "-y", "onnxruntime", "onnxruntime-gpu")
    yield Part("no onnxruntime", away, 3, ("install",))
    yield Part("one onnxruntime", (*pip, "install", "-q", wheel), 20, ("no onnxruntime",))
    yield Part("TensorRT", (*pip, "install", "-q", tensorrt), 20, ("one onnxruntime",))


def driver_cuda() -> float | None:
    """The newest CUDA that the driver speaks, as nvidia-smi says in its head."""
    try:
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"CUDA Version:\s*([\d.]+)", said)
    return float(found[1]) if found else None


def run(part: Part, before: Sequence[Done]) -> Done:
    lost = [each.name for each in before if each.name in part.needs and each.state != "done"]
    call = " ".join(part.call)
    if lost:
        return Done(part.name, f"skipped: without {', '.join(lost)}", call=call)
    begun = time.monotonic()
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "BENTOML_DO_NOT_TRACK": "true"}
    if os.environ.get("DEVICE") != "cpu":
        environment["XLT_REQUIRE_GPU"] = "1"
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            code = subprocess.run(
                part.call,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=60 * part.minutes,
            ).returncode
            state = "done" if code == 0 else f"failed: {code}"
        except subprocess.TimeoutExpired:
            state = f"too slow: over {part.minutes:g} minutes"
        except OSError as error:
            state = f"failed: {error}"
        output.seek(0)
        said = output.read()[-KEPT:]
    print(said, end="", flush=True)
    return Done(part.name, state, time.monotonic() - begun, call, said)


def write(out: Path, done: Sequence[Done]) -> None:
    """Whole after each part: an hour may end in the middle."""
    figures = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(out.glob("*.json"))
        if file.name != "gpu.json"
    }
    report = {
        "format": 1,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "parts": [asdict(each) for each in done],
        "figures": figures,
    }
    for name, text in (("gpu.json", json.dumps(report, indent=1)), ("gpu.html", page(report))):
        part = out / f".{name}.part"
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(out / name)


def page(report: dict[str, Any]) -> str:
    """Self-contained; each part's output can be folded out."""
    rows = "".join(
        f"<tr class={'ok' if part['state'] == 'done' else 'no'}><td>{html.escape(part['name'])}"
        f"<td>{html.escape(part['state'])}<td>{part['seconds']:.0f} s<td><details><summary>output</summary>"
        f"<pre>{html.escape(part['call'])}\n\n{html.escape(part['said'])}</pre></details></tr>"
        for part in report["parts"]
    )
    grids = "".join(map(table, latencies(report["figures"])))
    rest = html.escape(json.dumps(report["figures"].get("service", {}), indent=1))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>A GPU's hour</title><style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:0 auto;padding:24px}"
        "td,th{padding:3px 10px;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}"
        "table{border-collapse:collapse}.no{background:#fee2e2}pre{font-size:12px;overflow-x:auto}"
        f"</style><h1>A GPU's hour</h1><p>{html.escape(report['when'])}, {html.escape(report['system'])}"
        f"</p><table>{rows}</table>{grids}<h2>The service</h2><details><summary>service.json</summary>"
        f"<pre>{rest}</pre></details></html>"
    )


def latencies(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [found for name, found in figures.items() if name.startswith("latency-")]


def table(found: Mapping[str, Any]) -> str:
    keys = ("provider", "graph", "rows", "length", "ran", "p50", "p95", "p99", "max")
    keys = (*keys, "device_ms", "copy_in_ms", "copy_out_ms", "largest_difference", "same_labels")
    head = "".join(f"<th>{key}" for key in keys)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(key))}" for key in keys) for row in found["rows"]
    )
    title = html.escape(f"{found['bundle']} ({found['precision']})")
    return f"<h2>{title}</h2><p>{html.escape(json.dumps(found['machine']))}</p><table><tr>{head}{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:.2f}"
    return html.escape(str("" if value is None else value))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
