"""Other tuners' interfaces over atune's engine."""
