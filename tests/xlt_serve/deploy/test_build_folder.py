from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.xlt_serve.deploy.conftest import Write
from xlt_serve import bundle as bundles
from xlt_serve.deploy import build_folder, recipes
from xlt_serve.deploy.build_folder import Shipment
from xlt_serve.errors import UsageError
from xlt_serve.serving.routes import key_for

CASES: list[dict[str, Any]] = [
    {},
    {"gpu": True},
    {"volume": True},
    {"gpu": True, "volume": True, "image": "registry.example.org:5000/team/xlt"},
    {"signed": True},
]


def documents(folder: Path) -> dict[str, Any]:
    found = list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text()))
    return {document["kind"]: document for document in found}


def container(folder: Path) -> dict[str, Any]:
    [found] = documents(folder)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("options", CASES)
def test_no_recipe_has_anything_left_of_its_template(write: Write, options: dict[str, Any]) -> None:
    folder = write(**options)
    for file in folder.iterdir():
        if file.is_file() and file.name != "requirements.txt":
            text = file.read_text()
            assert "@{" not in text
            assert "#if" not in text
            assert ":latest" not in text
            if file.suffix == ".yaml":
                list(yaml.safe_load_all(text))
            if file.suffix == ".py":
                compile(text, file.name, "exec")


@pytest.mark.parametrize("options", CASES)
def test_the_manifest_is_one_that_kubernetes_knows(write: Write, options: dict[str, Any]) -> None:
    found = documents(write(**options))
    kinds = {
        "Deployment": "apps/v1",
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
        "HorizontalPodAutoscaler": "autoscaling/v2",
        **({"PersistentVolumeClaim": "v1"} if options.get("volume") else {}),
    }
    assert {kind: document["apiVersion"] for kind, document in found.items()} == kinds
    deployment, scaler = found["Deployment"], found["HorizontalPodAutoscaler"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert all(re.fullmatch(r"[a-z0-9]([-._a-z0-9]{0,61}[a-z0-9])?", v) for v in labels.values())
    assert scaler["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"]  # else each apply would undo what was scaled
    [metric] = scaler["metrics"]
    assert metric["type"] == "Pods"
    assert set(metric["pods"]) == {"metric", "target"}
    assert metric["pods"]["target"]["type"] == "AverageValue"
    pod = deployment["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    claims = {
        v["persistentVolumeClaim"]["claimName"]
        for v in pod["volumes"]
        if len(v) > 1 and "persistentVolumeClaim" in v
    }
    claimed = (
        {found["PersistentVolumeClaim"]["metadata"]["name"]}
        if "PersistentVolumeClaim" in found
        else set()
    )
    assert claims == claimed


def test_the_autoscaler_asks_for_what_the_adapter_makes_of_our_queue(write: Write) -> None:
    folder = write()
    [metric] = documents(folder)["HorizontalPodAutoscaler"]["spec"]["metrics"]
    [rule] = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]
    source = (ROOT / "xlt_serve" / "serving" / "metrics.py").read_text()
    assert f'"{rule["name"]["as"]}"' in source
    series = f"{rule['name']['as']}_sum"
    assert rule["seriesQuery"].startswith(series)
    assert re.fullmatch(rule["name"]["matches"], series)
    assert rule["metricsQuery"].count("<<.LabelMatchers>>") == 2
    assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}


def test_probes_and_variables_are_those_of_the_service(write: Write) -> None:
    folder = write()
    found = container(folder)
    settings = (ROOT / "xlt_serve" / "serving" / "settings.py").read_text()
    for variable in found["env"]:
        assert variable["name"].removesuffix("_FILE") in settings
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert found[probe]["httpGet"]["path"] in ("/readyz", "/livez")
    pod = documents(folder)["Deployment"]["spec"]["template"]["spec"]
    timeout = next(v["value"] for v in found["env"] if v["name"] == "XLT_TIMEOUT")
    assert pod["terminationGracePeriodSeconds"] > int(timeout)


def mebibytes(text: str) -> int:
    assert text.endswith("Mi")
    return int(text.removesuffix("Mi"))


@pytest.mark.parametrize("gpu", [False, True])
def test_memory_and_scratch_have_room_for_the_bundles(write: Write, gpu: bool) -> None:
    sizes: list[tuple[int, ...]] = []
    for names in (("a",), ("a", "b")):
        folder = write(names=names, gpu=gpu)
        resources = container(folder)["resources"]
        pod = documents(folder)["Deployment"]["spec"]["template"]["spec"]
        [scratch] = [v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if "emptyDir" in v]
        given = (resources["requests"]["memory"], resources["limits"]["memory"], scratch)
        sizes.append(tuple(map(mebibytes, given)))
    one = sum(file.stat().st_size for file in (folder / "bundles" / "a").rglob("*")) / 2**20
    for less, more, times in zip(*sizes, (2, 4, 4), strict=True):
        assert more - less == pytest.approx(times * one, abs=times)
    assert sizes[0][0] <= sizes[0][1]


