"""Fidelity: how well each cheap signal agrees with exact OAR-P, and at what cost, `python -m experiments.fidelity`."""
