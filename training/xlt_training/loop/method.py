"""A training method: a few hooks, wrapped around each other like an onion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor
from torch.nn import functional as F

from xlt_serve.files.labelled import Place
from xlt_serve.smoothing import noise as noises
from xlt_serve.text.synonyms import Draws
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example, Loss, Mixed, Output

Objective = Callable[[Classifier, Batch], Loss]


class Trait(Enum):
    """What a method does, as far as others must know to compose with it (``loop/composition.py``)."""

    FREEZES = "freezes the encoder, all of it or in part"
    FREEZES_ALL = "leaves no weight of the encoder free"
    CHANGES_IDS = "makes batches of other words"
    CHANGES_EMBEDDINGS = "changes the embeddings"
    MOVES_WEIGHTS = "moves the weights before training"
    INSERTS_POSITIONS = "puts vectors between the tokens"
    NORM = "is a norm before the head"
    ANCHOR = "is an anchor: holds the weights"
    PENALTY = "adds a penalty"
    OBJECTIVE = "has an objective of its own"
    SECOND_STREAM = "makes the second stream of a pair"
    SUMS_STREAMS = "sums the loss of both streams"
    RUNS_STREAMS = "runs both streams itself, past the objectives inside it"
    MAXIMISES = "attacks the loss inside it"
    COMPARES_TOKENS = "compares texts token by token"
    SOURCE_WORDS = "needs words of the source language"
    TRANSLATIONS = "needs recorded translations of the train set"


@dataclass(frozen=True)
class Context:
    """What a method may know about the run beside its own settings.

    ``lexicons``: where word lists lie, and, unless ``synonyms`` names it, the table of synonyms;
    ``translations``: the folder of recorded ones; ``targets``: the languages that the task is judged in.
    ``pretrained``: the encoder's parameters by name, as they were before the first stage.
    ``prepared``: kinds of methods that an earlier stage has prepared already. ``tuned``: names of the
    encoder's parameters that ``train.freeze`` leaves free in some stage; None: all. ``encoder``: the
    digest of the weights that the run began with.
    """

    source: str
    seed: int
    lexicons: Place | Path = "lexicons"
    translations: Path = Path("mt")
    targets: Sequence[str] = ()
    steps: int = 0
    pretrained: Mapping[str, Tensor] = field(default_factory=dict)
    prepared: frozenset[type] = frozenset()
    synonyms: str = ""
    tuned: frozenset[str] | None = None
    encoder: str = ""


@dataclass(frozen=True)
class TrainedNoise:
    """Where training put noise; ``kind`` and ``scale`` of what the model has learnt to bear, where it
    was random."""

    at: noises.Place
    kind: str = ""
    scale: float = 0.0


@dataclass(frozen=True)
class TrainedSynonyms:
    """How training drew synonyms: from which ``table`` ("": the one of the data folder), and from what
    ``share`` of its words."""

    table: str
    draws: Draws
    share: float


class Again(Protocol):
    """The whole training once more, without a part of the train set: the model, the source examples
    that it was not trained on, and what the methods were told."""

    def __call__(self, fold: str) -> tuple[Classifier, list[Example], Context]: ...


class Pairing(Protocol):
    """A method whose model reads a text beside its translation. The streams meet in ``layer``;
    without ``mixup_inference`` the target is predicted by a plain pass."""

    layer: int
    mixup_inference: bool

    def mix(self, model: Classifier, target: Batch, source: Batch) -> Mixed: ...


@dataclass
class Method:
    """A dataclass whose fields are its keys in a config. Each hook does nothing unless overridden.

    They are called in this order: ``augment``, ``attach``, ``prepare``, then ``objective`` on every
    batch. Loading a checkpoint calls ``attach`` alone. An export asks for the rest.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset()
    graphs: ClassVar[tuple[str, ...]] = ()
    """Graphs that an export makes for a model trained so, beside the plain one."""
    first_edition: ClassVar[Mapping[str, Any]] = {}
    """Settings that were not there when the first checkpoints were made, and what these were trained by,
    where that is not today's default."""

    @classmethod
    def has(cls, trait: Trait) -> bool:
        if trait is Trait.OBJECTIVE:
            return cls.objective is not Method.objective
        return trait in cls.traits

    def problems(self) -> list[str]:
        """What is wrong with the settings, as far as they alone can tell."""
        return []

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        """The examples to train on, made once before training."""
        return examples

    def attach(self, model: Classifier) -> None:
        """Add modules that are trained, saved and served with the model."""

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        """Change the model before training: freeze, set first values, take anchors."""

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        """The loss of a batch; ``inner`` is the objective of the next method in the config."""
        return inner(model, batch)

    def fitted(self, again: Again) -> dict[str, dict[str, float]]:
        """Numbers for serving, by mode, that take models of parts of the train set to find."""
        return {}

    def predict(self, model: Classifier, batch: Batch) -> Output | None:
        """How a model trained so predicts a source-language batch, where a plain pass is not it."""
        return None

    def refuses(self, graph: str) -> str:
        """Why one of its ``graphs`` can't be made with these settings; empty: it can."""
        return ""

    def reads(self) -> Sequence[Path]:
        """Files beside the data that it reads: a run notes what was in them."""
        return ()

    def noise(self) -> TrainedNoise | None:
        """The noise that it trained with."""
        return None

    def synonyms(self) -> TrainedSynonyms | None:
        """The synonyms that it drew."""
        return None

    def pairing(self) -> Pairing | None:
        """How it reads a text beside its translation."""
        return None


def share_problems(method: Method, *names: str) -> list[str]:
    """Settings that must lie in [0, 1] and don't."""
    values = {name: getattr(method, name) for name in names}
    return [f"{n} must be between 0 and 1, was: {v}" for n, v in values.items() if not 0 <= v <= 1]


def least_problems(method: Method, least: float, *names: str) -> list[str]:
    """Settings that must be at least so much and aren't."""
    values = {name: getattr(method, name) for name in names}
    return [f"{n} must be at least {least}, was: {v}" for n, v in values.items() if v < least]


def cross_entropy(model: Classifier, batch: Batch) -> Loss:
    """The innermost objective."""
    out = model(batch)
    loss = classification(model, out.logits, batch.labels)
    return Loss(loss, {"cross_entropy": loss}, outputs=[out])


def classification(model: Classifier, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy under the class weights of the run: what every method learns labels by."""
    weights = model.class_weights
    return F.cross_entropy(logits, labels, None if weights is None else weights.to(logits.device))


def compose(methods: Sequence[Method]) -> Objective:
    """Fold the methods over cross-entropy; the first in the list is the outermost."""

    def wrap(method: Method, inner: Objective) -> Objective:
        return lambda model, batch: method.objective(model, batch, inner)

    objective: Objective = cross_entropy
    for method in reversed(methods):
        objective = wrap(method, objective)
    return objective