def test_metrics_are_scraped_with_a_key_that_the_service_reads(write: Write) -> None:
    folder = write()
    pod = documents(folder)["Deployment"]["spec"]["template"]
    monitor = yaml.safe_load((folder / "podmonitor.yaml").read_text())["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    key = endpoint["authorization"]["credentials"]
    found = container(folder)
    assert {"name": "XLT_SCRAPE_KEYS_FILE", "value": f"/keys/{key['key']}"} in found["env"]
    secrets = [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"][:1]]
    assert secrets == [key["name"]]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in found["ports"]}
    assert key_for("GET", endpoint["path"]) == "scrape"


@pytest.mark.parametrize("options", CASES)
def test_the_image_has_a_version_and_the_base_a_digest_to_fill_in(
    write: Write, options: dict[str, Any]
) -> None:
    folder = write(**options)
    name = options.get("image") or ("xlt-serve-gpu" if options.get("gpu") else "xlt-serve")
    image = container(folder)["image"]
    assert re.fullmatch(rf"{re.escape(name)}:[0-9a-z.]+-[0-9a-f]{{12}}", image)
    dockerfile = (folder / "Dockerfile").read_text()
    assert f"docker build -t {image} " in dockerfile
    assert f"ARG BASE={recipes.BASE}\nARG BASE_DIGEST=\n" in dockerfile
    assert "FROM ${BASE}${BASE_DIGEST:+@${BASE_DIGEST}}\n" in dockerfile
    assert "--require-hashes" in dockerfile
    limits = container(folder)["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == bool(options.get("gpu"))
    assert ("XLT_PROVIDER=cuda" in dockerfile) == bool(options.get("gpu"))
    copied = re.findall(r"^COPY (\S+)", dockerfile, re.MULTILINE)
    assert all((folder / source).exists() for source in copied)
    assert ("bundles" in copied) != bool(options.get("volume"))
    assert ("signers.pub" in copied) == bool(options.get("signed"))
    required = "ENV XLT_REQUIRE_SIGNATURE=/app/signers.pub\n" in dockerfile
    assert required == bool(options.get("signed"))
    included = yaml.safe_load((folder / "bentofile.yaml").read_text())["include"]
    assert ("signers.pub" in included) == bool(options.get("signed"))


def test_every_user_can_read_a_build_whatever_the_umask(write: Write) -> None:
    before = os.umask(0o077)
    try:
        folder = write(signed=True)
    finally:
        os.umask(before)
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_a_build_holds_exactly_the_bundles_that_were_named(write: Write) -> None:
    folder = write(names=("second", "first"))
    assert {path.name for path in (folder / "bundles").iterdir()} == {"first", "second"}
    assert not (folder / "xlt_serve" / "models").exists()
    assert not list(folder.rglob("__pycache__"))
    shipped = bundles.load("topics").manifest
    assert bundles.load(folder / "bundles" / "first").manifest == shipped
    places = "second=/app/bundles/second,first=/app/bundles/first"  # the first is the default
    assert f"ENV XLT_BUNDLES={places}\n" in (folder / "Dockerfile").read_text()


def test_bundles_on_a_volume_are_not_in_the_image(write: Write) -> None:
    folder = write(volume=True)
    assert "ENV XLT_BUNDLES=topics=/bundles/topics\n" in (folder / "Dockerfile").read_text()
    assert bundles.load(folder / "volume" / "topics")
    assert "bundles/**" not in (folder / "bentofile.yaml").read_text()
    assert not (folder / "bundles").exists()


def test_the_same_content_has_the_same_version_and_other_content_another(write: Write) -> None:
    def image(**options: Any) -> str:
        return str(container(write(**options))["image"]).rpartition(":")[2]

    versions = [image(), image(), image(names=("other",)), image(volume=True), image(gpu=True)]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 4


@pytest.mark.parametrize("gpu", [False, True])
def test_everything_that_is_installed_has_a_hash_and_is_there_once(write: Write, gpu: bool) -> None:
    text = (write(gpu=gpu) / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("--hash=sha256:" in line for line in lines)
    wanted = [Requirement(line.partition("--hash")[0]) for line in lines]
    names = [canonicalize_name(requirement.name) for requirement in wanted]
    assert {"bentoml", "cryptography", "onnxruntime-gpu" if gpu else "onnxruntime"} <= set(names)
    assert ("nvidia-cudnn-cu13" in names) == gpu  # no base image has it
    assert ("onnxruntime" in names) != gpu
    forks = {n for n in names if names.count(n) > 1}  # by Python's version, say
    assert all(r.marker for r in wanted if canonicalize_name(r.name) in forks)


@pytest.mark.parametrize("name", ["a b", "../up", "a/b", "ä", "", "-x", "x" * 64, 'x"y', "x$y"])
def test_a_name_that_has_a_second_meaning_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits, dots, dashes and underscores"):
        build_folder.check(Shipment({name: bundles.load("topics")}))


@pytest.mark.parametrize("image", ["Upper", "a:tag", "a b", "a/", "/a", "a@sha256", "$x"])
def test_an_image_s_name_has_no_tag(image: str) -> None:
    with pytest.raises(UsageError, match="is no name of an image without tag"):
        build_folder.check(Shipment({"topics": bundles.load("topics")}, image=image))


@pytest.mark.parametrize("image", ["a", "a/b", "registry.example.org:5000/team/xlt-serve"])
def test_images_may_have_a_registry(image: str) -> None:
    build_folder.check(Shipment({"topics": bundles.load("topics")}, image=image))
