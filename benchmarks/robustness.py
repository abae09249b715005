"""What smoothing is worth: ``python -m benchmarks.robustness --data ../shared/data``.

Trains vanilla, noise (one for each σ) and synonyms on SIB-200's English labels, exports them, and
measures them as they are served.

σ is chosen on English dev alone. It is the largest whose smoothed accuracy is within two points of
plain prediction, the better of the vanilla and the noisy model's; an abstention is a mistake. While the
last σ given fits, it is doubled. Everything after that is on test where it is open, else on dev.

Resumable: what has been measured stands in ``--work`` and is not repeated. If the configs or the
encoder's weights have changed, it is removed, and all is trained again. Writes
``benchmarks/results/robustness.json``, a Markdown report and a picture of certified accuracy against
radius for each language.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from xlt_training.data import load_split
from xlt_training.loop import model as models
from xlt_training.loop import trainer
from xlt_training.loop.types import Example
from xlt_training.loop.words import load_lexicons
from xlt_training.methods.code_switch import switch

from benchmarks import attacks, misses
from benchmarks.robustness_report import FACTORS, JUDGES, RADIUS, draw, page
from benchmarks.robustness_runs import SOURCE, TASK, Runs
from xlt_serve.classifier import Classifier
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.steps import RunRequest
from xlt_serve.smoothing import certify
from xlt_serve.smoothing.noise import Noise
from xlt_serve.smoothing.votes import PollOptions
from xlt_serve.text.synonyms import DRAWS
from xlt_serve.text.words import parts

HERE = Path(__file__).parent
MOST_SIGMAS = 9
SELECTION = 20
"""Votes that choose the label of a certificate, apart from those that bound its probability."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--languages", default="", help="comma-separated; default: all")
    parser.add_argument("--sigmas", default="0.05,0.1,0.25,0.5,1", help="rising")
    parser.add_argument("--texts", type=int, default=30, help="of each language, for certificates")
    parser.add_argument("--draws", type=int, default=1000, help="of each text, for certificates")
    parser.add_argument("--attacked", type=int, default=10, help="texts of each language")
    parser.add_argument("--synonym-texts", type=int, default=100)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--alpha", type=float, default=0.001)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--override", nargs="*", default=[], help="config keys of all trainings")
    parser.add_argument("--work", type=Path, default=Path("build/robustness"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "robustness.json")
    options = parser.parse_args()
    results = Benchmark(options).run()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(results))
    draw(results, options.out.with_suffix(".png"))
    print(options.out.with_suffix(".md").read_text())


