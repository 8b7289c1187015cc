"""What several experiments need to make evidence of measurements."""
