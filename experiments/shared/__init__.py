"""What several experiments measure with."""
