"""The engine of a run: it proposes, compiles and measures candidates, and then runs the final.

This package imports `model`, `workload`, `journal` and `reporting`, but neither tilelang, torch nor CUDA. It uses
workers through the protocols in `interfaces`: `workers` implements these protocols with processes and devices, and
`stages` compiles and times the kernels. Strategies and the prior import none of the engine's other modules.
"""
