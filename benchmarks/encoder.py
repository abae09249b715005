"""How well does an encoder transfer? ``python -m benchmarks.encoder --data ../shared/data``.

Zero-shot, English labels only, means of three seeds selected on English dev:

- SIB-200 topics, fine-tuned; on test where it is open, on dev elsewhere;
- xSID intents, fine-tuned; on valid;
- linear CKA and retrieval accuracy of parallel sentences, no training.

Beside it the teacher (Universal Sentence Encoder Multilingual) with a logistic regression, on the
same items. Resumable: every fine-tuned model is kept in ``--work``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xlt_training.analysis.alignment import linear_cka, retrieval_accuracy
from xlt_training.analysis.vectors import SentenceEncoder
from xlt_training.data import languages, load_split
from xlt_training.encoders import examples, teacher
from xlt_training.encoders.corpus import LANGUAGES, TEACHER_LANGUAGES
from xlt_training.loop import config, evaluate, model, pretrained, trainer
from xlt_training.loop.types import Example

HERE = Path(__file__).parent
UNTAUGHT = [language for language in LANGUAGES if language not in TEACHER_LANGUAGES]
XSID_GOAL = ["de", "ar", "tr", "zh", "ja", "it", "nl"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--tasks", nargs="+", choices=("sib200", "xsid"), default=["sib200", "xsid"]
    )
    parser.add_argument("--work", type=Path, default=Path("build/benchmark-encoder"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "encoder.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"encoder": options.encoder, "seeds": options.seeds}
    place = Path(pretrained.resolve(options.encoder))
    results["alignment"] = alignment(place, options.data, options.work)
    for task in options.tasks:
        items = sib_items(options.data) if task == "sib200" else dev_items(task, options.data)
        cache = options.work.parent / "encoder" / "teacher"
        teacher_scores = teacher_row(task, options.data, items, cache)
        student = student_rows(task, options, items)
        results[task] = {"teacher": teacher_scores, "student": student}
        results[task]["summary"] = summarise(task, results[task], items)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(markdown(results))
    print(options.out.with_suffix(".md").read_text())


def sib_items(data: Path) -> dict[str, list[Example]]:
    """Test where it is open, dev elsewhere."""
    tested = languages("sib200", data, "test")
    return {
        language: load_split("sib200", data, "test" if language in tested else "dev", language)
        for language in languages("sib200", data, "dev")
    }


def dev_items(task: str, data: Path) -> dict[str, list[Example]]:
    return {lg: load_split(task, data, "dev", lg) for lg in languages(task, data, "dev")}


def student_rows(
    task: str, options: argparse.Namespace, items: dict[str, list[Example]]
) -> dict[str, list[float]]:
    """language → accuracy of each seed."""
    out: dict[str, list[float]] = {language: [] for language in items}
    for seed in range(options.seeds):
        overrides = [f"seed={seed}", f"task.data={options.data}", f"encoder={options.encoder}"]
        made = config.named(task, "vanilla", overrides)
        folder = options.work / f"{task}-{seed}"
        trainer.train(made, folder, judge=False)
        network, _ = model.load(folder)
        predict = evaluate.torch_predictor(network)
        for language, rows in items.items():
            truth = [row.label for row in rows]
            out[language].append(evaluate.score(predict(rows), truth).accuracy)
        print(f"{task} seed {seed}: mean {np.mean([v[-1] for v in out.values()]):.3f}", flush=True)
    return out


def teacher_row(
    task: str, data: Path, items: dict[str, list[Example]], cache: Path
) -> dict[str, float]:
    """The teacher's vectors under a logistic regression with the penalty chosen on English dev."""
    train = load_split(task, data, "train", "en")
    texts = list(dict.fromkeys(example.text for example in train))
    row_of = {text: number for number, text in enumerate(texts)}
    vectors = teacher.encode_cached(texts, cache, f"{task}-train").astype(np.float32)
    labels = sorted({example.label for example in train})
    x = torch.from_numpy(vectors[[row_of[e.text] for e in train]])
    y = torch.tensor([labels.index(e.label) for e in train])
    dev = load_split(task, data, "dev", "en")
    dev_x = torch.from_numpy(
        teacher.encode_cached([e.text for e in dev], cache, f"{task}-dev").astype(np.float32)
    )

    def accuracy(weights: torch.Tensor, vectors: torch.Tensor, rows: list[Example]) -> float:
        best = (vectors @ weights[:-1] + weights[-1]).argmax(dim=1)
        return float(np.mean([labels[int(b)] == e.label for b, e in zip(best, rows, strict=True)]))

    fitted = [logistic_regression(x, y, len(labels), penalty) for penalty in (1e-4, 1e-3, 1e-2)]
    weights = max(fitted, key=lambda w: accuracy(w, dev_x, dev))
    out = {}
    for language, rows in items.items():
        encoded = teacher.encode_cached([e.text for e in rows], cache, f"{task}-{language}")
        out[language] = accuracy(weights, torch.from_numpy(encoded.astype(np.float32)), rows)
    return out


