"""Options that several commands have, and what they mean."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from xlt_serve import modes
from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.types import LONG_CHOICES, Settings

PROVIDERS = ("cpu", "cuda", "tensorrt")


def add_provider(sub: Any, default: str | None = "cpu", said: str = "cpu") -> None:
    sub.add_argument("--provider", choices=PROVIDERS, default=default, help=f"default: {said}")


def add_devices(sub: Any, said: str = "0") -> None:
    sub.add_argument(
        "--device", default=None, metavar="0,1|all", help=f"numbers of GPUs (default: {said})"
    )


def devices_of(said: str | None, provider: str) -> tuple[int, ...]:
    """The GPUs that were named; none if it was not said."""
    from xlt_serve.runtime.gpu import devices, providers

    if said is None:
        return ()
    if provider == "cpu":
        raise UsageError(
            "--device", "is for GPUs", "give --provider cuda or tensorrt, or leave it out"
        )
    try:
        found = devices.numbers(said)
        for number in found:
            providers.gpu(number)
    except DependencyError as error:  # to ask for a GPU where there is none is a wrong call
        raise UsageError(error.value, error.rule, error.remedy) from None
    return found


def add_reading(sub: Any) -> None:
    """How texts are read and answers shown."""
    sub.add_argument(
        "--long", choices=LONG_CHOICES, default="truncate", help="for texts over the limit"
    )
    sub.add_argument("--language", default=None, help="instead of detecting it")
    sub.add_argument("--max-length", type=int, default=None, metavar="TOKENS")
    sub.add_argument("--abstain-below", type=float, default=None, metavar="P")
    sub.add_argument("--top-k", type=int, default=None, metavar="K", help="probabilities to show")


def add_mode(sub: Any) -> None:
    sub.add_argument("--mode", choices=modes.names(), default="plain", help="default: plain")


def add_smoothing(group: Any, seed: int | None = None) -> None:
    default = Smoothing()
    group.add_argument(
        "--samples", type=int, default=default.samples, help=f"most draws ({default.samples})"
    )
    group.add_argument(
        "--alpha", type=float, default=default.alpha, help=f"error level ({default.alpha})"
    )
    group.add_argument("--radius", type=float, default=None, help="to certify (default: none)")
    group.add_argument("--words", type=int, default=None, help="to certify under synonyms")
    group.add_argument(
        "--noise", default=None, help="gaussian, uniform or synonym (default: as trained)"
    )
    group.add_argument(
        "--scale", type=float, default=None, help="of the noise (default: as trained)"
    )
    group.add_argument(
        "--seed", type=int, default=seed, help=f"default: {'a new one' if seed is None else seed}"
    )
    group.add_argument(
        "--draws",
        dest="synonyms",
        default=None,
        metavar="groups|neighbours",
        help="how synonyms are drawn (default: as trained, else groups)",
    )
    add_tables(group, "tables of synonyms, before the bundle's own", "tables")


def add_tables(sub: Any, about: str, name: str = "synonyms") -> None:
    sub.add_argument(
        "--synonyms",
        dest=name,
        nargs="+",
        action="extend",
        default=[],
        metavar="en=FILE",
        help=about,
    )


def add_dialect(sub: Any) -> None:
    sub.add_argument(
        "--encoding",
        default="",
        metavar="NAME",
        help="of text files, as cp1252 (default: detected)",
    )
    sub.add_argument(
        "--delimiter", default="", metavar="C", help="of CSV, as ';' or '\\t' (default: detected)"
    )


def add_signers(sub: Any) -> None:
    sub.add_argument(
        "--require-signature",
        type=Path,
        default=None,
        metavar="KEY.pub",
        help="refuse bundles that no key of this file signed (default: XLT_REQUIRE_SIGNATURE)",
    )


def add_translators(sub: Any) -> None:
    sub.add_argument(
        "--translators", type=Path, default=None, metavar="FILE", help="a TOML file of engines"
    )


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What ``predict`` is given, a mode's own options as one value; a wrong option fails here, before
    a model is loaded."""
    given = vars(options)
    out = {each.name: given[each.name] for each in fields(Settings) if each.name in given}
    for mode in modes.MODES.values():
        own = {each.name: given[each.name] for each in fields(mode.options) if each.name in given}
        if own:
            out[modes.keyword(mode)] = mode.options(**own)
    modes.settings(**out)
    return out
