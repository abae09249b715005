"""The servers that ``benchmarks.service`` compares, all on the same random weights."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import environments
from xlt_serve.bench.server_process import ServerProcess, free_port, started
from xlt_serve.runtime.session import available_cores

HERE = Path(__file__).parent
ROOT = HERE.parent
LENGTH = 128
WORK = Path("build") / "service"


@dataclass(frozen=True)
class Peer:
    """``command`` starts it on a port; ``body`` is a request for one text."""

    name: str
    command: Callable[[int], list[str]]
    body: Callable[[str], Any]
    environment: dict[str, str]
    ready: str = "/readyz"

    def bodies(self, texts: Sequence[str]) -> list[tuple[bytes, int]]:
        """Requests of one text each."""
        return [(json.dumps(self.body(text), ensure_ascii=False).encode(), 1) for text in texts]


@contextlib.contextmanager
def served(peer: Peer, patience: float = 300) -> Iterator[ServerProcess]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BENTOML_DO_NOT_TRACK": "true"}
    WORK.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), WORK / f"{peer.name.replace(' ', '-')}.log"
    with started(
        peer.name,
        peer.command(port),
        port,
        log,
        environment=environment | peer.environment,
        ready=peer.ready,
        patience=patience,
    ) as server:
        yield server


def _texts(text: str) -> dict[str, Any]:
    return {"texts": [text]}


def ours(name: str, bundle: Path | None = None, **variables: str) -> Peer:
    """``xlt serve``; None: the shipped bundle."""
    chosen = ["--bundle", str(bundle.absolute())] if bundle else []
    state = {"XLT_STATE": str((WORK / f"state-{name.replace(' ', '-')}").absolute())}
    return Peer(
        name,
        lambda port: [
            *(sys.executable, "-m", "xlt_serve.cli", "serve", "--port", str(port)),
            *chosen,
        ],
        _texts,
        state | variables,
    )


def small() -> Peer:
    return ours("xlt small")


def bentoml(name: str, service: str, **variables: str) -> Peer:
    """A service of ``benchmarks.peers.plain_bentoml``."""
    return Peer(
        name,
        lambda port: [
            *(sys.executable, "-m", "bentoml", "serve"),
            *(f"benchmarks.peers.plain_bentoml:{service}", "--port", str(port)),
        ],
        _texts,
        variables,
    )


def infinity(engine: str, model: Path, threads: str) -> Peer:
    program = str(environments.python("infinity").parent.absolute() / "infinity_emb")
    # Its own warm-up sends the optimum engine texts longer than XLM-R has positions.
    more = ["--no-model-warmup"] if engine == "optimum" else []
    return Peer(
        f"infinity {engine}",
        lambda port: [
            *(program, "v2", "--port", str(port), "--model-id", str(model), "--engine", engine),
            *("--served-model-name", "m", "--device", "cpu", "--batch-size", "32"),
            *("--url-prefix", "", *more),
        ],
        lambda text: {"model": "m", "input": [text]},
        {"OMP_NUM_THREADS": threads, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"},
        ready="/health",
    )


def peers(made: dict[str, Path], wanted: Sequence[str] | None) -> list[Peer]:
    """Ours and those that can be installed here; ``wanted``: only these."""
    threads, model = str(available_cores()), made["checkpoint"].absolute()
    out = [ours(f"xlt {p}", made[p], XLT_MAX_WAIT="60") for p in ("int8", "fp32")]
    out.append(bentoml("bentoml + pipeline", "Plain", CHECKPOINT=str(model), THREADS=threads))
    for engine in ("torch", "optimum"):
        if wanted is None or f"infinity {engine}" in wanted:
            try:
                out.append(infinity(engine, model, threads))
            except environments.NotInstalled as error:
                print(f"infinity {engine}: not installed ({error})", file=sys.stderr)
    return [peer for peer in out if wanted is None or peer.name in wanted]


# The weights, as each server wants them. What makes them is imported there: it takes seconds, and
# processes that only ask a server need none of it.


def small_checkpoint(folder: Path) -> Path:
    """The shipped encoder with a head that means nothing, as a transformers folder."""
    from xlt_training.loop import pretrained

    from benchmarks.peers import checkpoint

    if not (folder / "model.safetensors").is_file():
        place = pretrained.resolve("small")
        pretrained.load_classifier(place, {"num_labels": checkpoint.LABELS}).save_pretrained(folder)
        pretrained.save_tokenizer(pretrained.load_tokenizer(place), folder)
    return folder


def prepare(work: Path, data: Path) -> dict[str, Path]:
    """The checkpoint with its tokenizer, and bundles of it."""
    from benchmarks import random_bundles
    from benchmarks.peers import checkpoint

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
    bundles = {precision: work / precision for precision in random_bundles.PRECISIONS}
    random_bundles.in_each_precision(folder, bundles, LENGTH)
    return {"checkpoint": folder, **bundles}
