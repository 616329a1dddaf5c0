"""The command line: `commands` says what each command takes, and imports the module of the one that runs.

It may import all of atune but `compat` and `testing`. What a command does is done by `frontends`, and what it
prints is made by `reporting`; here are options, exit statuses and signals.
"""
