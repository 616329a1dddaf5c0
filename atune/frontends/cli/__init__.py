"""The command line: each module adds its commands to the parser, and imports what they need when they run.

It may import all of atune but `compat` and `testing`. What a command does is done by `frontends.api`, and what it
prints is made by `reporting`; here are options, exit statuses and signals.
"""
