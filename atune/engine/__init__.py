"""One run: proposes, compiles and measures candidates and runs the final, using the protocols in `interfaces`.

It imports `model`, `workload`, `journal` and `reporting`, and neither tilelang, torch nor CUDA. `workers` implements
the protocols with processes and devices, and `stages` compiles and times the kernels. The strategies and their prior
know nothing of the other modules, which ask them for candidates and tell them outcomes.
"""
