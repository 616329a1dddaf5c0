"""One run: it proposes, compiles, measures and holds the final, over the protocols in `interfaces`.

It imports `model`, `workload`, `journal`, `reporting`, and no tilelang, torch or CUDA. Processes and devices are in
`workers`, which implements the protocols; what a kernel is made of and how it is timed is in `stages`. The strategies
with their prior know of the rest only that it asks them and tells them of outcomes.
"""
