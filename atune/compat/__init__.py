"""Interfaces of other tuners, with the names, parameters and errors of these tuners.

This package may import all of atune but `testing`, and also tilelang and torch. It translates arguments into options of
`frontends`, where the tuning is done.
"""
