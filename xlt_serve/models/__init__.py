"""What ships: bundles, and in ``encoders`` what they were made from. ``xlt_serve.bundle`` finds it."""
