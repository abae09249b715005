"""All training methods by the name that a config calls them."""

from training.method import Method
from training.methods.vanilla import Vanilla

METHODS: dict[str, type[Method]] = {
    "vanilla": Vanilla,
}
