"""The stages run inside worker processes, and only they import tilelang, torch or CUDA. The engine names their entry
points by import path; each takes bytes and returns bytes."""
