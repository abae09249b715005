from __future__ import annotations

from xlt_serve.evaluation.groups import groups

XNLI = ["ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"]


def test_distant_is_what_isozcl_calls_so() -> None:
    """Of XNLI the languages that are not Indo-European: without Hindi and Urdu."""
    found = groups(XNLI, "en")
    assert found["distant"] == ["ar", "sw", "th", "tr", "vi", "zh"]
    assert len(found["target"]) == 14
    assert "en" not in found["target"]


def test_what_is_distant_can_be_said() -> None:
    assert groups(XNLI, "en", {"hi", "ur", "ja"})["distant"] == ["hi", "ur"]
    assert "distant" not in groups(["en", "de"], "en")
