"""From a checkpoint to a bundle: graphs, precisions, the gate."""
