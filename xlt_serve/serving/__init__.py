"""The service: HTTP, admission, scheduling, workers' state."""
