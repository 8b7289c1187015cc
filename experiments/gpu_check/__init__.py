"""The check of a first GPU: what could not be run without one, in parts that fail alone (docs/GPU_CHECK.md).

`python -m experiments.gpu_check`; it needs torch, transformers and peft, and neither Hydra, vLLM nor a network.

    registry.py   which parts there are, and what one GPU cannot tell
    runner.py     a process for each part, its time limit, its verdict
    child.py      that process
    findings.py   what a part measures and what it is held against
    page.py       gpu_check.json and gpu_check.md
    device.py     the device, the size, seconds and memory
    settings.py   conf/ without Hydra
    models.py     random models of real and of tiny sizes
    engine.py     rollouts without an engine
    learners.py   real learners on all of these
    parts/        the parts
"""
