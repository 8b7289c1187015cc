"""The parts: a file each, whose `run(findings)` the registry names."""
