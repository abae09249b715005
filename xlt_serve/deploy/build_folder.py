"""What a build consists of, in one folder: the package, bundles, lock, and recipes for exactly those."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from xlt_serve.bundle import MANIFEST, Bundle, digest
from xlt_serve.deploy import recipes
from xlt_serve.errors import UsageError
from xlt_serve.signing import signatures

PACKAGE = Path(__file__).parents[1]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
IMAGE = re.compile(r"[a-z0-9][a-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*")
SIGNERS = "signers.pub"
RECIPES = (
    "Dockerfile",
    "bentofile.yaml",
    "kubernetes.yaml",
    "podmonitor.yaml",
    "prometheus-adapter.yaml",
)


@dataclass(frozen=True, slots=True)
class Shipment:
    """``bundles``: by the name that each is served under, the first is the default. ``volume``: they are
    mounted at /bundles instead of being part of the image. ``signers``: public keys to require."""

    bundles: dict[str, Bundle]
    gpu: bool = False
    volume: bool = False
    image: str = ""
    signers: Path | None = None

    @property
    def bento(self) -> str:
        return "xlt-serve-gpu" if self.gpu else "xlt-serve"

    @property
    def inside(self) -> str:
        """The folder of the bundles, in the build and, unless it is a volume, in the image."""
        return "volume" if self.volume else "bundles"


def check(shipment: Shipment) -> None:
    for name in shipment.bundles:
        if not NAME.fullmatch(name):
            raise UsageError(
                f"bundle {name}",
                "a name in a build has letters, digits, dots, dashes and underscores",
                f"give another: NAME={shipment.bundles[name].path}",
            )
    if shipment.image and not IMAGE.fullmatch(shipment.image):
        raise UsageError(
            f"--image {shipment.image}",
            "is no name of an image without tag",
            "such as registry/name",
        )


def write(shipment: Shipment, folder: Path) -> str:
    """Everything into an empty folder; the version, made of the content."""
    _package(folder / "xlt_serve")
    for name, bundle in shipment.bundles.items():
        _bundle(bundle, folder / shipment.inside / name)
    if shipment.signers is not None:
        shutil.copyfile(shipment.signers, folder / SIGNERS)
    (folder / "requirements.txt").write_text(recipes.lock(shipment.gpu), encoding="utf-8")
    _recipes(shipment, folder, version="")
    version = f"{release()}-{_digest(folder)}"
    _recipes(shipment, folder, version)
    for path in folder.rglob("*"):  # whatever the umask: the image's user is another
        path.chmod(0o755 if path.is_dir() else 0o644)
    return version


def release() -> str:
    """Of xlt-serve, as a tag may have it."""
    try:
        found = importlib.metadata.version("xlt-serve")
    except importlib.metadata.PackageNotFoundError:
        found = "source"
    return found.lower().replace("+", "-")


def files(folder: Path) -> dict[str, str]:
    """Everything below a folder but other folders and what Python leaves behind, with its sha256; links
    and the like, which no build has, without one."""
    return {
        str(file.relative_to(folder)): ""
        if file.is_symlink() or not file.is_file()
        else digest(file)
        for file in sorted(folder.rglob("*"))
        if (file.is_symlink() or not file.is_dir()) and "__pycache__" not in file.parts
    }


def _recipes(shipment: Shipment, folder: Path, version: str) -> None:
    words = {"gpu" if shipment.gpu else "cpu", "volume" if shipment.volume else "inside"}
    words |= {"signed"} if shipment.signers is not None else set()
    root = "/" if shipment.volume else ""  # a volume has one place, in images and bentos alike
    places = {name: f"{root}bundles/{name}" for name in shipment.bundles}
    size = sum(
        bundle.file(f).stat().st_size for bundle in shipment.bundles.values() for f in _of(bundle)
    )
    mebibytes = math.ceil(size / 2**20)
    values = {
        "image": shipment.image or shipment.bento,
        "bento": shipment.bento,
        "version": version,
        "base": recipes.BASE,
        "places": ",".join(f"{name}={Path('/app', place)}" for name, place in places.items()),
        "bundles": json.dumps(places),
        # Each bundle counts twice, as it is mapped and as the runtime packs it; in the limit again, for a
        # swap. The rest is Python, CUDA, and what requests hold.
        "memory": str(1024 + 2 * mebibytes),
        "most_memory": str((4096 if shipment.gpu else 2048) + 4 * mebibytes),
        # A sealed copy of each, twice during a swap, and as much for larger ones.
        "scratch": str(1024 + 4 * mebibytes),
        "gigabytes": str(1 + 4 * size // 2**30),  # room for what will be swapped in
    }
    sources = {name: [name] for name in RECIPES}
    sources["xlt_bento.py"] = ["xlt_bento.py.in"]
    sources["kubernetes.yaml"] += ["volume.yaml"] if shipment.volume else []
    for name, parts in sources.items():
        text = "".join(recipes.render(part, frozenset(words), values) for part in parts)
        (folder / name).write_text(text, encoding="utf-8")


def _package(target: Path) -> None:
    """Without the bundles that ship: those that are wanted are named."""
    shutil.copytree(
        PACKAGE,
        target,
        ignore=lambda place, names: [
            name
            for name in names
            if name.startswith((".", "__pycache__"))
            or (Path(place) == PACKAGE and name == "models")
        ],
    )


def _bundle(bundle: Bundle, target: Path) -> None:
    for name in _of(bundle):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.file(name), target / name)
    signatures.carry(bundle.path, target)


def _of(bundle: Bundle) -> tuple[str, ...]:
    return (MANIFEST, *bundle.manifest.files)


def _digest(folder: Path) -> str:
    listed = json.dumps(files(folder), sort_keys=True)
    return hashlib.sha256(listed.encode()).hexdigest()[:12]
