"""One forward of a policy: packed sequences, the head in pieces, logprobs and entropy."""
