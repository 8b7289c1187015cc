"""What credit says of a mistake that has a token, and of one that has none."""
