"""Votes that rounding changes, counted where a margin is needed: where about half of the draws agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from xlt_serve.classifier import Classifier
from xlt_serve.modes.draws import NoisyText
from xlt_serve.runtime.graph_io import Feeds
from xlt_serve.smoothing.noise import Noise, stream_key
from xlt_serve.text.tokens import Tokens

BATCH = 64
Numbers = npt.NDArray[np.float64]


class Draws:
    """The votes of one text under noise and a shift of all draws."""

    def __init__(self, classifier: Classifier, text: str, noise: Noise) -> None:
        [tokens] = classifier.encoder.encode([text])
        assert isinstance(tokens, Tokens)
        self.text = NoisyText(tokens.pieces[0], stream_key(1, text), noise)
        self.runner = classifier.runners.of("perturbed")

    def feeds(self, start: int) -> Feeds:
        """Of ``BATCH`` draws."""
        return self.runner.io.feeds(self.text.rows(range(start, start + BATCH)))

    def logits(self, feeds: Feeds, noise: Numbers) -> Numbers:
        found = self.runner.session.run(feeds | {"noise": noise.astype(np.float32)})["logits"]
        return found.astype(np.float64)

    def shift(self) -> tuple[int, Numbers]:
        """A label, and a shift after which about half of the draws vote for it: against the mean of
        the noise weighted by the label's lead, so far as it takes."""
        every = [self.feeds(start) for start in range(0, 4 * BATCH, BATCH)]
        noises = np.concatenate([each["noise"] for each in every]).astype(np.float64)
        logits = np.concatenate([self.logits(each, each["noise"]) for each in every])
        label = int(np.bincount(logits.argmax(axis=1)).argmax())
        lead = logits[:, label] - np.delete(logits, label, axis=1).max(axis=1)
        way = np.tensordot(lead - lead.mean(), noises, axes=1)
        way /= np.linalg.norm(way)

        def share(far: float) -> float:
            votes = [self.logits(f, f["noise"] - far * way).argmax(axis=1) for f in every[:2]]
            return float((np.concatenate(votes) == label).mean())

        low, high = 0.0, self.text.noise.scale
        while share(high) > 0.5 and high < 1e5:
            low, high = high, 2 * high
        for _ in range(7):
            middle = (low + high) / 2
            low, high = (middle, high) if share(middle) > 0.5 else (low, middle)
        return label, (low + high) / 2 * way

    def changed(self, draws: int, rounding: float) -> tuple[int, float]:
        """How many votes change when each coordinate moves by about as much as rounding may, and the
        label's share, which is to be near ½."""
        generator, (label, shift) = np.random.default_rng(0), self.shift()
        changed = votes = 0
        for start in range(100_000, 100_000 + draws, BATCH):
            feeds = self.feeds(start)
            exact = feeds["noise"].astype(np.float64) - shift
            moved = exact * (1 + generator.uniform(-3 * rounding, 3 * rounding, exact.shape))
            moved += generator.uniform(-rounding, rounding, exact.shape)
            before = self.logits(feeds, exact).argmax(axis=1)
            changed += int((before != self.logits(feeds, moved).argmax(axis=1)).sum())
            votes += int((before == label).sum())
        return changed, votes / draws


def changed_votes(
    classifier: Classifier, texts: Sequence[str], noise: Noise, draws: int, rounding: float
) -> tuple[int, float]:
    """Of ``draws`` of each text, and how many the margins allow for."""
    total, allowed = 0, 0.0
    for text in texts:
        drawn = Draws(classifier, text, noise)
        changed, share = drawn.changed(draws, rounding)
        assert 0.2 < share < 0.8, f"{text}: a share of {share} is not near the boundary"
        total, allowed = total + changed, allowed + draws * drawn.text.noise.changed
    return total, allowed
