"""What BentoML does of a build: the bento, and the image by whatever builds images here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from xlt_serve.errors import DependencyError, UsageError, XltError, first_line, needed

BACKENDS = ("docker", "podman", "nerdctl", "buildah")


def refuse_without_uv() -> None:
    """BentoML would fetch it itself, from the network."""
    if shutil.which("uv") is None and not (Path(sys.executable).parent / "uv").exists():
        raise DependencyError(
            "uv", "is needed to build a bento and not installed", "pip install uv"
        )


def build(folder: Path, name: str, version: str) -> str:
    """The tag of the bento in BentoML's store. One that is there has the same content: its version says."""
    import bentoml

    tag = f"{name}:{version}"
    try:
        bentoml.bentos.get(tag)
        return tag
    except bentoml.exceptions.NotFound:
        pass
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    variables = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "BENTOML_DO_NOT_TRACK": "true"}
    done = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--version", version, "--output", "tag"],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise XltError(
            tag, f"bentoml build failed ({said[:300]})", f"see `bentoml build` in {folder}"
        )
    return tag


def check_digest(digest: str) -> None:
    if digest and not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise UsageError(
            f"--base-digest {digest}",
            "is no digest of an image",
            "such as sha256: and 64 hex digits",
        )


def command(folder: Path, image: str, digest: str = "") -> str:
    """What builds the image elsewhere."""
    fixed = f"--build-arg BASE_DIGEST={digest} " if digest else ""
    return f"docker build -t {image} {fixed}{folder}"


def containerize(folder: Path, image: str, digest: str = "") -> str:
    """Build the image of the folder's Dockerfile, on the base with this digest; which program did."""
    fixed = {"build_arg": {"BASE_DIGEST": digest}} if digest else {}
    container: Any = needed("bentoml.container", "xlt build --containerize", "serve")
    failed = []
    for name in BACKENDS:
        if shutil.which(name) is None:
            continue
        try:
            if container.health(name):
                container.get_backend(name).build(
                    context_path=str(folder),
                    file=str(folder / "Dockerfile"),
                    tag=(image,),
                    **fixed,
                )
                return name
            failed.append(f"{name} does not answer")
        except Exception as error:  # whatever BentoML and the program make of it
            failed.append(f"{name}: {first_line(error)}")
    raise DependencyError(
        image,
        "can't be built here: " + ("; ".join(failed) or f"there is none of {', '.join(BACKENDS)}"),
        f"the bento and {folder} are made; build it elsewhere: {command(folder, image, digest)}",
    )
