"""Programs: how they are started, what they refuse in one sentence, how keys are completed."""
