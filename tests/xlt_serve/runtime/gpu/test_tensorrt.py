from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError
from xlt_serve.runtime.gpu import tensorrt
from xlt_serve.runtime.gpu.buckets import Buckets, choose
from xlt_serve.runtime.gpu.tensorrt import EngineCache, Profile
from xlt_serve.runtime.open_graph import described
from xlt_serve.runtime.shapes import Dims, concrete, names, rounded

PROVIDER = "TensorrtExecutionProvider"
DIMS: dict[str, Dims] = {
    "plain": dict.fromkeys(("input_ids", "attention_mask"), ("batch", "length")),
    "perturbed": {
        "input_ids": ("texts", "length"),
        "attention_mask": ("texts", "length"),
        "row": ("draws",),
        "noise": ("draws", "length + 5", 384),
    },
    "encoder noise": {
        "input_ids": ("texts", "length"),
        "attention_mask": ("texts", "length"),
        "row": ("draws",),
        "noise": ("draws", 384),
        "token_type_ids": ("texts", "length"),
    },
    "paired": {
        "input_ids": ("batch", "length"),
        "attention_mask": ("batch", "length"),
        "source_ids": ("batch", "source_length"),
        "source_mask": ("batch", "source_length"),
    },
}
BUCKETS = st.builds(
    lambda lengths, longest, budget: choose(Counter(lengths), longest, budget),
    st.lists(st.integers(1, 128), max_size=30),
    st.integers(1, 128),
    st.integers(1, 9000),
)


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """The shapes in one of a profile's strings."""
    parts = (part.split(":") for part in text.split(","))
    return {name: tuple(map(int, shape.split("x"))) for name, shape in parts}


def shapes_of(profile: Profile) -> tuple[dict[str, tuple[int, ...]], ...]:
    return tuple(map(parse_shapes, (profile.least, profile.common, profile.largest)))


@pytest.mark.parametrize("kind", DIMS)
@given(buckets=BUCKETS)
def test_profiles_rise_and_name_every_dynamic_input(kind: str, buckets: Buckets) -> None:
    least, common, largest = shapes_of(tensorrt.profile(DIMS[kind], buckets))
    assert list(least) == list(common) == list(largest) == list(DIMS[kind])
    for name, dims in DIMS[kind].items():
        for low, middle, high, dim in zip(
            least[name], common[name], largest[name], dims, strict=True
        ):
            assert 1 <= low <= middle <= high
            assert isinstance(dim, str) or low == high == dim