def logistic_regression(
    x: torch.Tensor, y: torch.Tensor, classes: int, penalty: float
) -> torch.Tensor:
    """[width + 1, classes], the last row the bias, by L-BFGS: the problem is convex."""
    weights = torch.zeros(x.shape[1] + 1, classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y)
        loss = loss + penalty * weights[:-1].square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


def alignment(place: Path, data: Path, work: Path) -> dict[str, dict[str, float]]:
    """Parallel sentences that no training saw: SIB-200 dev, and translation pairs held back."""
    encoder = SentenceEncoder(place)
    english = load_split("sib200", data, "dev", "en")
    of_english = encoder.encode([e.text for e in english])
    material = examples.gather(data, work.parent / "encoder")
    out = {}
    for language in LANGUAGES:
        if language == "en":
            continue
        text_of = {e.id: e.text for e in load_split("sib200", data, "dev", language)}
        vectors = encoder.encode([text_of[e.id] for e in english])
        held = list({row[0]: row for row in material.pools[language]["held"]}.values())
        out[language] = {
            "cka": linear_cka(of_english, vectors),
            "retrieval_sib": retrieval_accuracy(vectors, of_english),
            "retrieval_held": retrieval_accuracy(
                encoder.encode([other for _, other, _ in held]),
                encoder.encode([english for english, _, _ in held]),
            ),
            "held_pairs": len(held),
        }
    return out


def summarise(task: str, rows: dict[str, Any], items: dict[str, list[Example]]) -> dict[str, Any]:
    student = {language: float(np.mean(values)) for language, values in rows["student"].items()}
    taught = [lg for lg in items if lg in TEACHER_LANGUAGES and lg != "en"]
    untaught = [lg for lg in items if lg in UNTAUGHT]

    def mean(scores: dict[str, float], chosen: list[str]) -> float | None:
        return float(np.mean([scores[lg] for lg in chosen])) if chosen else None

    majority = {
        lg: max(np.unique([e.label for e in rows_], return_counts=True)[1]) / len(rows_)
        for lg, rows_ in items.items()
    }
    out: dict[str, Any] = {
        "student_taught": mean(student, taught),
        "teacher_taught": mean(rows["teacher"], taught),
        "student_untaught": mean(student, untaught),
        "teacher_untaught": mean(rows["teacher"], untaught),
        "least_above_majority": float(min(student[lg] - majority[lg] for lg in items)),
        "majority": {lg: float(value) for lg, value in majority.items()},
    }
    out["ratio_to_teacher"] = out["student_taught"] / out["teacher_taught"]
    if task == "xsid":
        out["student_goal_languages"] = mean(student, XSID_GOAL)
        out["teacher_goal_languages"] = mean(rows["teacher"], XSID_GOAL)
    return out


def markdown(results: dict[str, Any]) -> str:
    lines = [f"# Transfer of `{results['encoder']}` (English labels, {results['seeds']} seeds)", ""]
    for task in ("sib200", "xsid"):
        if task not in results:
            continue
        rows = results[task]
        lines += [f"## {task}", "", "| language | student | ± | teacher + LR | majority |"]
        lines += ["|---|---|---|---|---|"]
        for language, values in rows["student"].items():
            lines.append(
                f"| {language} | {np.mean(values):.3f} | {np.std(values):.3f} "
                f"| {rows['teacher'][language]:.3f} | {rows['summary']['majority'][language]:.3f} |"
            )
        lines += [""]
        for name, value in rows["summary"].items():
            if isinstance(value, float):
                lines.append(f"- {name}: {value:.3f}")
        lines += [""]
    lines += ["## Alignment with English", "", "| language | CKA | retrieval, SIB dev |"]
    lines[-1] += " retrieval, held-back pairs | pairs |"
    lines += ["|---|---|---|---|---|"]
    for language, row in results["alignment"].items():
        lines.append(
            f"| {language} | {row['cka']:.3f} | {row['retrieval_sib']:.3f} "
            f"| {row['retrieval_held']:.3f} | {row['held_pairs']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
