"""All ways of answering, by the name that a request calls them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from xlt_serve.errors import UsageError
from xlt_serve.modes.base import CLASSIFY, Mode
from xlt_serve.modes.paired import Paired
from xlt_serve.modes.plain import Plain
from xlt_serve.modes.smoothed import Smoothed
from xlt_serve.modes.translate import Translate
from xlt_serve.modes.zero_shot import ZeroShot
from xlt_serve.types import Settings

MODES: dict[str, Mode] = {
    mode.name: mode for mode in (Plain(), Translate(), Paired(), Smoothed(), ZeroShot())
}


def names(route: str = CLASSIFY) -> tuple[str, ...]:
    """Of the modes that this route of the service takes."""
    return tuple(name for name, mode in MODES.items() if mode.route == route)


def of(settings: Settings) -> Mode:
    return MODES[settings.mode]


def keyword(mode: Mode) -> str:
    """By which ``predict`` takes the mode's own options as one value."""
    return mode.keyword or mode.name


def option_names() -> set[str]:
    """Of the options that every mode has, and of each mode's own."""
    kinds = (Settings, *(mode.options for mode in MODES.values()))
    return {each.name for kind in kinds for each in fields(kind)} - {"mode", "options"}


def settings(mode: str = "plain", **given: Any) -> Settings:
    """Settings of keywords: those that every mode has, and the options of this one, one by one or as
    one value (``smoothing=Smoothing(…)``). Options of other modes are left aside."""
    if mode not in MODES:
        raise UsageError(f"mode={mode!r}", f"must be one of {', '.join(names())}")
    chosen = MODES[mode]
    keywords = {keyword(other) for other in MODES.values()}
    if unknown := given.keys() - option_names() - keywords:
        raise TypeError(f"there is no option {', '.join(sorted(unknown))!r}")
    own = {each.name for each in fields(chosen.options)}
    options = given.get(keyword(chosen)) or chosen.options(
        **{name: value for name, value in given.items() if name in own}
    )
    common = {each.name for each in fields(Settings)} - {"options"}
    shared = {name: value for name, value in given.items() if name in common}
    made = Settings(mode, **shared, options=options)  # type: ignore[arg-type]
    if made.long == "windows" and not chosen.windows:
        raise UsageError("long=windows", f"has no {mode} form", "use truncate or error")
    if made.require_translation:
        refuse_translations(chosen, "require_translation")
    return made


def refuse_translations(mode: Mode, name: str = "translations") -> None:
    """A UsageError where a mode reads none."""
    if not mode.translates:
        raise UsageError(name, f"mode={mode.name} uses no translations", "leave it out")
