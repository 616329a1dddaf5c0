"""Chooses candidates: strategies with ask and tell, and the prior that estimates before anything is compiled.

It imports `model`, `journal` and nothing else of `engine`, which asks a strategy and tells it of outcomes. What a space
holds is in `model` and `workload`.
"""
