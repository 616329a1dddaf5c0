"""Interfaces of other tuners: their names, parameters and errors.

They may import all of atune but `testing`, and tilelang and torch. They translate arguments into options of
`frontends`, which does the tuning.
"""
