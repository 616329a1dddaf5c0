"""nvcc with the headers parsed once: the server and its process, the workers' side, and Hopper's instructions."""
