"""The command line: `commands` lists the commands with their arguments, and imports only the running command's module.

This folder handles options, exit statuses and signals, and may import all of atune except `compat` and `testing`.
`frontends` does the work of the commands, and `reporting` formats the output of the commands.
"""
