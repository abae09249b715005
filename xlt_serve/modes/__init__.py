"""All ways of answering, by the name that a request calls them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

from xlt_serve.errors import UsageError
from xlt_serve.modes.base import CLASSIFY, Asked, Mode
from xlt_serve.modes.paired import Paired
from xlt_serve.modes.plain import Plain
from xlt_serve.modes.smoothed import Smoothed
from xlt_serve.modes.translate import Translate
from xlt_serve.modes.zero_shot import ZeroShot
from xlt_serve.translation.items import one_each
from xlt_serve.types import NoOptions, Settings

MODES: dict[str, Mode] = {
    mode.name: mode for mode in (Plain(), Translate(), Paired(), Smoothed(), ZeroShot())
}


def names(route: str = CLASSIFY) -> tuple[str, ...]:
    """The modes that this route of the service takes."""
    return tuple(name for name, mode in MODES.items() if mode.route == route)


def of(settings: Settings) -> Mode:
    return by_name(settings.mode)


def by_name(name: str) -> Mode:
    if not isinstance(name, str) or name not in MODES:
        raise UsageError(f"mode={name!r}", f"must be one of {', '.join(names())}")
    return MODES[name]


def keyword(mode: Mode) -> str:
    """The keyword under which ``predict`` takes the mode's own options as one value."""
    return mode.keyword or mode.name


@cache
def _fields(kind: type) -> frozenset[str]:
    return frozenset(each.name for each in fields(kind)) - {"mode", "options"}


def option_names(mode: Mode) -> frozenset[str]:
    """The options that every mode has, and this mode's own."""
    return _fields(Settings) | _fields(mode.options)


def settings(mode: str = "plain", **given: Any) -> Settings:
    """Settings of keywords: those that every mode has, and the options of this one, one by one or as
    one value (``smoothing=Smoothing(…)``). Such values of other modes are left aside."""
    chosen = by_name(mode)
    whole = {
        keyword(each): each.options for each in MODES.values() if each.options is not NoOptions
    }
    if unknown := given.keys() - option_names(chosen) - whole.keys():
        raise TypeError(
            f"mode {mode} has no option {', '.join(sorted(unknown))!r}{_near(chosen, unknown)}"
        )
    for name, kind in whole.items():
        if not isinstance(given.get(name), kind | None):
            raise UsageError(f"{name}={given[name]!r}", f"must be a {kind.__name__}")
    own = {name: value for name, value in given.items() if name in _fields(chosen.options)}
    options = given.get(keyword(chosen))
    if options is not None and own:
        raise UsageError(
            f"{keyword(chosen)} and {', '.join(own)}",
            "say the same thing twice",
            "give one of them",
        )
    shared = {name: value for name, value in given.items() if name in _fields(Settings)}
    made = Settings(mode, **shared, options=options or chosen.options(**own))  # type: ignore[arg-type]
    chosen.check(made)
    return made


def _near(mode: Mode, unknown: Iterable[str]) -> str:
    """What was meant, or what there is."""
    known = sorted(option_names(mode))
    for name in unknown:
        if near := difflib.get_close_matches(name, known, 1):
            return f", did you mean {near[0]!r}?"
    return f"; it has {', '.join(known)}"


def check_translations(asked: Asked) -> None:
    """A UsageError where a request's own translations are none of its mode's, or not one an item."""
    if asked.translations:
        of(asked.settings).refuse_translations()
    one_each(asked.translations, len(asked.items))
