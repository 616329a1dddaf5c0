"""The ways into atune: `tune` and its relatives, sets of problems, and the decorator, with the options of each.

They may import all of atune but `compat` and `testing`. A call becomes a run with a journal and a result here; what
happens in the run is `engine`'s work, and what outlives it is kept by `workers`. The command line is in `cli`.
"""
