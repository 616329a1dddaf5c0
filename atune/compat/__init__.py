"""Other tuners' interfaces: their names, parameters and errors.

They may import all of atune but `testing`, and tilelang and torch. Arguments become options of `frontends` here;
everything after that is its work.
"""
