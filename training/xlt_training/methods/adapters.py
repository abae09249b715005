"""Adapters: small bottlenecks in a frozen encoder (Houlsby 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from xlt_training.loop.method import Context, Method, Trait, least_problems
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch


class Bottleneck(nn.Module):
    """``x + up(gelu(down(x)))``; begins as the identity."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, states: Tensor) -> Tensor:
        changed: Tensor = self.up(F.gelu(self.down(states)))
        return states + changed


@dataclass
class Adapters(Method):
    """A bottleneck after both sub-layers of every layer, before the residual; the rest is frozen.

    But not the LayerNorms, which Houlsby trains too; with ``norms = false`` these are as well.
    Data: none. Composes with everything but another method that freezes. Learning rate 1e-3.
    """

    traits = frozenset({Trait.FREEZES})
    first_edition: ClassVar[dict[str, Any]] = {"norms": False}

    size: int = 64  # width of a bottleneck
    norms: bool = True  # train the LayerNorms too, as Houlsby does

    def problems(self) -> list[str]:
        return least_problems(self, 1, "size")

    def attach(self, model: Classifier) -> None:
        width = model.width
        modules = nn.ModuleList()
        for layer in model.layers("adapters"):
            for place in (layer.attention.output.dense, layer.output.dense):
                adapter = Bottleneck(width, self.size).to(model.device)
                modules.append(adapter)
                # A hook leaves transformers' names, and so its checkpoints, as they are.
                place.register_forward_hook(_through(adapter))
        model.slots["adapters"] = modules

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        kept = {
            parameter
            for module in model.base.modules()
            if isinstance(module, nn.LayerNorm) and self.norms
            for parameter in module.parameters()
        }
        for _, parameter in model.encoder_parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter in kept)


def _through(adapter: Bottleneck) -> Callable[[nn.Module, object, Tensor], Tensor]:
    def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        changed: Tensor = adapter(output)
        return changed

    return hook