class Benchmark(Runs):
    """What is measured."""

    def run(self) -> dict[str, Any]:
        choice = self.stage("sigma", self.choose_sigma)
        self.sigma: float = choice["sigma"]
        self.noise = Noise("gaussian", self.sigma)
        self.noisy = f"noise-{self.sigma}"
        rows: dict[str, Any] = {
            "task": TASK,
            "encoder": self.options.encoder,
            "encoder_weights": trainer.weights_digest(self.options.encoder),
            "precision": self.options.precision,
            "alpha": self.alpha,
            "splits": self.splits,
            "choice": choice,
        }
        for name in ("vanilla", self.noisy):
            kind = name.partition("-")[0]
            rows[f"plain/{kind}"] = self.by_language(f"plain-{kind}", self.plain, name)
            rows[f"smoothed/{kind}"] = self.by_language(f"smoothed-{kind}", self.smoothed, name)
            rows[f"certified/{kind}"] = self.by_language(f"certified-{kind}", self.certified, name)
        rows["plain_accuracy"] = plain_accuracy(rows["plain/vanilla"], rows["plain/noise"])
        rows["to_certificate"] = self.by_language("to-certificate", self.to_certificate)
        rows["synonym_distance"] = self.stage("synonym-distance", self.synonym_distance)
        rows["time"] = self.stage("time", self.time)
        rows["embedding_noise"] = self.by_language("embedding-noise", self.under_noise)
        rows["code_switched"] = self.stage("code-switched", self.code_switched)
        rows["pgd"] = self.by_language("pgd", self.pgd)
        rows["synonyms"] = {
            name: self.stage(f"synonyms-{name}", self.synonyms, name)
            for name in ("vanilla", self.noisy, "synonyms")
        }
        rows["misses"] = self.stage("misses", misses.simulate, self.options.trials)
        return rows

    # Accuracy

    def choose_sigma(self) -> dict[str, Any]:
        """On the source language's dev data alone: a user may have no other."""
        dev = {SOURCE: load_split(TASK, self.options.data, "dev", SOURCE)}
        vanilla = self.mean_right(self.of("vanilla"), dev)
        tried: list[dict[str, Any]] = []
        while len(tried) < len(self.sigmas) or (tried[-1]["fits"] and len(tried) < MOST_SIGMAS):
            more = self.sigmas[len(tried) :]
            sigma = more[0] if more else 2 * tried[-1]["sigma"]
            served = self.of(f"noise-{sigma}")
            asked = Smoothing(noise="gaussian", scale=sigma, alpha=self.alpha, seed=1)
            plain = self.mean_right(served, dev)
            smoothed = self.mean_right(served, dev, mode="smoothed", smoothing=asked)
            fits = smoothed >= max(plain, vanilla) - 0.02
            tried.append({"sigma": sigma, "plain": plain, "smoothed": smoothed, "fits": fits})
            print(tried[-1], flush=True)
        fitting = [row["sigma"] for row in tried if row["fits"]]
        return {
            "sigma": max(fitting) if fitting else min(self.sigmas),
            "found": bool(fitting),
            "vanilla": vanilla,
            "tried": tried,
        }

    def mean_right(self, served: Classifier, items: dict[str, list[Example]], **how: Any) -> float:
        return float(np.mean([np.mean(self.right(served, rows, **how)) for rows in items.values()]))

    def right(self, served: Classifier, examples: Sequence[Example], **how: Any) -> list[bool]:
        found = served.predict([e.text for e in examples], **({"abstain_below": 0} | how))
        return [p.label == e.label for p, e in zip(found, examples, strict=True)]

    def plain(self, language: str, name: str) -> list[bool]:
        return self.right(self.of(name), self.items[language])

    def smoothed(self, language: str, name: str) -> dict[str, Any]:
        """Early stopping as it is served: at most 100 draws."""
        examples = self.items[language]
        asked = Smoothing(noise="gaussian", scale=self.sigma, alpha=self.alpha, seed=2)
        found = self.of(name).predict([e.text for e in examples], mode="smoothed", smoothing=asked)
        return {
            "right": [p.label == e.label for p, e in zip(found, examples, strict=True)],
            "decided": [p.label is not None for p in found],
            "draws": [p.smoothed.draws for p in found if p.smoothed is not None],
        }

    # Certificates

    def to_certificate(self, language: str) -> dict[str, Any]:
        """A certificate of ``RADIUS`` as it is served. Drawing stops when it is proved, when it can't
        be any more, and at the fixed number of draws."""
        examples = self.items[language][: self.options.texts]
        radius = RADIUS * self.sigma
        asked = Smoothing(
            self.options.draws, self.alpha, radius, noise="gaussian", scale=self.sigma, seed=10
        )
        found = self.of(self.noisy).predict(
            [e.text for e in examples], mode="smoothed", smoothing=asked
        )
        votes = [p.smoothed for p in found if p.smoothed is not None]
        proved = [v.certificate.radius or 0.0 if v.certificate else 0.0 for v in votes]
        return {
            "radius": radius,
            "limit": self.options.draws,
            "draws": [v.draws for v in votes],
            "certified": [reached >= radius for reached in proved],
            "label": [p.label for p in found],
            "reached": proved,
        }

    def certified(self, language: str, name: str) -> dict[str, Any]:
        """Of a fixed number of draws: each text's label and radius (0: ABSTAIN), and whether it is
        right. ``agreed``: the race on the same draws has not another label."""
        served = self.of(name)
        examples = self.items[language][: self.options.texts]
        labels, radii, right, agreed = [], [], [], []
        for example in examples:
            text = attacks.noisy_text(served, example.text, 3, self.noise)
            rows = text.rows(range(self.options.draws))
            votes = served.runners.run(RunRequest("perturbed", rows))["logits"].argmax(axis=1)
            counts = [
                np.bincount(part, minlength=len(served.labels)).tolist()
                for part in (votes[:SELECTION], votes[SELECTION:])
            ]
            decision = certify.certify(*counts, self.alpha)
            race = certify.LabelRace(len(served.labels), self.alpha / 2, len(votes))
            early = race.add(votes.tolist()).label
            fixed = certify.predict(np.sum(counts, axis=0).tolist(), self.alpha)
            label = decision.label
            labels.append(label)
            radii.append(
                0.0 if label is None else certify.gaussian_radius(self.sigma, decision.lower_bound)
            )
            right.append(label is not None and served.labels[label] == example.label)
            agreed.append(early is None or fixed is None or early == fixed)
        return {"label": labels, "radius": radii, "right": right, "agreed": agreed}

    def synonym_distance(self) -> dict[str, Any]:
        """‖E(x) − E(x')‖₂ where x' has one word's nearest synonym (of those with as many tokens, so
        that the others keep their places). Over the words of English texts, noise-trained model."""
        import torch

        network, _ = models.load(self.work / "runs" / self.noisy)
        table, distances = self.table(), []
        examples = load_split(TASK, self.options.data, "dev", "en")
        for example in examples[: max(10, self.options.texts)]:
            words = example.text.split()
            others = []
            for place, word in enumerate(words):
                before, core, after = parts(word)
                for choice in table.choices(core, "neighbours")[1:]:
                    changed = [*words[:place], before + choice + after, *words[place + 1 :]]
                    others.append((place, " ".join(changed)))
            if not others:
                continue
            texts = [" ".join(words), *(text for _, text in others)]
            batch = network.batch([Example(text, example.label, "en") for text in texts])
            with torch.no_grad():
                embedded, mask = network.embed(batch), network.mask(batch)
            nearest: dict[int, float] = {}
            for (place, _), row, real in zip(others, embedded[1:], mask[1:], strict=True):
                if int(real.sum()) == int(mask[0].sum()):
                    length = int(real.sum())
                    distance = float((row[:length] - embedded[0, :length]).norm())
                    nearest[place] = min(nearest.get(place, distance), distance)
            distances += nearest.values()
        return {"median": statistics.median(distances), "words": len(distances)}

    # Time

    def time(self, repeats: int = 5) -> dict[str, Any]:
        """At 100 draws, without early stopping: the served prediction less the time that its noise
        takes, over the bare session on the same batches. One text, and eight, in a request."""
        served = self.of(self.noisy)
        runner: Any = served.runners.of("perturbed")
        examples = [e.text for language in self.languages for e in self.items[language]]
        random.Random(0).shuffle(examples)
        asked = Smoothing(100, 1e-38, noise="gaussian", scale=self.sigma, seed=1)
        out: dict[str, Any] = {}
        for size in (1, 8):
            texts = examples[:size]
            rows = [
                row
                for text in texts
                for row in attacks.noisy_text(served, text, 1, self.noise).rows(range(100))
            ]
            ready = []
            for batch in plan([row.length for row in rows], served.budget):
                ready.append(runner.io.feeds([rows[i] for i in batch]))
            spent = [0.0]
            original = runner.io.noise

            def timed(rows: Any, longest: int) -> Any:
                begun = time.perf_counter()
                made = original(rows, longest)  # noqa: B023
                spent[0] += time.perf_counter() - begun  # noqa: B023
                return made

            ratios, noise_shares = [], []
            for number in range(repeats + 1):
                begun = time.perf_counter()
                for given in ready:
                    runner.session.run(given)
                bare = time.perf_counter() - begun
                spent[0], runner.io.noise = 0.0, timed
                begun = time.perf_counter()
                answers = served.predict(texts, mode="smoothed", smoothing=asked)
                whole = time.perf_counter() - begun
                runner.io.noise = original
                assert all(a.smoothed is not None and a.smoothed.draws == 100 for a in answers)
                if number:  # the first is for warming up
                    ratios.append((whole - spent[0]) / bare)
                    noise_shares.append(spent[0] / bare)
            out["one text" if size == 1 else f"{size} texts"] = {
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "noise_to_session": statistics.median(noise_shares),
            }
        return out

    # Under noise and switched codes

    def under_noise(self, language: str) -> dict[str, Any]:
        """The input's own E(x) moved by noise of σ and 2σ: plain vanilla, smoothed noise-trained."""
        examples = self.items[language][: self.options.texts]
        vanilla, noisy = self.of("vanilla"), self.of(self.noisy)
        options = PollOptions(100, self.alpha)
        out = {}
        for factor in (1, 2):
            moved = []
            for served in (vanilla, noisy):
                texts = []
                for number, example in enumerate(examples):
                    text = attacks.noisy_text(served, example.text, 4, self.noise)
                    generator = np.random.default_rng([factor, number])
                    width = served.runners.of("perturbed").io.width
                    shift = generator.standard_normal((text.piece.length, width), np.float32)
                    texts.append(attacks.ShiftedText(text, factor * self.sigma * shift))
                moved.append(texts)
            plain = attacks.shifted_labels(vanilla, moved[0])
            voted = attacks.shifted_votes(noisy, moved[1], options)
            truth = [vanilla.labels.index(e.label) for e in examples]
            out[str(factor)] = {
                "vanilla": [a == b for a, b in zip(plain, truth, strict=True)],
                "smoothed": [v.label == b for v, b in zip(voted, truth, strict=True)],
            }
        return out

    def code_switched(self) -> dict[str, Any]:
        """English texts, each word that a dictionary knows switched with p = ½."""
        lexicons = load_lexicons(self.options.data, "en", [])
        chosen = {lg: lexicons[lg] for lg in self.languages if lg in lexicons}
        examples = self.items.get("en") or load_split(TASK, self.options.data, "test", "en")
        asked = Smoothing(noise="gaussian", scale=self.sigma, alpha=self.alpha, seed=5)
        out = {}
        for language, table in chosen.items():
            generator = random.Random(f"switch/{language}")
            mixed = [
                e.with_texts([switch(e.text, {language: table}, 0.5, generator)]) for e in examples
            ]
            out[language] = {
                "vanilla": self.right(self.of("vanilla"), mixed, language="en"),
                "smoothed": self.right(
                    self.of(self.noisy), mixed, mode="smoothed", smoothing=asked, language="en"
                ),
            }
        return out

    # Attacks

    def pgd(self, language: str) -> dict[str, Any]:
        """Texts with a certificate, moved as far as it reaches; and further, where labels may fall.

        What is attacked is the certified label, what judges is Predict on fresh draws: a label falls
        if another is decided. ``abstained``: none is, which breaks no certificate. ``kind``: by a
        fixed number of draws, or served, stopped early for the radius that was asked for.
        """
        served = self.of(self.noisy)
        network, _ = models.load(self.work / "runs" / self.noisy)
        certificates = self.stage(
            f"certified-noise-{language}", self.certified, language, self.noisy
        )
        early = self.stage(f"to-certificate-{language}", self.to_certificate, language)
        numbers = [None if name is None else served.labels.index(name) for name in early["label"]]
        rows: list[dict[str, Any]] = []
        uncertified = 0
        for kind, factors, labels, radii in (
            ("fixed", FACTORS, certificates["label"], certificates["radius"]),
            ("served", FACTORS[:1], numbers, early["reached"]),
        ):
            attacked = 0
            for number, (label, radius) in enumerate(zip(labels, radii, strict=True)):
                if attacked >= self.options.attacked:
                    break
                if label is None or radius <= 0:
                    uncertified += 1
                    continue
                attacked += 1
                example = self.items[language][number]
                row: dict[str, Any] = {"kind": kind, "label": label, "radius": radius}
                row |= {"fell": {}, "abstained": {}}
                for factor in factors:
                    shift = attacks.pgd(
                        network, example, label, self.sigma, factor * radius, seed=number
                    )
                    text = attacks.noisy_text(served, example.text, 7, self.noise)
                    after = self.judged(attacks.ShiftedText(text, shift))
                    row["fell"][str(factor)] = after is not None and after != label
                    row["abstained"][str(factor)] = after is None
                rows.append(row)
        return {"attacks": rows, "uncertified": uncertified}

    def judged(self, text: attacks.ShiftedText) -> int | None:
        """Predict on a fixed number of draws; None: it abstains."""
        served = self.of(self.noisy)
        run = attacks._runner(served, silent=False)
        votes = run(RunRequest("perturbed", text.rows(range(JUDGES))))["logits"].argmax(axis=1)
        counts = np.bincount(votes, minlength=len(served.labels)).tolist()
        return certify.predict(counts, self.alpha)

    def synonyms(self, name: str) -> dict[str, Any]:
        """English texts: certificates by groups and by raw lists, and a greedy search inside them."""
        served, table = self.of(name), self.table()
        examples = load_split(TASK, self.options.data, "test", "en")[: self.options.synonym_texts]
        texts = [e.text for e in examples]
        plain = served.predict(texts, abstain_below=0)
        out: dict[str, Any] = {
            "plain_right": [p.label == e.label for p, e in zip(plain, examples, strict=True)]
        }
        for draws in DRAWS:
            asked = Smoothing(1000, self.alpha, noise="synonym", synonyms=draws, words=1, seed=8)
            again = Smoothing(1000, self.alpha, noise="synonym", synonyms=draws, seed=9)
            how: dict[str, Any] = {"mode": "smoothed", "language": "en"}
            answers = served.predict(texts, smoothing=asked, **how)
            attacked, numbers = [], []
            for number, answer in enumerate(answers):
                proved = answer.smoothed.certificate if answer.smoothed else None
                if proved is None or answer.label is None:
                    continue
                label = served.labels.index(answer.label)
                numbers.append(number)
                attacked.append(
                    attacks.substitution(
                        served, texts[number], label, table, draws, proved.words or 0
                    )
                )
            after = served.predict(attacked, smoothing=again, **how)
            after_plain = served.predict(attacked, abstain_below=0)
            out[draws] = {
                "right": [a.label == e.label for a, e in zip(answers, examples, strict=True)],
                "decided": [a.label is not None for a in answers],
                "draws": [a.smoothed.draws for a in answers if a.smoothed],
                "certified": [
                    0
                    if a.smoothed is None or a.smoothed.certificate is None
                    else a.smoothed.certificate.words
                    for a in answers
                ],
                "attacked": len(numbers),
                "plain_fell": sum(
                    plain[n].label != p.label for n, p in zip(numbers, after_plain, strict=True)
                ),
                "broken": sum(
                    a.label is not None and a.label != answers[n].label
                    for n, a in zip(numbers, after, strict=True)
                ),
            }
        return out


def plain_accuracy(vanilla: dict[str, list[bool]], noisy: dict[str, list[bool]]) -> dict[str, Any]:
    """What training under noise costs where there is none, for each language and in the mean."""
    rows = {
        language: {"vanilla": float(np.mean(vanilla[language])), "noise": float(np.mean(right))}
        for language, right in noisy.items()
    }
    rows["mean"] = {
        kind: float(np.mean([row[kind] for row in rows.values()])) for kind in ("vanilla", "noise")
    }
    for row in rows.values():
        row["difference"] = row["noise"] - row["vanilla"]
    # Of the exact values, a point less is still within one point.
    return {"rows": rows, "within_one_point": rows["mean"]["difference"] >= -0.01 - 1e-9}


if __name__ == "__main__":
    main()
