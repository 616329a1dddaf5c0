"""The command line: `commands` lists the commands with their arguments, and imports only the running command's module.

It may import all of atune but `compat` and `testing`. This folder handles options, exit statuses and signals;
`frontends` does the work of the commands, and `reporting` makes their output.
"""
