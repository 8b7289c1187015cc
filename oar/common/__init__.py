"""What everything rests on: errors, seeds, files, progress, provenance, processes."""
