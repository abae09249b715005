"""What ``benchmarks.robustness`` keeps on disk, and the models that it trains, exports and serves."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlt_training.data import languages, load_split
from xlt_training.exporting import checkpoint as export
from xlt_training.loop import config, trainer
from xlt_training.loop.types import Example
from xlt_training.methods.noise import Noise as NoiseMethod
from xlt_training.methods.synonyms import Synonyms

from xlt_serve.bundle import write_whole
from xlt_serve.classifier import Classifier, load
from xlt_serve.text.synonyms import Table, read

TASK, SOURCE = "sib200", "en"


class Runs:
    """``stage`` measures something once; ``of`` serves a model, and trains it before its first use."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.work, self.alpha = options, options.work, options.alpha
        self.work.mkdir(parents=True, exist_ok=True)
        self.stamp()
        there = languages(TASK, options.data, "dev")
        self.languages = options.languages.split(",") if options.languages else there
        tested = languages(TASK, options.data, "test")
        self.items: dict[str, list[Example]] = {}
        self.splits: dict[str, str] = {}
        for language in self.languages:
            self.splits[language] = "test" if language in tested else "dev"
            self.items[language] = load_split(TASK, options.data, self.splits[language], language)
        self.sigmas = sorted(float(part) for part in options.sigmas.split(","))
        self.served: dict[str, Classifier] = {}

    def stamp(self) -> None:
        """Note the options, configs and weights that all in ``--work`` is of. Of other options: an
        error. Of another config or encoder of that name: what is there is removed."""
        options = {k: str(v) for k, v in vars(self.options).items() if k not in ("work", "out")}
        runs = {
            name: trainer.stamp(self.config_of(name)) for name in ("vanilla", "noise", "synonyms")
        }
        now, file = {"options": options, "runs": runs}, self.work / "options.json"
        before = json.loads(file.read_text()) if file.is_file() else None
        if before is not None and before.get("options") != options:
            raise SystemExit(f"{file}: has other options; give another --work, or remove this one")
        old = [*self.work.glob("*.json"), *self.work.glob("runs"), *self.work.glob("bundles")]
        if old and before != now:
            print(f"{self.work}: is of another config or encoder; removed, to train again")
            for place in old:
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        file.write_text(json.dumps(now))

    def stage(self, name: str, measure: Callable[..., Any], *given: Any) -> Any:
        kept = self.work / f"{name}.json"
        if not kept.is_file():
            begun = time.time()
            found = measure(*given)
            write_whole(kept, json.dumps(found).encode())
            print(f"{name}: {time.time() - begun:.0f} s", flush=True)
        return json.loads(kept.read_text())

    def by_language(self, name: str, measure: Callable[..., Any], *given: Any) -> dict[str, Any]:
        return {
            language: self.stage(f"{name}-{language}", measure, language, *given)
            for language in self.languages
        }

    def config_of(self, name: str) -> config.Config:
        """Of ``vanilla``, ``synonyms`` or ``noise-SIGMA``; ``noise``: with the config's own σ."""
        kind, _, sigma = name.partition("-")
        overrides = [f"task.data={self.options.data}", f"encoder={self.options.encoder}"]
        made = config.named(TASK, kind, overrides + self.options.override)
        for method in (method for stage in made.stages for method in stage.methods):
            if isinstance(method, NoiseMethod) and sigma:
                method.distribution, method.sigma = "gaussian", float(sigma)
            if isinstance(method, Synonyms):
                method.draws = "groups"  # the table that is served, as it is served
        return made

    def checkpoint(self, name: str) -> Path:
        folder = self.work / "runs" / name
        trainer.train(self.config_of(name), folder)
        return folder

    def of(self, name: str) -> Classifier:
        """A served model, trained and exported before its first use."""
        if name not in self.served:
            bundle = self.work / "bundles" / name
            if not (bundle / "bundle.json").is_file():
                order = export.Order(
                    precision=self.options.precision,
                    graphs=["plain", "perturbed"],
                    data=str(self.options.data),
                    languages=self.languages,
                    agreement=0,  # measured and in the manifest; no model is left out for it
                )
                export.export(self.checkpoint(name), bundle, order)
            table = self.options.data / "lexicons" / "en-synonyms.json"
            self.served[name] = load(bundle, synonyms={"en": table})
        return self.served[name]

    def table(self) -> Table:
        return read(self.options.data / "lexicons" / "en-synonyms.json", "en")
