"""Events, journals (the files that store events), and the state and the result that are computed from events.

This package imports `model` and `workload`. `engine` emits the events, `reporting` renders results, and `workers`
decides which journals are kept and which are looked up.
"""
