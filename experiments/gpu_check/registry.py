"""Which parts the check has, in the order in which they run, and what they leave open."""

from experiments.gpu_check.runner import Part

TOTAL_S = 1200.0  # of all parts on one H100; their limits add up to no more

PARTS = tuple(
    Part(name, f"experiments.gpu_check.parts.{target}", limit_s, what)
    for name, target, limit_s, what in (
        ("versions", "versions:run", 130, "Every module loads, and unit tests of the signals pass."),
        ("methods", "methods:run", 120, "Every method, counterfactual, probe, gate and option: a step as on the CPU."),
        ("steps", "steps:run", 130, "Whole steps on the learner's own rollouts, float32 and bfloat16 (FSDP2)."),
        (
            "kernels",
            "kernels:run",
            120,
            "Attention of a row, recomputed attention, the head's scores: arithmetic, kernels, time, memory.",
        ),
        ("full_size", "published:full_size", 180, "Qwen2.5-1.5B's sizes in full: seconds and memory against the plan."),
        ("wide", "published:wide", 150, "Qwen2.5-7B's width: OAR-G over a row of 4,024 tokens."),
        ("rounding", "rounding:run", 70, "bfloat16: ranks of tokens as in float32, and two kernels' logprobs."),
        ("resume", "steps:resume", 60, "Checkpoint and resume of sharded, cast and adapted models."),
        ("ipc", "ipc:run", 60, "Another process reads GPU memory through handles in JSON."),
        ("trl", "trl:run", 60, "Two steps of TRL's trainer with OAR's weights."),
        ("grading", "grading:run", 60, "Segments and batch of 1,024 completions of 1,500 tokens."),
        ("costs", "costs:run", 60, "torch's deterministic mode, and weights through shared memory."),
    )
)

OPEN = {
    "NCCL between two ranks (learner.ranks=2, sync=nccl)": "NCCL refuses two ranks on one device. With two GPUs: two "
    "processes, `uid_init_process_group`, rank 1 a plain script that runs vLLM's `packed_nccl_broadcast_consumer`; then "
    "`learner.ranks=2` and a vLLM 0.32 server on a third GPU, or `learner.ranks=1` and a server on the second.",
    "A push that fails half way (sync=nccl, several ranks)": "With the same run: kill the server while it takes weights; every "
    "rank must end in one sentence within seconds.",
    "A vLLM server on a GPU": "Needs vLLM 0.32: `make doctor`, then a run of profile=single_gpu with sync=checkpoint, then "
    "sync=ipc; its start beside a 7B learner (memory, several servers at once), and sampler against learner with vLLM's "
    "kernels.",
    "Sharding that saves memory": "Shards are whole with one rank: two GPUs show half the weights, gradients and moments.",
}
