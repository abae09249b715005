"""Latency, measured so that one can believe it.

``loops`` sends requests (closed and open), ``http`` carries them, ``grid`` times a graph by itself,
``stats`` turns times into numbers with their intervals, ``compare`` tells two runs apart,
``report`` shows one, ``schema.json`` says what a run's JSON holds.
"""
