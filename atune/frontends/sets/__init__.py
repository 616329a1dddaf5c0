"""Sets of problems: which they are, one run for all of them, and what it found."""
