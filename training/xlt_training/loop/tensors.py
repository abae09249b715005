"""Masked arithmetic on hidden states: padding never enters a statistic."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """[batch, length, width] and [batch, length] → the mean over real positions [batch, width]."""
    real = mask.unsqueeze(-1).to(states.dtype)
    return (states * real).sum(1) / real.sum(1).clamp(min=1)


def real_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """[tokens, width]: all real positions of a batch, one after the other."""
    return states[mask.bool()]


def membership(words: Tensor, count: int) -> Tensor:
    """[batch, length] word numbers (-1: none) → [batch, count, length], 1 where token is in word."""
    numbers = torch.arange(count, device=words.device)
    return (words.unsqueeze(1) == numbers[None, :, None]).float()


def word_means(states: Tensor, words: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean over each word's tokens [batch, count, width], and which words are there at all."""
    inside = membership(words, count)
    size = inside.sum(-1)
    return inside @ states / size.clamp(min=1).unsqueeze(-1), size > 0
