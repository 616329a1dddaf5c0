"""The stages. They run inside worker processes, are the only modules that import tilelang, torch or CUDA, and are
named by the engine by import path: each entry point takes bytes and returns bytes."""
