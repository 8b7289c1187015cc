"""Which parts the check has, in the order in which they run, and what they leave open."""

from experiments.gpu_check.runner import Part

_PARTS = "experiments.gpu_check.parts"
TOTAL_S = 1200.0  # of all parts on one H100; their limits add up to no more

PARTS = (
    Part("versions", f"{_PARTS}.versions:run", "Every module loads, and unit tests of the signals pass.", 130),
    Part(
        "methods",
        f"{_PARTS}.methods:run",
        "A training step of every method, counterfactual, probe, gate and option: as on the CPU in float32.",
        120,
    ),
    Part(
        "steps",
        f"{_PARTS}.steps:run",
        "Whole steps on rollouts of the learner's own, float32 and bfloat16 (FSDP2), and sampler against learner.",
        110,
    ),
    Part(
        "kernels",
        f"{_PARTS}.kernels:run",
        "Recomputed attention and the head's scores against plain arithmetic; kernels, time and memory.",
        120,
    ),
    Part(
        "full_size",
        f"{_PARTS}.full_size:run",
        "Qwen2.5-1.5B's sizes in full: seconds and memory by stage against the plan, deterministic or not.",
        200,
    ),
    Part(
        "wide",
        f"{_PARTS}.wide:run",
        "Qwen2.5-7B's width: OAR-G over a row of 4,024 tokens, with an adapter and 8 layers in full.",
        150,
    ),
    Part(
        "rounding",
        f"{_PARTS}.rounding:run",
        "bfloat16: ranks of tokens as in float32, and how well two kernels agree on logprobs.",
        70,
    ),
    Part("resume", f"{_PARTS}.resume:run", "Checkpoint and resume of sharded, cast and adapted models.", 60),
    Part("ipc", f"{_PARTS}.ipc:run", "Another process reads GPU memory through handles in JSON.", 60),
    Part("trl", f"{_PARTS}.trl:run", "Two steps of TRL's trainer with OAR's weights.", 60),
    Part("grading", f"{_PARTS}.grading:run", "Segments and batch of 1,024 completions of 1,500 tokens.", 60),
    Part("costs", f"{_PARTS}.costs:run", "torch's deterministic mode, and weights through shared memory.", 60),
)

OPEN = (
    (
        "NCCL between two ranks (learner.ranks=2, sync=nccl)",
        "NCCL refuses two ranks on one device. With two GPUs: two processes, `uid_init_process_group`, rank 1 a plain script "
        "that runs vLLM's `packed_nccl_broadcast_consumer`; then `learner.ranks=2` and a vLLM 0.32 server on a third GPU, or "
        "`learner.ranks=1` and a server on the second.",
    ),
    (
        "A push that fails half way (sync=nccl, several ranks)",
        "With the same run: kill the server while it takes weights; every rank must end in one sentence within seconds.",
    ),
    (
        "A vLLM server on a GPU",
        "Needs vLLM 0.32: `make doctor`, then a run of profile=single_gpu with sync=checkpoint, then sync=ipc; its start beside "
        "a 7B learner (memory, several servers at once), and sampler against learner with vLLM's kernels.",
    ),
    (
        "Sharding that saves memory",
        "Shards are whole with one rank: two GPUs show half the weights, gradients and moments.",
    ),
)
