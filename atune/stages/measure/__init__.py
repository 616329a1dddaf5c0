"""The device process's stages: arguments between guards, loading, the check of outputs, timing, and its observers.

It imports `model`, `bundle`, `workload`, `stages.session`, and of `workers` messages and resources. Which candidate is
measured, how often and against whom is the engine's; deadlines and kills are those of `workers`.
"""
