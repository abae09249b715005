"""Translation by any engine: ``load(file)`` gives the translators that a TOML file describes."""

from xlt_serve.translation.config import load, materials
from xlt_serve.translation.protocol import Outcome, Translation, Translator, Untranslated
from xlt_serve.translation.translators import Translators

__all__ = [
    "Outcome",
    "Translation",
    "Translator",
    "Translators",
    "Untranslated",
    "load",
    "materials",
]
