"""Rows of tokens as the arrays that a graph takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from xlt_serve.session import Session, pad
from xlt_serve.tokens import Piece


def feeds(pieces: Sequence[Piece], session: Session, pad_id: int) -> dict[str, npt.NDArray[Any]]:
    """The token inputs of a graph for these pieces, padded to the longest."""
    ids, mask = pad([piece.ids for piece in pieces], pad_id)
    out = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in session.inputs:
        out["token_type_ids"] = pad([piece.type_ids for piece in pieces], 0)[0]
    return out
