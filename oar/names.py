"""The choices that keys of the method have, named once: the configuration checks them without loading torch."""

PROBES = ("warmup", "lt_logits", "as_mean", "as_joint", "reference", "reward_model")
REFERENCES = ("solution", "answer")  # of probe.reference
COUNTERFACTUALS = ("pad", "mean_embedding", "text", "random_token", "resampled", "knockout")
DRAWN = ("random_token", "resampled")  # the counterfactuals that are random
THRESHOLDS = ("quantile", "absolute", "released_drift")
AGGREGATIONS = ("sequence_mean", "token_mean", "constant")
RATIO_LEVELS = ("token", "sequence")
CONTEXTS = ("answer", "solution", "peer", "feedback")  # what a privileged prompt shows
TEACHERS = ("live", "start", "synced", "averaged")  # of method.teacher.kind
CONTROLS = ("none", "shuffled", "position", "even")  # of method.control
CUTS = ("steps", "low_probability")  # of method.continuations
