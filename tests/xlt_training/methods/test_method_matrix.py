"""One test for all methods: trains, resumes identically, exports with parity, composes or says why not."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer
from xlt_training.data import load_split
from xlt_training.exporting import checkpoint as export
from xlt_training.exporting import gate, trained
from xlt_training.loop import composition, config, evaluate, fisher, trainer
from xlt_training.loop import model as models
from xlt_training.loop.config import Config, Stage
from xlt_training.loop.method import Method, compose
from xlt_training.loop.types import Example
from xlt_training.methods import METHODS
from xlt_training.methods.ewc import EWC
from xlt_training.methods.soft_prompt import SoftPrompt
from xlt_training.methods.synonyms import Synonyms
from xlt_training.methods.word_swap import WordSwap

from tests.xlt_training.contexts import context_of
from xlt_serve import load
from xlt_serve.errors import ConfigError

EXPORTED = {"vanilla", "adapters"}
"""Without and with parts of their own in the graph; the others are exported in the slow tests."""

PAIRS = [
    pytest.param(outer, inner, marks=() if (number + place) % 5 == 0 else pytest.mark.slow)
    for number, outer in enumerate(METHODS)
    for place, inner in enumerate(METHODS)
    if outer != inner
]
"""Each method is within and around some others in the fast tests, all others in the slow ones."""


@pytest.fixture(scope="module")
def fishers(
    encoders: dict[str, Path], toy_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("fisher")
    texts = (toy_data / "text" / "fr.txt").read_text().splitlines()
    fisher.save(folder, "fr", fisher.compute(str(encoders["xlm-roberta"]), texts, sentences=5))
    return folder


def make(name: str, fishers: Path) -> Method:
    if name == "ewc":
        return EWC(str(fishers), fisher=["fr"])
    if name in ("synonyms", "word_swap"):
        return {"synonyms": Synonyms, "word_swap": WordSwap}[name](copies=1)
    return METHODS[name]()


def short(config_file: Path, methods: list[Method]) -> Config:
    overrides = ["train.epochs=3", "train.batch_size=60", "train.max_length=24"]
    made = config.load(config_file, overrides)
    made.stages = [Stage(made.train, methods)]
    return made


@pytest.mark.parametrize("name", METHODS)
def test_each_method_trains_and_resumes_identically(
    name: str, config_file: Path, fishers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings() -> Config:
        return short(config_file, [make(name, fishers)])

    metrics = trainer.train(settings(), tmp_path / "whole")
    terms = {key for entry in metrics["log"] for key in entry if key.startswith("term/")}
    assert terms
    step = Trainer.training_step
    calls = itertools.count()
    half = next(e["step"] for e in metrics["log"] if "eval_score" in e) + 1

    def stop_in_the_second_epoch(self: Trainer, *args: object, **more: object) -> torch.Tensor:
        if next(calls) == half:
            raise KeyboardInterrupt
        return step(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", stop_in_the_second_epoch)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(settings(), tmp_path / "stopped")
    trainer.train(settings(), tmp_path / "stopped")
    for file in ("model.safetensors", "slots.safetensors"):
        assert (tmp_path / "whole" / file).exists() == (tmp_path / "stopped" / file).exists()
        if (tmp_path / "whole" / file).exists():
            first, second = (load_file(tmp_path / run / file) for run in ("whole", "stopped"))
            assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    "name",
    [n if n in EXPORTED else pytest.param(n, marks=pytest.mark.slow) for n in METHODS],
)
def test_each_method_exports_with_parity(
    name: str, config_file: Path, fishers: Path, toy_data: Path, tmp_path: Path
) -> None:
    trainer.train(short(config_file, [make(name, fishers)]), tmp_path / "run")
    bundle = export.export(tmp_path / "run", tmp_path / "bundle")
    network, _ = models.load(tmp_path / "run")
    examples = load_split("sib200", toy_data, "test", "en")
    expected = evaluate.logits(network, examples)
    served = load(bundle.path)
    given = served.logits(gate.tokenised(served, examples))
    assert abs(given - expected).max() <= 1e-5


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_each_pair_composes_or_says_why_not(
    outer: str,
    inner: str,
    encoders: dict[str, Path],
    toy_data: Path,
    fishers: Path,
) -> None:
    if reasons := composition.problems([outer, inner]):
        assert all(outer in reason or inner in reason for reason in reasons)
        return
    torch.manual_seed(0)
    context = context_of(toy_data, steps=10)
    model = models.build(str(encoders["xlm-roberta"]), ["food", "sports", "weather"], 24)
    methods = [make(outer, fishers), make(inner, fishers)]
    examples: list[Example] = load_split("sib200", toy_data, "train", "en")[:8]
    for method in methods:
        examples = list(method.augment(examples, context))
    for method in methods:
        method.attach(model)
    batch = model.batch(examples[-6:])
    for method in methods:
        method.prepare(model, [batch], context)
    model.train()
    loss = compose(methods)(model, batch)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in trained)
    total = sum(value.item() for value in loss.terms.values())
    assert loss.total.item() == pytest.approx(total, rel=1e-4)


def test_refusals_are_those_on_record() -> None:
    """Every ordered pair, with itself too: which are refused, and in which words."""
    record = json.loads((Path(__file__).parent / "refused_pairs.json").read_text())
    names = [name for name in METHODS if f"{name},{name}" in record]
    assert len(names) >= 19
    pairs = itertools.product(names, names)
    found = {f"{a},{b}": reasons for a, b in pairs if (reasons := composition.problems([a, b]))}
    assert found == record


def test_most_pairs_compose() -> None:
    pairs = list(itertools.permutations(METHODS, 2))
    composing = [pair for pair in pairs if not composition.problems(pair)]
    assert len(pairs) >= 342
    assert len(composing) >= 280


@pytest.mark.parametrize(
    "names",
    [
        ("synonyms", "isotropy"),
        ("synonyms", "code_switch"),
        ("synonyms", "ear"),
        ("l2_anchor", "synonyms"),
        ("l2_anchor", "isotropy", "code_switch"),
        ("l2_anchor", "ear", "adversarial"),
        ("isotropy", "ear"),
        ("l2_anchor", "xmixup"),
        ("ewc", "translate_train"),
    ],
)
def test_what_composes_in_the_papers_composes_here(names: tuple[str, ...]) -> None:
    assert composition.problems(names) == []


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("noise", "code_switch"), "belong to other ids"),
        (("noisy_tune", "l2_anchor"), "hold on to the noise"),
        (("bitfit", "adapters"), "freezes the encoder in its own way"),
        (("xmixup", "isotropy"), "put xmixup last"),
        (("ear", "l2_anchor"), "counted for both streams"),
        (("adversarial", "isotropy"), "the attack would maximise it too"),
        (("noise", "noise"), "is there twice"),
        (("ear", "code_switch"), "makes the second stream"),
    ],
)
def test_what_can_not_compose_is_refused_with_the_reason(
    names: tuple[str, ...], why: str, config_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.toml"
    text = config_file.read_text().partition("[[method]]")[0]
    file.write_text(text + "".join(f'[[method]]\nname = "{name}"\n' for name in names))
    with pytest.raises(ConfigError, match=why):
        config.load(file)


def test_of_two_stages_the_last_says_what_noise_was_learnt() -> None:
    """But what a method added to the model was added in the first."""
    stages = [
        {
            "methods": [
                {"name": "noise", "distribution": "gaussian", "sigma": sigma},
                {"name": "soft_prompt", "length": length},
            ]
        }
        for sigma, length in ((0.05, 4), (0.1, 8))
    ]
    description = models.Description("sib200", False, ["a"], "en", 64, {"stages": stages})
    noise, prompt = models.methods_of(description)
    assert trained.trained_noise([noise, prompt])["scale"] == 0.1
    assert isinstance(prompt, SoftPrompt)
    assert prompt.length == 4


def test_two_stages_run_one_after_the_other_and_resume(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IsoZCL: isotropy, then code-switching, with synonyms in both."""
    file = tmp_path / "stages.toml"
    text = config_file.read_text().partition("[[method]]")[0]
    file.write_text(
        text
        + """
[[method]]
name = "synonyms"
copies = 1
[[stage]]
[stage.train]
epochs = 1
[[stage.method]]
name = "isotropy"
[[stage]]
[stage.train]
epochs = 2
[[stage.method]]
name = "code_switch"
"""
    )
    made = config.load(file, ["train.batch_size=60"])
    assert [stage.train.epochs for stage in made.stages] == [1, 2]
    assert [stage.train.batch_size for stage in made.stages] == [60, 60]
    metrics = trainer.train(made, tmp_path / "whole")
    of_stage = [
        {key for e in metrics["log"] if e["stage"] == n for key in e if key.startswith("term/")}
        for n in (0, 1)
    ]
    assert "term/isotropy" in of_stage[0]
    assert "term/isotropy" not in of_stage[1]
    assert "term/word_distance" in of_stage[1]
    step, stage = Trainer.training_step, itertools.count()

    def stop_in_the_second_stage(self: Trainer, *args: object, **more: object) -> torch.Tensor:
        if next(stage) == 14:
            raise KeyboardInterrupt
        return step(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", stop_in_the_second_stage)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(config.load(file, ["train.batch_size=60"]), tmp_path / "stopped")
    assert (tmp_path / "stopped" / "resume" / "stage-0.safetensors").exists()
    trainer.train(config.load(file, ["train.batch_size=60"]), tmp_path / "stopped")
    first, second = (load_file(tmp_path / r / "model.safetensors") for r in ("whole", "stopped"))
    assert all(torch.equal(first[key], second[key]) for key in first)
