"""The check of a first GPU: what could not be run without one, in parts that fail alone (docs/GPU_CHECK.md).

`python -m experiments.gpu_check`; it needs torch, transformers, peft and requests, and neither Hydra, vLLM nor a network.
registry.py has the parts, runner.py a process for each, engine.py and learners.py real training steps without a server.
"""
