"""The machine: cores, memory, folders, paths, locks, signals."""
