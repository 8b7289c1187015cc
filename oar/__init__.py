"""OAR: Outcome-grounded Advantage Reshaping, token-level credit assignment for reasoning models."""
