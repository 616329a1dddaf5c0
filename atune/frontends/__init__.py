"""The ways into atune: `tune` and its relatives, sets of problems, and the decorator, with the options of each.

They may import all of atune but `compat` and `testing`. They turn a call into a run with a journal and a result.
`engine` carries the run out, and `workers` keeps files that outlive the run. The command line is in `cli`.
"""
