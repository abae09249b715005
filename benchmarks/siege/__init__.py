"""What one bad client can do to the service, and to others: ``python -m benchmarks.siege``."""