@pytest.mark.parametrize("kind", DIMS)
@given(
    buckets=BUCKETS,
    share=st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_every_shape_that_runs_lies_in_the_profile(
    kind: str, buckets: Buckets, share: list[float]
) -> None:
    most = {"length": buckets.lengths[-1], "source_length": buckets.lengths[-1]}
    given_ = {
        name: 1 + int(part * (most.get(name, 200) - 1))
        for name, part in zip(names(DIMS[kind]), share, strict=False)
    }
    sizes = rounded(given_, buckets)
    least, _, largest = shapes_of(tensorrt.profile(DIMS[kind], buckets))
    for name, dims in DIMS[kind].items():
        shape = concrete(dims, sizes)
        assert all(a <= b <= c for a, b, c in zip(least[name], shape, largest[name], strict=True))


def test_an_input_of_fixed_shape_is_in_no_profile() -> None:
    dims: Dims = DIMS["plain"] | {"table": (4, 4)}
    assert "table" not in tensorrt.profile(dims, choose({}, 64, 512)).least


@pytest.mark.parametrize("kind", DIMS)
@given(buckets=BUCKETS, device=st.integers(0, 7), workspace=st.integers(0, 2**40))
def test_options_pass_through_onnxruntime_unchanged(
    kind: str, buckets: Buckets, device: int, workspace: int
) -> None:
    profile = tensorrt.profile(DIMS[kind], buckets)
    options = tensorrt.options(
        profile, EngineCache(Path("engines"), "plain-fp16-0123"), device=device, workspace=workspace
    )
    names_, passed = check_and_normalize_provider_args([(PROVIDER, options)], None, [PROVIDER])
    assert list(names_) == [PROVIDER]
    assert list(passed) == [options]
    assert all(type(k) is str and type(v) is str for k, v in options.items())
    assert parse_shapes(passed[0]["trt_profile_max_shapes"]) == parse_shapes(profile.largest)
    assert int(passed[0]["device_id"]) == device
    assert int(passed[0].get("trt_max_workspace_size", 0)) == workspace


def test_what_the_provider_is_told() -> None:
    profile = tensorrt.profile(DIMS["plain"], choose({}, 64, 512))
    cache = EngineCache(Path("engines"), "plain-fp16-0123")
    options = tensorrt.options(profile, cache)
    assert profile.least == "input_ids:1x16,attention_mask:1x16"
    assert profile.largest == "input_ids:64x64,attention_mask:64x64"
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "1"
    assert options["trt_engine_cache_prefix"] == "plain-fp16-0123"
    assert options["trt_layer_norm_fp32_fallback"] == "1"
    assert Path(options["trt_ep_context_file_path"]).is_absolute()
    assert options["trt_ep_context_file_path"].endswith("engines/plain-fp16-0123_ctx.onnx")
    # The provider refuses an absolute engine path beside a context file.
    assert not Path(options["trt_engine_cache_path"]).is_absolute()
    assert options["trt_dump_ep_context_model"] == "1"
    # The graph's types decide: no switch may turn another precision on.
    assert not any(key.endswith(("fp16_enable", "int8_enable", "bf16_enable")) for key in options)
    reopened = tensorrt.reopened(options)
    assert set(options) - set(reopened) == {
        "trt_dump_ep_context_model",
        "trt_ep_context_file_path",
        "trt_ep_context_embed_mode",
    }
    assert reopened["trt_profile_min_shapes"] == profile.least


def test_an_engine_is_named_by_all_that_it_depends_on(
    graph_bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    bundle, buckets = graph_bundles["bert"], choose({}, 64, 512)

    def prefix(
        one: Bundle = bundle, graph: str = "plain", chosen: Buckets = buckets, machine: str = "a"
    ) -> str:
        dims = {name: value.dims for name, value in described(bundle, graph).inputs.items()}
        profile = tensorrt.profile(dims, chosen)
        return tensorrt.cache_for(tmp_path, one, graph, profile, machine).prefix

    plain = bundle.manifest.graphs["plain"]
    half = dataclasses.replace(
        bundle.manifest,
        graphs=bundle.manifest.graphs | {"plain": dataclasses.replace(plain, precision="fp16")},
    )
    other = dataclasses.replace(bundle.manifest, version="another")
    found = {
        prefix(),
        prefix(graph="paired"),
        prefix(chosen=choose({}, 64, 256, rows=8)),
        prefix(machine="b"),
        prefix(Bundle(bundle.path, half)),
        prefix(Bundle(bundle.path, other)),
    }
    assert len(found) == 6
    assert prefix() in found
    assert prefix().startswith("plain-fp32-")


def test_the_cache_knows_its_own_files_only(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, "plain-fp16-aa")
    for name in ("plain-fp16-aa_ctx.onnx", "plain-fp16-aa_1.engine", "plain-fp16-bb_1.engine"):
        (tmp_path / name).write_text("x")
    assert [file.name for file in cache.files()] == [
        "plain-fp16-aa_1.engine",
        "plain-fp16-aa_ctx.onnx",
    ]


def test_the_cache_follows_the_users_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert tensorrt.default_cache() == Path("/some/where/xlt-serve/engines")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tensorrt.default_cache().parts[-3:] == (".cache", "xlt-serve", "engines")


def test_an_int8_bundle_is_refused(graph_bundles: dict[str, Bundle]) -> None:
    tensorrt.require_precision(graph_bundles["bert"], "plain")
    with pytest.raises(BundleError, match=r"plain graph is int8.*--precision fp16 --tensorrt"):
        tensorrt.require_precision(bundles.load("topics"), "plain")
