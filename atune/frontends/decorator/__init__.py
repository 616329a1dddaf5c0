"""`@atune.autotune`: kernels that tune at their first call, and look their winner up at later ones.

It may import all of atune but the command line, `compat` and `testing`. A call's arguments become a key and a workload
here; tuning the workload is the work of `frontends.api`, and making the winner's kernel that of `stages.frontend`.
"""
