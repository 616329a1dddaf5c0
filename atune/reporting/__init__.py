"""Functions over results: text for a screen, rows, the page, progress, the log, and what a set's runs share.

It imports `model`, `workload` and `journal`, and nothing here starts a process or runs code of a workload. `journal`
says what became of a run; which words and figures a reader gets of it is decided here, once for every door.
"""
