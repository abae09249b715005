"""``xlt``: train, evaluate, export, predict, inspect, serve."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from xlt_serve import bundle as bundles
from xlt_serve.commands import bench, predict, score, serve, translator
from xlt_serve.commands import options as common
from xlt_serve.errors import DataError, DependencyError, UsageError, XltError


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong call."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "train":  # argparse takes overrides only where they stand together
        options.override += [word for word in rest if "=" in word and not word.startswith("-")]
        rest = [word for word in rest if word not in options.override]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        options.run(options)
    except XltError as error:
        print(f"xlt: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("xlt: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output is gone (`xlt predict … | head`): nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"xlt: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _train(options: argparse.Namespace) -> None:
    training = _training("config", "trainer")
    config = training["config"].load(options.config, options.override)
    metrics = training["trainer"].train(config, options.out)
    if not training["trainer"].is_first_process():
        return
    print(f"checkpoint: {options.out}")
    print(f"dev score ({metrics['selected_by']}): {metrics['dev_score']:.4f}")
    for language, found in metrics["languages"].items():
        print(f"{language:8}  {found['accuracy']:.3f}")


def _eval(options: argparse.Namespace) -> None:
    training = _training("evaluate", "model")
    evaluate, model = training["evaluate"], training["model"]
    place = options.model
    if (place / model.DESCRIPTION).is_file():
        network, description = model.load(place)
        predict, source = evaluate.torch_predictor(network), description.source_language
        pair, labels = description.pair, description.labels
    else:
        bundle = bundles.load(place)
        predict, source = evaluate.bundle_predictor(bundle.path), bundle.manifest.source_language
        pair, labels = bundle.manifest.pair, list(bundle.manifest.labels)
    evaluate.check_task(options.task, options.data, options.split, pair, labels)
    scores = evaluate.by_language(
        predict, options.task, options.data, options.split, options.languages, sys.stderr.isatty()
    )
    if options.json:
        print(json.dumps({language: vars(score) for language, score in scores.items()}))
    else:
        print(evaluate.table(scores, source))


def _export(options: argparse.Namespace) -> None:
    training = _training("export")
    export = training["export"]
    wanted = {field: getattr(options, field) for field in export.Order.__dataclass_fields__}
    made = export.export(options.checkpoint, options.out, export.Order(**wanted))
    size = sum(file.stat().st_size for file in made.path.rglob("*") if file.is_file())
    print(
        f"bundle: {made.path} ({made.manifest.name} {made.manifest.version}, {size / 1e6:.1f} MB)"
    )


def _engine(options: argparse.Namespace) -> None:
    from xlt_serve import engine
    from xlt_serve.session import Options

    bundle = bundles.load(options.bundle)
    settings = Options(provider="tensorrt", device=options.device, cache=options.cache)
    try:
        for built in engine.build(bundle, options.graphs or list(bundle.manifest.graphs), settings):
            print(engine.report(built), flush=True)
    except DependencyError as error:  # to ask for engines without a GPU is a wrong call
        raise UsageError(error.value, error.rule, error.remedy) from None


def _fisher(options: argparse.Namespace) -> None:
    fisher, corpus = _training("fisher", "encoders.corpus").values()
    texts: list[str] = []
    for language in options.languages:
        file = options.text / f"{language}.txt"
        if not file.is_file():
            raise DataError(
                file, "is not there", "give a folder with LANGUAGE.txt, a sentence a line"
            )
        texts += [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    if options.leave_out:
        if not options.leave_out.is_dir():
            raise DataError(options.leave_out, "is no folder", "give the data folder of the tasks")
        texts = corpus.free_of_evaluation(texts, options.leave_out)
    values = fisher.compute(options.encoder, texts, options.sentences, seed=options.seed)
    print(f"fisher: {fisher.save(options.out, '+'.join(options.languages), values)}")


def _methods(_: argparse.Namespace) -> None:
    for name, kind in _training("methods")["methods"].METHODS.items():
        print(f"{name:16}  {(kind.__doc__ or '').strip().splitlines()[0]}")


def _inspect(options: argparse.Namespace) -> None:
    bundle = bundles.load(options.bundle)
    manifest = bundle.manifest
    if options.json:
        print((bundle.path / bundles.MANIFEST).read_text(encoding="utf-8"), end="")
        return
    size = sum(bundle.file(name).stat().st_size for name in manifest.files)
    graphs = ", ".join(f"{name} ({graph.precision})" for name, graph in manifest.graphs.items())
    stages = manifest.method.get("stages", [])
    methods = ", then ".join("+".join(m["name"] for m in s["methods"]) or "vanilla" for s in stages)
    lines = {
        "bundle": f"{manifest.name} {manifest.version}, format {manifest.format}",
        "folder": f"{bundle.path} ({size / 1e6:.1f} MB, every hash verified)",
        "task": f"{manifest.task}, {'pairs of texts' if manifest.pair else 'single texts'}",
        "labels": ", ".join(manifest.labels),
        "trained on": f"{manifest.source_language} ({methods or 'unknown method'})",
        "graphs": graphs,
        "max length": f"{manifest.max_length} tokens",
        "temperature": f"{manifest.temperature('plain'):.3f}",
    }
    if manifest.noise:
        lines["noise"] = ", ".join(f"{key} {value}" for key, value in manifest.noise.items())
    if manifest.synonyms:
        lines["synonyms"] = ", ".join(manifest.synonyms)
    if manifest.notes:
        lines["notes"] = manifest.notes
    for key, value in lines.items():
        print(f"{key:12} {value}")
    for split, scores in manifest.scores.items():
        shown = "  ".join(f"{language} {row['accuracy']:.2f}" for language, row in scores.items())
        print(f"{split:12} {shown}")


def _training(*modules: str) -> dict[str, Any]:
    """Modules of ``training``, whose packages serving does without."""
    try:
        return {name: importlib.import_module(f"training.{name}") for name in modules}
    except ModuleNotFoundError as error:
        raise DependencyError(
            error.name or "training",
            "is needed for training and not installed",
            "pip install 'xlt-serve[train]'",
        ) from None


def _comma(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="xlt",
        description="Robust cross-lingual text classification, from training to serving.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, about: str, more: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    sub = command(
        "train",
        _train,
        "train a classifier as a config says",
        "example:\n  xlt train training/configs/sib200/vanilla.toml seed=1 train.epochs=5 --out runs/1\n\n"
        "The same command goes on with a run that was stopped. Tasks: sib200, xsid, sentiment,\n"
        'xnli, nli, pawsx; task.name="files" trains on CSV, TSV, JSONL or Parquet of your own.',
    )
    sub.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    sub.add_argument(
        "override", nargs="*", metavar="KEY=VALUE", help="overrides a key of the config"
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="checkpoint folder")

    sub = command("eval", _eval, "score a checkpoint or bundle, language by language")
    sub.add_argument("model", type=Path, metavar="CHECKPOINT_OR_BUNDLE")
    sub.add_argument("--task", required=True)
    sub.add_argument(
        "--data", required=True, metavar="DIR", help='folder of the task\'s files, or "hub"'
    )
    sub.add_argument("--split", default="dev", help="default: dev")
    sub.add_argument(
        "--languages",
        type=_comma,
        default=[],
        metavar="en,de",
        help="default: all that the data has",
    )
    sub.add_argument("--json", action="store_true", help="JSON instead of a table")

    sub = command("export", _export, "make a bundle of a checkpoint")
    sub.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    sub.add_argument("--out", type=Path, required=True, metavar="BUNDLE")
    sub.add_argument(
        "--precision",
        default="fp32",
        choices=("fp32", "fp16", "int8", "auto"),
        help="auto: the fastest here that passes the gate; fp16 is for GPUs (default: fp32)",
    )
    sub.add_argument(
        "--graphs",
        type=_comma,
        default=[],
        metavar="plain,perturbed,paired",
        help="default: those that the training methods call for",
    )
    sub.add_argument("--name", default="", help="default: the name of the folder")
    sub.add_argument("--data", default="", metavar="DIR", help="default: the data of training")
    sub.add_argument(
        "--agreement",
        type=float,
        default=0.99,
        help="least share of texts with torch's label, per language (default: 0.99)",
    )
    sub.add_argument(
        "--languages", type=_comma, default=[], metavar="en,de", help="default: all of the data"
    )
    sub.add_argument(
        "--exclude",
        default="",
        metavar="REGEX",
        help="layers that stay fp32, e.g. 'layer.0' or 'embeddings'",
    )
    sub.add_argument(
        "--trim-vocab",
        type=_comma,
        default=[],
        metavar="en,de",
        help="drop the pieces of scripts that these languages don't use",
    )
    sub.add_argument(
        "--tensorrt", action="store_true", help="refuse graphs that TensorRT does not take"
    )
    sub.add_argument(
        "--target-error",
        type=float,
        metavar="E",
        help="abstain so that at most this share of the answers is wrong on the source's dev data",
    )
    sub.add_argument(
        "--vector", action="store_true", help="the plain graph also gives the text's vector"
    )
    sub.add_argument(
        "--projection",
        default="",
        metavar="FILE",
        help="with --vector: safetensors of a linear map (weight, bias) that it goes through",
    )
    sub.add_argument("--notes", default="", help="a line for the manifest")
    common.add_tables(sub, "tables of synonyms to serve with it")

    predict.add(command)

    score.add(commands)
    bench.add(commands)

    sub = command("inspect", _inspect, "verify a bundle and say what is in it")
    sub.add_argument("bundle", nargs="?", default=None, metavar="BUNDLE", help="default: topics")
    sub.add_argument("--json", action="store_true", help="the whole manifest")

    serve.add(command)

    sub = command(
        "engine",
        _engine,
        "build a bundle's TensorRT engines on this machine's GPU",
        "Serving with provider tensorrt then starts in seconds instead of minutes. An engine is for\n"
        "one bundle, GPU, TensorRT and onnxruntime; another of these builds another engine.",
    )
    sub.add_argument("bundle", metavar="BUNDLE", help="shipped name or folder, fp16 or fp32")
    sub.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU")
    sub.add_argument(
        "--cache",
        type=Path,
        default=None,
        metavar="DIR",
        help="default: ~/.cache/xlt-serve/engines",
    )
    sub.add_argument(
        "--graphs", type=_comma, default=[], metavar="plain,perturbed,paired", help="default: all"
    )

    sub = command(
        "fisher",
        _fisher,
        "estimate an encoder's Fisher information on text, for the method ewc",
        "example:\n  xlt fisher small --languages fr --text ../shared/data/text --leave-out ../shared/data "
        "--out fisher\n\n"
        "Several languages are mixed into one estimate, named fr+en.",
    )
    sub.add_argument(
        "encoder", metavar="ENCODER", help="name or folder, with its language-model head"
    )
    sub.add_argument("--languages", type=_comma, required=True, metavar="fr,en")
    sub.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="folder of LANGUAGE.txt"
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR")
    sub.add_argument(
        "--leave-out",
        type=Path,
        metavar="DATA",
        help="data folder whose evaluation sentences are left out of the text",
    )
    sub.add_argument("--sentences", type=int, default=2000)
    sub.add_argument("--seed", type=int, default=0)

    translator.add(commands)
    command("methods", _methods, "list the training methods")
    return parser


if __name__ == "__main__":
    sys.exit(main())
