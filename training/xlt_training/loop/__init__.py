"""From a config to a checkpoint: model, objective, trainer, evaluation."""
