"""The machine: cores, memory, shortages, locks, deadlines, and signals at a terminal.

It imports `model` alone. Folders are in `model.folders`; who waits, and how long, is in `workers.local`.
"""
