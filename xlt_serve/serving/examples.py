"""What the OpenAPI description shows: requests, and what the shipped bundles answer."""

from __future__ import annotations

from typing import Any

_PLAIN = {"truncated": False, "windows": 1, "mode": "plain", "abstained": None, "error": None}

REQUESTS: dict[str, dict[str, Any]] = {
    "texts": {"texts": ["Die Mannschaft gewann das Finale.", ""], "top_k": 2},
    "smoothed": {
        "texts": "El partido terminó en empate.",
        "mode": "smoothed",
        "samples": 200,
        "alpha": 0.001,
        "radius": 0.05,
        "seed": 7,
        "top_k": 2,
    },
    "paired": {
        "texts": ["El partido terminó en empate."],
        "bundle": "topics-paired",
        "mode": "paired",
        "translations": ["The match ended in a draw."],
        "top_k": 2,
    },
    "pairs": {"pairs": [["A man sleeps.", "Somebody is asleep."]]},
}

ZERO_SHOTS: dict[str, dict[str, Any]] = {
    "topics": {
        "texts": ["Der Zug fährt heute nicht."],
        "labels": ["travel", "sports", "health"],
        "template": {"de": "In diesem Text geht es um {}.", "*": "About {}."},
    }
}
SWAPS: dict[str, dict[str, Any]] = {
    "again": {"name": "topics"},
    "other": {"name": "topics", "bundle": "/bundles/v2"},
    "other labels": {"name": "topics", "bundle": "/bundles/v3", "force": True},
}

UNLOADS: dict[str, dict[str, Any]] = {"one": {"name": "topics-paired"}}

PREDICTIONS: dict[str, list[dict[str, Any]]] = {
    "texts": [
        _PLAIN
        | {
            "label": "sports",
            "probabilities": {"sports": 0.979893, "entertainment": 0.005688},
            "language": "de",
            "tokens": 8,
        },
        _PLAIN
        | {
            "label": None,
            "probabilities": {},
            "language": None,
            "tokens": 0,
            "error": {
                "code": "empty",
                "message": "'': a text needs at least one visible character",
            },
        },
    ],
    "smoothed": [
        _PLAIN
        | {
            "label": "sports",
            "probabilities": {"sports": 1.0, "entertainment": 0.0},
            "language": "es",
            "tokens": 10,
            "mode": "smoothed",
            "votes": {
                "entertainment": 0,
                "geography": 0,
                "health": 0,
                "politics": 0,
                "science/technology": 0,
                "sports": 27,
                "travel": 0,
            },
            "draws": 27,
            "seed": 7,
            "lower_bound": 0.7215,
            "certificate": {
                "norm": "l2",
                "radius": 0.05029,
                "at": "embeddings",
                "noise": "gaussian",
                "scale": 0.1,
                "alpha": 0.001,
            },
            "warning": None,
        }
    ],
    "paired": [
        _PLAIN
        | {
            "label": "sports",
            "probabilities": {"sports": 0.924119, "politics": 0.025991},
            "language": "es",
            "tokens": 10,
            "mode": "paired",
            "mixed": True,
            "ratio": 0.412685,
            "translation": "The match ended in a draw.",
            "translator": "client",
            "quality": None,
            "reason": None,
        }
    ],
}


def answer(name: str) -> dict[str, Any]:
    """To the request of this name."""
    bundle = {"name": REQUESTS[name].get("bundle", "topics"), "version": "6ec1fd8d05d7"}
    timings = {"queue_ms": 1.0, "run_ms": 4.0, "predict_ms": 6.3}
    return {"predictions": PREDICTIONS[name], "bundle": bundle, "timings": timings}
