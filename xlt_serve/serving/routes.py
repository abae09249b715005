"""The table of routes. The app, the guard and the OpenAPI description read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from xlt_serve import wire
from xlt_serve.modes.base import CLASSIFY, ZERO_SHOT
from xlt_serve.serving.examples import REQUESTS, SWAPS, UNLOADS, ZERO_SHOTS

Key = Literal["", "scrape", "outside", "user", "admin"]
FAILURES = (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)
CHANGES = (400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """``key``: whose key it needs; ``outside``: a user's, unless only this machine reaches the service;
    ``scrape``: likewise, or one for this alone. ``takes``, ``gives``: models of the bodies; without ``gives`` it
    is not in the description. ``work``: it runs models, so that it is refused where much waits.
    ``ours``: False for the routes that BentoML answers. ``quiet``: asked every few seconds, so that
    the log does not have it."""

    name: str
    method: str
    path: str
    about: str
    key: Key = ""
    takes: str = ""
    gives: str = ""
    errors: tuple[int, ...] = ()
    examples: Mapping[str, Any] = field(default_factory=dict)
    work: bool = False
    ours: bool = True
    quiet: bool = False


OPERATIONS = (
    Operation("page", "GET", "/", "The page to try it on"),
    Operation("docs", "GET", "/docs.json", "This description", key="outside"),
    Operation("rendered", "GET", "/docs", "The same to read", key="outside"),
    Operation("numbers", "GET", "/metrics", "Prometheus metrics", key="scrape", quiet=True),
    Operation(
        "classify",
        "POST",
        CLASSIFY,
        "Classify texts, or pairs of texts",
        key="user",
        takes="ClassifyRequest",
        gives=wire.Answer.__name__,
        errors=FAILURES,
        examples=REQUESTS,
        work=True,
    ),
    Operation(
        "zero_shot",
        "POST",
        ZERO_SHOT,
        "Give texts one of any labels, or several",
        key="user",
        takes="ZeroShotRequest",
        gives=wire.Answer.__name__,
        errors=FAILURES,
        examples=ZERO_SHOTS,
        work=True,
    ),
    Operation(
        "models",
        "GET",
        "/models",
        "What is loaded, with its manifest",
        key="user",
        gives=wire.Models.__name__,
        errors=(401,),
    ),
    Operation(
        "swap",
        "POST",
        "/models",
        "Load a bundle anew while requests go on; needs an admin key",
        key="admin",
        takes=wire.SwapRequest.__name__,
        gives=wire.Models.__name__,
        errors=CHANGES,
        examples=SWAPS,
    ),
    Operation(
        "unload",
        "POST",
        "/models/unload",
        "Unload a bundle while requests go on; needs an admin key",
        key="admin",
        takes=wire.UnloadRequest.__name__,
        gives=wire.Models.__name__,
        errors=CHANGES,
        examples=UNLOADS,
    ),
    Operation(
        "schema",
        "GET",
        "/schema.json",
        "What BentoML's clients read first",
        key="outside",
        ours=False,
    ),
    Operation("livez", "GET", "/livez", "Is it alive?", errors=(503,), ours=False, quiet=True),
    Operation("readyz", "GET", "/readyz", "Is it warm?", errors=(503,), ours=False, quiet=True),
    Operation("healthz", "GET", "/healthz", "BentoML's name of livez", ours=False, quiet=True),
)
PATHS = frozenset(operation.path for operation in OPERATIONS)
QUIET = frozenset(operation.path for operation in OPERATIONS if operation.quiet)
WORK = frozenset((operation.method, operation.path) for operation in OPERATIONS if operation.work)
METHODS: dict[str, list[str]] = {}
"""Of each path, as the Allow header lists them."""
for _each in OPERATIONS:
    METHODS.setdefault(_each.path, []).extend(
        ["GET", "HEAD"] if _each.method == "GET" else [_each.method]
    )
_LAXEST_FIRST: tuple[Key, ...] = get_args(Key)


def key_for(method: str, path: str) -> Key:
    """Whose key a request needs; one by a method that is not there needs what its path does at least."""
    found = {each.method: each.key for each in OPERATIONS if each.path == path}
    method = "GET" if method == "HEAD" else method
    return found.get(method, min(found.values(), key=_LAXEST_FIRST.index, default=""))
