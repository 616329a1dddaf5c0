"""Events, the state folded from them, results, and journals, the files that store events.

It imports `model` and `workload`. `engine` emits the events, `reporting` renders results, and `workers` decides which
journals are kept, and which are looked up.
"""
