"""`tune`, `run`, `Tuner`, `resume`, `compile_all`, and the options of a run.

They may import all of atune but the other frontends, `compat` and `testing`. A call becomes a run with a journal and a
result here; what happens in the run is `engine`'s work, and what outlives it `workers.storage`'s.
"""
