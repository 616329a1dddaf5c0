"""The cache folder: built libraries, compiler states, and the journals of runs, which are the result cache.

It imports `journal` and `model`. When a result is looked up, and what a run begins with, is decided in
`frontends.api`; which library a candidate may use is the compile workers'.
"""
