"""Paired and translate-test prediction over HTTP, with an engine that works and one that is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.xlt_serve.serving.conftest import Local, Start, valid
from tests.xlt_serve.translation.engines import libretranslate, shout
from xlt_serve.bundle import Bundle

GERMAN = "Das Spiel der Mannschaft war heute sehr gut."
ENGLISH = "The team played a very good match today."


@pytest.fixture(scope="module")
def paired(
    start: Start, graph_bundles: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory
) -> Local:
    folder = tmp_path_factory.mktemp("translators")
    row = {"source": "de", "target": "en", "text": GERMAN, "translation": ENGLISH, "quality": 0.8}
    (folder / "table.jsonl").write_text(json.dumps(row))
    with libretranslate(shout) as (url, _):
        pass  # nobody is there any more
    file = folder / "translators.toml"
    file.write_text(
        f"""
        [engine.table]
        kind = "recorded"
        file = "table.jsonl"
        [engine.gone]
        kind = "http"
        url = "{url}"
        """
    )
    place = str(graph_bundles["xlm-roberta"].path)
    return start(bundles={"toy": place, "topics": "topics"}, translators=file)


def test_a_text_and_its_translation_are_predicted_together(paired: Local) -> None:
    answer = paired.post("/classify", json={"texts": [GERMAN, ENGLISH], "mode": "paired"})
    assert answer.status_code == 200
    mixed, same = valid("Answer", answer.json())["predictions"]
    assert (mixed["mode"], mixed["mixed"], mixed["translation"]) == ("paired", True, ENGLISH)
    assert (mixed["translator"], mixed["quality"], mixed["reason"]) == ("table", 0.8, None)
    assert 0 < mixed["ratio"] < 0.5
    assert (same["translator"], same["translation"]) == ("same", ENGLISH)


def test_the_clients_own_translation_is_used(paired: Local) -> None:
    asked = {"texts": [GERMAN, GERMAN], "translations": ["Hello.", None], "mode": "translate"}
    rows = valid("Answer", paired.post("/classify", json=asked).json())["predictions"]
    assert [row["translation"] for row in rows] == ["Hello.", ENGLISH]
    assert [row["mode"] for row in rows] == ["translate", "translate"]
    (plain,) = paired.post("/classify", json={"texts": ["Hello."]}).json()["predictions"]
    assert rows[0]["probabilities"] == pytest.approx(plain["probabilities"], abs=1e-5)


def test_a_failing_engine_degrades_the_answer_and_no_more(paired: Local) -> None:
    asked = {"texts": ["Das Wetter ist heute schlecht."], "mode": "paired"}
    (row,) = valid("Answer", paired.post("/classify", json=asked).json())["predictions"]
    assert (row["mode"], row["mixed"], row["error"]) == ("plain", False, None)
    assert row["reason"]["code"] in ("failed", "resting")
    (row,) = paired.post("/classify", json=asked | {"require_translation": True}).json()[
        "predictions"
    ]
    assert row["error"]["code"] == "untranslated"


def test_a_bundle_without_the_graph_is_refused(paired: Local) -> None:
    asked = {"texts": [GERMAN], "mode": "paired", "bundle": "topics"}
    answer = paired.post("/classify", json=asked)
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert "needs a bundle with the paired graph" in message
    assert "use bundle=toy;" in message  # one that is loaded, not one that ships


def test_a_region_is_no_language_of_its_own(paired: Local) -> None:
    for language, text, translator in (("EN-us", ENGLISH, "same"), ("de_AT", GERMAN, "table")):
        asked = {"texts": [text], "mode": "paired", "language": language}
        (row,) = paired.post("/classify", json=asked).json()["predictions"]
        assert (row["language"], row["mixed"], row["translator"]) == (language, True, translator)


def test_a_translation_that_is_cut_is_said_to_be(paired: Local) -> None:
    asked = {"texts": [GERMAN] * 2, "mode": "paired", "translations": [ENGLISH, ENGLISH * 300]}
    rows = paired.post("/classify", json=asked).json()["predictions"]
    assert [row["truncated"] for row in rows] == [False, True]


def test_many_items_keep_their_order(paired: Local) -> None:
    texts = [f"{ENGLISH} {number}" for number in range(70)]
    rows = paired.post("/classify", json={"texts": texts, "mode": "paired"}).json()["predictions"]
    assert [row["translation"] for row in rows] == texts


def test_translations_are_counted(paired: Local) -> None:
    from xlt_serve.serving.metrics import metrics

    for _ in range(2):  # the second time it is known, whichever tests this process ran before
        paired.post("/classify", json={"texts": [GERMAN], "mode": "paired"})
    counted = metrics().translations.labels("table", "de", "cached")._value.get()
    assert counted >= 1


def test_a_file_that_is_not_there_stops_the_start(start: Start, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is not there"):
        start(translators=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("texts", "given"), [(1, 3), (40, 45), (40, 35), (1, 0)], ids=["more", "late", "fewer", "none"]
)
def test_translations_that_are_not_one_a_text_are_refused(
    service: Local, texts: int, given: int
) -> None:
    body = {"texts": ["Hallo"] * texts, "mode": "translate", "translations": ["Hello"] * given}
    refused = service.post("/classify", json=body)
    assert refused.status_code == 422
    message = valid("Error", refused.json())["error"]["message"]
    assert f"{given} translations: there must be one for each of the {texts} items" in message
    plain = service.post("/classify", json=body | {"mode": "plain", "translations": ["Hello"]})
    assert "mode=plain uses no translations" in plain.json()["error"]["message"]
