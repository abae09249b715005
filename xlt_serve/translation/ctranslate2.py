"""CTranslate2: neural translation by OPUS-MT, NLLB and Argos models, on the CPU (in int8) or on GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from xlt_serve.errors import BundleError, UsageError, first_line, needed
from xlt_serve.translation.flores import FLORES
from xlt_serve.translation.protocol import PairRefused, Translation
from xlt_serve.translation.sentences import pieces
from xlt_serve.translation.worker import Worker

DESCRIPTION = "translator.json"
Kind: TypeAlias = Literal["argos", "marian", "nllb"]


@dataclass(frozen=True, slots=True)
class Folder:
    """A model on disk: where its parts are, and how it wants its tokens.

    ``pair`` is the one pair (source, target) of a bilingual model, None for all of NLLB's.
    ``prefix`` is a token that multilingual models want: Marian's before the text (``>>fra<<``),
    Argos' before the translation.
    """

    kind: Kind
    model: Path
    source_pieces: Path
    target_pieces: Path
    pair: tuple[str, str] | None
    prefix: str = ""
    add_end: bool = False


def inspect(folder: Path, pair: tuple[str, str] | None = None) -> Folder:
    """What is in ``folder``, by its files; ``pair`` where the folder itself does not say."""
    model = next((f for f in (folder, folder / "model") if (f / "model.bin").is_file()), None)
    if model is None:
        raise BundleError(
            folder,
            "has no CTranslate2 model (model.bin)",
            "make one with `xlt translator convert` or `xlt translator fetch`",
        )
    described = _json(folder / DESCRIPTION) | _argos(folder)
    if "source" in described and "target" in described:
        pair = pair or (described["source"], described["target"])
    prefix = str(described.get("prefix") or "")
    adds_end = bool(_json(model / "config.json").get("add_source_eos"))
    found = {
        file.name: file for place in (folder, model) for file in place.iterdir() if file.is_file()
    }
    if "source.spm" in found and "target.spm" in found:
        parts = ("marian", model, found["source.spm"], found["target.spm"])
        made = Folder(*parts, pair, prefix, add_end=not adds_end)  # type: ignore[arg-type]
    elif "sentencepiece.bpe.model" in found:
        one = found["sentencepiece.bpe.model"]
        return Folder("nllb", model, one, one, None)
    elif "sentencepiece.model" in found:
        one = found["sentencepiece.model"]
        made = Folder("argos", model, one, one, pair, prefix)
    else:
        raise BundleError(
            folder,
            "has no sentencepiece model (source.spm and target.spm, sentencepiece.bpe.model, or"
            " sentencepiece.model)",
            "convert it again with `xlt translator convert`",
        )
    if made.pair is None:
        raise UsageError(
            folder, "does not say which languages it translates", "give source and target for it"
        )
    return made


@dataclass
class CTranslate2:
    """``beam`` 1 is greedy: twice as fast as 2, a little worse. ``threads`` 0: all cores.

    The other settings are CTranslate2's own. ``compute_type`` "": int8 on the CPU, elsewhere the fastest
    that the device has. On several devices (``device_index = [0, 1]``) each has the model, and the batches
    of a call are shared among them. ``max_batch_size`` counts padded tokens, or texts where ``batch_type`` is
    "examples".
    """

    folder: Path
    name: str = "ctranslate2"
    source: str = ""
    target: str = ""
    beam: int = 2
    threads: int = 0
    device: str = "cpu"
    device_index: int | Sequence[int] = 0
    compute_type: str = ""
    max_batch_size: int = 2048
    batch_type: str = "tokens"
    codes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pair = (self.source, self.target) if self.source and self.target else None
        self.parts = inspect(Path(self.folder), pair)
        engine = needed("ctranslate2", "this translator", "translate")
        spm = needed("sentencepiece", "this translator", "translate")
        device = self._device(engine)
        try:
            self._model = engine.Translator(
                str(self.parts.model),
                device=device,
                device_index=indices(self.device_index),
                compute_type=self._compute_type(engine, device),
                inter_threads=1,  # on each device
                intra_threads=self.threads,
            )
            self._source = spm.SentencePieceProcessor(model_file=str(self.parts.source_pieces))
            self._target = spm.SentencePieceProcessor(model_file=str(self.parts.target_pieces))
        except (RuntimeError, OSError, ValueError) as error:
            raise BundleError(
                self.folder, f"can't be opened ({first_line(error)})", "convert it again"
            ) from None
        self._worker = Worker(f"ctranslate2-{self.name}")

    def takes(self, source: str, target: str) -> bool:
        if self.parts.pair is not None:
            return self.parts.pair == (source, target)
        return self._code(source) is not None and self._code(target) is not None

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]:
        if not self.takes(source, target):
            raise PairRefused(f"{self.name} {source}-{target}", "is not this model's pair")
        return await self._worker.run(self._run, list(texts), source, target)

    def close(self) -> None:
        self._worker.stop()

    def _device(self, engine: Any) -> str:
        """ "auto" resolved; an error where this machine has not what is asked for."""
        found = int(engine.get_cuda_device_count())
        device = ("cuda" if found else "cpu") if self.device == "auto" else self.device
        if device not in ("cpu", "cuda"):
            raise UsageError(f"device = {self.device!r}", "must be cpu, cuda or auto")
        there = found if device == "cuda" else 1
        if device == "cuda" and not found:
            raise UsageError(
                "device = 'cuda'", "CTranslate2 finds no GPU here", "use 'cpu' or 'auto'"
            )
        chosen = indices(self.device_index)
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(there)):
            raise UsageError(
                f"device_index = {self.device_index}",
                f"must name different devices of the {there} that there are, from 0",
                "leave it out for the first",
            )
        if self.batch_type not in ("tokens", "examples"):
            raise UsageError(f"batch_type = {self.batch_type!r}", "must be tokens or examples")
        for key in ("beam", "max_batch_size"):
            if getattr(self, key) < 1:
                raise UsageError(f"{key} = {getattr(self, key)}", "must be at least 1")
        return device

    def _compute_type(self, engine: Any, device: str) -> str:
        chosen = self.compute_type or ("int8" if device == "cpu" else "auto")
        known = {str(kind) for kind in engine.get_supported_compute_types(device)}
        if chosen not in known | {"auto", "default"}:
            raise UsageError(
                f"compute_type = {chosen!r}",
                f"is none that this {device} has: {', '.join(sorted(known))}",
                "leave it out",
            )
        return chosen

    def _code(self, language: str) -> str | None:
        return self.codes.get(language) or FLORES.get(language)

    def _run(self, texts: list[str], source: str, target: str) -> list[Translation | None]:
        split = [pieces(text) for text in texts]
        flat = [sentence for sentences in split for sentence in sentences]
        rows = [self._framed(tokens, source) for tokens in self._source.encode(flat, out_type=str)]
        first = self._first(target)
        results = self._model.translate_batch(
            rows,
            target_prefix=[first] * len(rows) if first else None,
            beam_size=self.beam,
            # It sorts by length and fills batches of so many padded tokens.
            max_batch_size=self.max_batch_size,
            batch_type=self.batch_type,
            max_decoding_length=max(32, 3 * max((len(row) for row in rows), default=0)),
            return_scores=True,
        )
        given = iter(results)
        out: list[Translation | None] = []
        for sentences in split:
            mine = [next(given) for _ in sentences]
            hypotheses = [r.hypotheses[0][len(first) :] for r in mine]
            text = " ".join(self._text(tokens) for tokens in hypotheses)
            # Scores are log-probabilities per token: their mean is the engine's own confidence.
            score = sum(r.scores[0] for r in mine) / max(1, len(mine))
            out.append(Translation(text.strip(), self.name, min(1.0, math.exp(score))))
        return out

    def _text(self, tokens: list[str]) -> str:
        if self.parts.kind == "argos":  # its one sentencepiece model need not know the target's
            return "".join(tokens).replace("▁", " ").strip()
        return str(self._target.decode(tokens)).strip()

    def _first(self, target: str) -> list[str]:
        """What the translation must begin with."""
        if self.parts.kind == "nllb":
            return [self._code(target) or ""]
        return [self.parts.prefix] if self.parts.prefix and self.parts.kind == "argos" else []

    def _framed(self, tokens: list[str], source: str) -> list[str]:
        if self.parts.kind == "nllb":
            return [self._code(source) or "", *tokens, "</s>"]
        before = [self.parts.prefix] if self.parts.prefix and self.parts.kind == "marian" else []
        return [*before, *tokens, *(["</s>"] if self.parts.add_end else [])]


def indices(given: int | Sequence[int]) -> list[int]:
    return [given] if isinstance(given, int) else list(given)


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BundleError(file, f"is not JSON ({error})", "convert the model again") from None
    return value if isinstance(value, dict) else {}


def _argos(folder: Path) -> dict[str, Any]:
    found = _json(folder / "metadata.json")
    if "from_code" not in found or "to_code" not in found:
        return {}
    out = {"source": found["from_code"], "target": found["to_code"]}
    return out | ({"prefix": found["target_prefix"]} if found.get("target_prefix") else {})
