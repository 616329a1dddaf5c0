"""The fork server, its workers, and the messages between them and the program: calls, deadlines, kills.

It imports `model`, `workload` and `workers.system`. What a call means is in `stages`; who is
called, and what follows from a loss, is in `workers.local`.
"""
