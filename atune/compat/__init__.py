"""Interfaces of other tuners: their names, parameters and errors.

These modules may import all of atune except `testing`, and tilelang and torch. They translate arguments into options of
`frontends`, which does the tuning.
"""
