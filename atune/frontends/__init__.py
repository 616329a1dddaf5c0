"""The entry points of atune (`tune` and similar functions, sets of problems, the decorator), and their options.

This package may import all of atune but `compat` and `testing`. It turns a call into a run with a journal and a result.
`engine` carries out the run, and `workers` keeps files that outlive the run. `cli` is the command line.
"""
