"""Interfaces of other tuners, with the names, parameters and errors of these tuners.

These interfaces may import tilelang, torch, and all of atune except `testing`. The interfaces translate arguments into
options of `frontends`, where the tuning is done.
"""
