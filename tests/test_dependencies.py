"""The lists of dependencies name what the code imports, and nothing else."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.imports import FOLDERS, Import, imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE: list[str] = PROJECT["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# Extras in which a module may find what it imports, beside the base; the longest name that fits counts.
LISTS = {
    "xlt_serve": (),
    "xlt_serve.runtime": ("serve", "gpu"),
    "xlt_serve.serving": ("serve", "gpu"),
    "xlt_serve.service": ("serve", "gpu"),
    "xlt_serve.bench": ("serve", "gpu"),
    "xlt_serve.bench.nvml": ("gpu",),
    "xlt_serve.wire": ("client", "serve", "gpu"),
    "xlt_serve.client": ("client", "serve", "gpu"),
    "xlt_serve.cli.serve": ("serve", "gpu"),
    "xlt_serve.cli.build": ("serve", "gpu"),
    "xlt_serve.deploy": ("serve", "gpu"),
    "xlt_serve.signing": ("sign",),
    "xlt_serve.scoring": ("score",),
    "xlt_serve.files": ("score", "train"),
    "xlt_serve.scoring.cluster": ("ray",),
    "xlt_serve.scoring.duck": ("duckdb",),
    "xlt_serve.translation": ("translate",),
    "xlt_training": ("train",),
    "xlt_training.encoders.teacher": ("encoder",),
    "tests": ("dev",),
}
# Modules that run in environments that they make or find themselves.
ELSEWHERE = ("xlt_serve.bench.outside", "tests.end_to_end.open_with_optimum")
OPTIONAL = {
    ("xlt_serve.runtime.gpu.providers", "tensorrt_libs"),  # of whichever TensorRT the machine has
    ("xlt_serve.translation.convert", "huggingface_hub"),  # to fetch and convert models: `train`
    ("xlt_serve.translation.convert", "transformers"),
    ("xlt_serve.files.places", "fsspec"),  # for addresses: `score`
    ("tests.xlt_serve.serving.test_tracing", "opentelemetry"),  # its SDK comes with BentoML
}
# Declared, though no line imports them.
INDIRECT = {
    "httptools": "uvicorn",
    "uvloop": "uvicorn",
    "opentelemetry-exporter-otlp": "BentoML, where tracing is on",
    "accelerate": "transformers' Trainer",
    "onnxscript": "torch.onnx.export",
    "sentencepiece": "transformers' tokenizers",
    "xlt-serve-models": "xlt_serve.bundle, by name",
    "mkdocs-material": "make docs",
}
MODULES = {"onnxruntime-gpu": "onnxruntime", "nvidia-ml-py": "pynvml"}  # not always installed


def distributions() -> dict[str, set[str]]:
    """Name of a module → distributions that install it."""
    found: dict[str, set[str]] = {}
    for module, names in importlib.metadata.packages_distributions().items():
        found.setdefault(module, set()).update(map(canonicalize_name, names))
    for name, module in MODULES.items():
        found.setdefault(module, set()).add(canonicalize_name(name))
    return found


DISTRIBUTIONS = distributions()


def names(requirements: list[str]) -> set[str]:
    """Canonical names, those behind `xlt-serve[extra]` among them."""
    out: set[str] = set()
    for requirement in map(Requirement, requirements):
        if requirement.name == PROJECT["name"]:
            for extra in requirement.extras:
                out |= names(EXTRAS[extra])
        else:
            out.add(canonicalize_name(requirement.name))
    return out


def foreign(package: str) -> Iterator[Import]:
    for found in imports(package):
        if found.target.split(".")[0] not in {*sys.stdlib_module_names, *FOLDERS}:
            yield found


def lists_of(importer: str) -> tuple[str, ...]:
    fitting = [name for name in LISTS if f"{importer}.".startswith(f"{name}.")]
    return LISTS[max(fitting, key=len)]


@pytest.mark.parametrize("package", ["xlt_serve", "xlt_training", "tests"])
def test_what_is_imported_is_declared(package: str) -> None:
    missing = set()
    for found in foreign(package):
        module = found.target.split(".")[0]
        if found.importer.startswith(ELSEWHERE) or (found.importer, module) in OPTIONAL:
            continue
        wanted = DISTRIBUTIONS.get(module, {canonicalize_name(module)})
        for extra in lists_of(found.importer) or ("dependencies",):
            declared = names(BASE) | names(EXTRAS.get(extra, []))
            if not wanted & declared:
                missing.add(f"{found.file}:{found.line} imports {module}: not in `{extra}`")
    assert not missing, "\n".join(sorted(missing))


def test_what_is_declared_is_imported() -> None:
    used = {name for package in FOLDERS for found in foreign(package) for name in owners(found)}
    for extra, wanted in {"dependencies": BASE, **EXTRAS}.items():
        if extra != "dev":  # tools, which are called and not imported
            assert names(wanted) - used - set(INDIRECT) == set(), extra


def owners(found: Import) -> set[str]:
    module = found.target.split(".")[0]
    return DISTRIBUTIONS.get(module, {canonicalize_name(module)})


def test_serving_is_the_same_on_a_gpu_but_for_its_runtime() -> None:
    runtimes = {"onnxruntime>=1.23", "onnxruntime-gpu>=1.25.1", "nvidia-ml-py>=12"}
    assert set(EXTRAS["serve"]) - runtimes == set(EXTRAS["gpu"]) - runtimes
