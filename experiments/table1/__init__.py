"""Table 1: base model, GRPO and OAR, cell by cell."""
