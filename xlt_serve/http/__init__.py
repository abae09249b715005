"""What the service adds to the pipeline: HTTP, limits, keys, logs, metrics."""
