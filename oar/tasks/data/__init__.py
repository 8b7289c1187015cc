"""Published data sets and the embedded tiers: from rows to problems."""
