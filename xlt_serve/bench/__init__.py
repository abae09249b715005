"""Latency, measured so that one can believe it.

``loops`` is the load generator (closed and open loop), ``http_load`` sends its requests,
``server_process`` starts a server, ``served`` measures one under load, ``grid`` times a graph by itself,
``peers`` other runtimes beside ours. ``stats`` turns times into percentiles with intervals, ``compare``
tells two runs apart, ``report`` shows one, ``schema.json`` says what a run's JSON holds.
"""
