"""Starting runs: one with its engine and its learner, several side by side, a sweep."""
