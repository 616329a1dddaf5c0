"""Ways to compile faster, each a module that can be switched off."""
