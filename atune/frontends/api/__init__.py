"""`tune`, `run`, `Tuner`, `resume`, `compile_all`, and tuning through the result cache."""
