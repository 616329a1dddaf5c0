"""The command line: `commands` lists the commands with their arguments, and imports only the running command's module.

This package may import all of atune but `compat` and `testing`. The package handles options, exit statuses and signals.
`frontends` does the work of the commands, and `reporting` formats the output of the commands.
"""
