"""Scripts that other interpreters run. Alone in their folder, which Python puts on their path: a
neighbour named like a module of the standard library would be taken for it."""
