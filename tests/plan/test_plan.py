"""Memory, hours and refusals of a run: against what is measured, and against hand-computed numbers."""

from dataclasses import replace

import pytest
import torch

from experiments.bench_importance.steps import one_apart
from experiments.shared.peak_memory import peak_memory
from oar.common.errors import ConfigError
from oar.config import LoraConfig, build
from oar.learner.distributed import ALONE
from oar.learner.sharding import recomputed_layers
from oar.method.importance import (
    GradientImportance,
    GradientNormImportance,
    InvertedImportance,
    PerturbationImportance,
)
from oar.method.probes import AnswerMeanProbe
from oar.plan import memory_of, plan_run
from oar.plan.memory import GIB
from oar.tasks.words import build_tokenizer
from tests.learner.on_ranks import learner_of
from tests.models import credit_inputs, random_batch
from tests.plan.plans import GRPO, SMALL, composed, planned, random_model


def test_memory_by_hand():
    """16 bytes a parameter on one rank in float32; on four a quarter of it, and all weights in bfloat16."""
    cfg, assume, _ = composed()
    n, block = SMALL.parameters, SMALL.layer_activation_bytes

    def of_learner(sizes=SMALL):
        return memory_of(cfg, sizes, assume, GRPO).learner

    alone, tokens = of_learner(), 2048  # more than the longest prompt and completion have
    assert alone["weights"] + alone["gradients"] + alone["optimizer"] == 16 * n
    assert "gathered_weights" not in alone
    assert alone["activations"] == tokens * 2 * block(4)
    assert alone["logits"] == (12 + 4) * 2048 * 96  # 96 words: one block, and kept as a whole
    cfg.learner.micro_batch_tokens = 1  # one completion at least
    assert of_learner()["logits"] == (12 + 4) * (assume.longest_prompt + 96) * 96
    cfg.learner.micro_batch_tokens = 2048

    cfg.model.lora = LoraConfig(r=4, alpha=8, targets=["q_proj", "k_proj", "down_proj"])
    adapted, adapter = of_learner(), 2 * 4 * ((64 + 64) + (64 + 32) + (160 + 64))
    assert adapted["weights"] == 4 * (n + adapter)
    assert adapted["gradients"] + adapted["optimizer"] == 12 * adapter
    cfg.model.lora.targets = ["q_proj", "lm_head"]
    with pytest.raises(ConfigError, match="'lm_head'"):
        of_learner()
    cfg.model.lora = None

    assume.devices = cfg.learner.ranks = 4
    cfg.learner.compute_dtype, cfg.learner.activation_checkpointing = "bfloat16", True
    sharded = memory_of(cfg, SMALL, assume, GRPO)
    assert sharded.shared  # four ranks and an engine on four devices
    assert sharded.device == sum(sharded.learner.values()) + sum(sharded.engine.values())
    assert sharded.learner["weights"] == n
    assert sharded.learner["gathered_weights"] == 2 * n
    assert sharded.learner["summed_gradients"] == 6 * 2 * 96 * 64
    assert sharded.learner["activations"] == tokens * (block(2) + 2 * (2 * 64 + 2 * (64 + 2 * 32)))
    assert sharded.learner["logits"] == (10 + 4) * 2048 * 96
    wide = of_learner(replace(SMALL, vocabulary=2**20))
    assert wide["logits"] == 10 * 2**26 + 4 * 2**25  # one block and what is kept, however many tokens
    assert "reference" not in sharded.learner
    cfg.learner.kl_coef = 0.1
    assert of_learner()["reference"] == 2 * n
    assume.devices = 5
    apart = memory_of(cfg, SMALL, assume, GRPO)
    assert apart.device == max(sum(apart.learner.values()), sum(apart.engine.values()))


@pytest.mark.parametrize(
    ("overrides", "beside"),
    [
        (["method=mig"], {}),
        (["method=rlsd"], {"reference": 4}),  # who teaches, in float32
        (["method=serl"], {"teacher": 4}),
        (["method=sdpg"], {"reference": 4}),
        (["method=sdpg", "method.auxiliary.reference=0"], {}),
        (["method=sdpo"], {"teacher": 4}),
        (["method=prime"], {"reference": 4, "reward_model": 16}),
    ],
)
def test_memory_of_models_beside_the_policy(overrides, beside):
    cfg, assume, _ = composed(*overrides)
    found = memory_of(cfg, SMALL, assume, GRPO).learner
    expected = {name: size * SMALL.parameters for name, size in beside.items()}
    assert {name: found[name] for name in ("reference", "teacher", "reward_model") if name in found} == expected


def test_a_line_of_the_plan_has_its_own_methods_teacher():
    cfg, assume, _ = composed("method=grpo")
    methods = {name: composed(f"method={name}")[0].method for name in ("grpo", "sdpo")}
    estimators = {name: build("it", one.estimator) for name, one in methods.items()}
    table = plan_run(cfg, SMALL, assume, estimators, {}, methods).methods
    longer = table["sdpo"]["device_gib"] - table["grpo"]["device_gib"]
    # The teacher, and its forward: a block of a micro-batch, and queries, keys and values of both.
    its_forward = 2048 * (SMALL.layer_activation_bytes(4) + 2 * SMALL.recorded_bytes(4))
    assert longer == pytest.approx((4 * SMALL.parameters + its_forward) / 2**30)
    assert table["sdpo"]["importance"] > table["grpo"]["importance"] == 0
    assert table["sdpo"]["update"] > table["grpo"]["update"]  # all completions are in it


def test_memory_of_signals_by_hand():
    cfg, assume, _ = composed("learner.micro_batch_tokens=400", "rollout.max_new_tokens=52")
    longest, saved, keys = assume.longest_prompt + 52, SMALL.layer_activation_bytes(4), SMALL.kv_bytes(4)

    def held(estimator):
        return memory_of(cfg, SMALL, assume, estimator).learner["credit_signal"]

    assert held(GRPO) == held(GradientNormImportance()) == 0
    # Keys once more, copied block by block, and what autograd keeps of the completions: all that a micro-batch has.
    assert held(GradientImportance()) == 400 * 2 * (keys + saved)
    # At most 100 tokens, but for a completion that has more.
    assert held(GradientImportance(max_tokens_per_forward=100)) == 2 * (longest * keys + 100 * saved)
    one = GradientImportance(max_tokens_per_forward=1)
    assert held(one) == 2 * (longest * keys + 52 * saved)
    cfg.learner.activation_checkpointing = True  # one block, and the inputs of all
    block = longest * keys / 2 + 52 * saved
    assert held(one) == longest * keys + block + 52 * 2 * 64 * 4
    cfg.learner.compute_dtype = "bfloat16"  # two side by side in float32
    assert held(one) == longest * keys + 2 * (block + 52 * 2 * 64 * 4)
    cfg.learner.compute_dtype, cfg.learner.activation_checkpointing = "float32", False
    # The token and a tail of 2: 25 counterfactuals in a forward of 75 tokens; the logits of two answer positions twice, and
    # four numbers more for each of 96 words, all float32.
    window = PerturbationImportance(window=0, max_tokens_per_forward=75)
    assert held(window) == held(InvertedImportance(window)) == longest * keys + 25 * 96 * (2 * 8 + 16)


@pytest.mark.parametrize(
    "overrides",
    [
        *(["method=rlsd"], ["method=serl", "method.estimator.of.context=answer"]),
        *(["method=sdpg"], ["method=sdpo"], ["method=prime"], ["method=crpo"], ["method=oar_s_gradient"]),
        ["method=reward_head", "method.estimator.learned.memory=24"],
        ["method=grail", "method.estimator.leaf=first", "method.estimator.rollout_symmetry=both"],
    ],
    ids=" ".join,
)
def test_a_step_holds_what_the_plan_says(overrides, tmp_path):
    """Of a whole training step, models and optimizer included, what it holds beyond GRPO's; micro-batches fill unequally."""
    sizes = replace(SMALL, hidden=128, intermediate=320, vocabulary=len(build_tokenizer()))
    weights = random_model(sizes)
    weights.save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)

    def peaks(*own):
        sizes_of = ["learner.batch_size=24", "learner.num_generations=4", "learner.micro_batch_tokens=400"]
        cfg, assume, _ = composed(*sizes_of, "sync.max_logprob_diff=100", "probe=as_mean", *own)
        found = one_apart(lambda: learner_of(cfg, tmp_path, ALONE), weights.state_dict(), "cpu")
        estimator = build("it", cfg.method.estimator)
        return found["peak"], sum(memory_of(cfg, sizes, assume, estimator).learner.values())

    (measured, foretold), (usual, planned_usual) = peaks(*overrides), peaks("method=grpo")
    assert 0.5 < (foretold - planned_usual) / (measured - usual) < 1.6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_oar_g_holds_what_the_plan_says(dtype, checkpointing):
    """Roughly: attention's bias, the noise and a backward's own tensors come on top, and not all that is planned runs again."""
    cfg, assume, _ = composed(f"learner.compute_dtype={dtype}", f"learner.activation_checkpointing={checkpointing}")
    batch = random_batch(0, rows=2, longest=150).rows(torch.zeros(4, dtype=torch.long))
    assume.longest_prompt, cfg.rollout.max_new_tokens = int(batch.prompt_lengths[0]), int(batch.completion_lengths[0])
    cfg.learner.micro_batch_tokens = 4 * int((batch.prompt_lengths + batch.completion_lengths)[0])
    sizes = replace(SMALL, layers=6, hidden=256, intermediate=640)
    for estimator in (GradientImportance(max_tokens_per_forward=1), GradientImportance()):
        with peak_memory("cpu") as mark:
            model = random_model(sizes).to(getattr(torch, dtype))
            inputs = credit_inputs(batch, AnswerMeanProbe(), model=model, keep_graph=True)
            before, _ = mark()
            with recomputed_layers(model, checkpointing):
                estimator(inputs)
            measured = mark()[1] - before
        foretold = memory_of(cfg, sizes, assume, estimator).learner["credit_signal"]
        assert 0.75 * measured < foretold < 1.5 * measured


def test_a_run_by_hand():
    steps = ["learner.steps=10", "learner.updates_per_rollout=2", "rollout.kv_cache_gib=7", "assume.utilisation=0.5"]
    plan = planned("learner.ranks=4", *steps, "assume.price_per_device_hour=2")
    assert plan.batches["prompts"] == {"a_step": 128, "the_run": 1280}
    assert plan.batches["completions"] == {"a_step": 1024, "the_run": 10_240}
    assert plan.batches["optimizer_steps"]["the_run"] == 20
    # 512 completions an update, five of 810 tokens at a time, on four ranks: 26 micro-batches.
    assert plan.batches["micro_batches_of_a_rank"] == {"a_step": 52, "the_run": 520}
    assert plan.batches["passes_over_the_problems"] == {"the_run": 1280 / 5584}
    assert plan.batches["tokens_of_completions"]["a_step"] == 716_800
    assert plan.batches["tokens_of_completions_at_most"]["a_step"] == 3_072_000
    # 28 layers x 4 heads x 128 x 2 (keys, values) x 2 bytes; 4,096 of them are 0.21875 GiB, of which 7 GiB have 32.
    assert plan.cache == {"bytes_a_token": 57_344, "full_sequences": 32, "mean_sequences": 7 * GIB // (57_344 * 810)}

    sync = 2 * 7.615616512  # GB in model.dtype, bfloat16
    checkpoints = 3 * 3 * 4 * 7.615616512  # the last two and the best, float32
    assert plan.storage == pytest.approx(
        {"weights_a_sync": sync, "weights_all_syncs": 11 * sync, "checkpoints": checkpoints}
    )
    adapted = planned("lora=r64", *steps)
    # All weights, the adapter's (of q and o, of k and v, of the three of the MLP), and two moments of these alone.
    adapter = 28 * 64 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    assert adapted.storage["checkpoints"] == pytest.approx(3 * 4 * (7.615616512 + 3 * adapter / 1e9))
    wider = planned("model.dtype=float32", "rollout.kv_cache_gib=32")
    assert wider.storage["weights_a_sync"] == pytest.approx(2 * sync)

    # Two points (before step 1 and step 10) of 30 problems a set; k is 4, 4, 32, 32, 32, and a greedy one each.
    seen = plan.evaluations
    assert (seen["points_of_the_curve"], seen["samples_of_the_curve"]) == (2, 300)
    assert seen["samples_at_the_end"] == 5 * (1319 + 500) + 33 * (30 + 30 + 40)
    assert seen["tokens_of_all_samples"] == 700 * (300 + seen["samples_at_the_end"])
    assert seen["hours"] == pytest.approx(seen["tokens_of_all_samples"] / (4 * 3000) / 3600)

    costs = plan.methods["grpo"]
    assert costs["device_gib"] == plan.memory.device / GIB
    assert costs["generation"] == pytest.approx(1024 * 700 / (4 * 3000))
    assert costs["sync"] == pytest.approx(sync / 2)
    # 10 operations a parameter and token (scored first, checkpointing), embeddings apart, and attention's few percent.
    rough = 10 * (7.6156e9 - 0.545e9) * 1024 * 810 / (4 * 989e12 * 0.5)
    assert costs["update"] == pytest.approx(rough, rel=0.1)
    assert costs["step"] == costs["generation"] + costs["update"] + costs["sync"]
    assert costs["hours"] == pytest.approx(10 * costs["step"] / 3600 + seen["hours"])
    assert (costs["device_hours"], costs["price"]) == (8 * costs["hours"], 16 * costs["hours"])


@pytest.mark.parametrize("where", ["profile=paper", "profile=single_gpu", "model=qwen2_5_math_7b"])
@pytest.mark.parametrize("method", ["grpo", "oar_g", "oar_p"])
def test_the_profiles_fit_with_every_method_of_the_paper(where, method):
    plan = planned(where, f"method={method}")
    assert 0.5 < plan.memory.device / (79.6 * GIB) < 1
    assert plan.cache["full_sequences"] > 100


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=qwen2_5_math_7b", "rollout.max_model_len=8192"], r"at most the model's context \(4096\), but is 8192"),
        (["rollout.max_new_tokens=3100"], r"longest_prompt \(1,024\) and rollout.max_new_tokens \(3,100\) make 4,124"),
        (["+evaluation.sets.aime24.max_new_tokens=3500"], r"max_new_tokens for aime24 \(3,500\) make 4,524"),
        (["rollout.max_new_tokens=600"], "assume.completion_tokens must be a mean"),
        (["learner.ranks=9"], r"learner.ranks must be at most assume.devices \(8\), but is 9"),
        (["learner.ranks=1025"], "learner.ranks must be 1 or more, and few enough"),
        (["assume.engines=9"], r"assume.engines must be at most assume.devices \(8\), but is 9"),
        (["learner.batch_size=1020"], "learner.batch_size must be a positive multiple"),
        (["learner.micro_batch_tokens=257536"], r"has 79.6 .* parts: activations of the learner 164"),
        (["rollout.kv_cache_gib=99"], "117.2 GiB, .*: kv cache of the engine 99.0, weights of the engine 14.2, ov"),
        (["rollout.kv_cache_gib=0.2"], r"one sequence of rollout.max_model_len \(4,096 tokens, 0.22 GiB\), but is 0.2"),
        (["learner.compute_dtype=float16"], "learner.compute_dtype must be one of float32, bfloat16"),
        (["~assume.peak_tflops.bfloat16"], "learner.compute_dtype must be named in assume.peak_tflops"),
        (["assume.utilisation=0"], "assume.utilisation must be above 0"),
        (["assume.completion_tokens=8"], "assume.completion_tokens must be 9 or more"),
        (["benchmark=words", "evaluation.final_problems=null"], "words1 is generated and has no end"),
        (["benchmark=local"], "how many problems local has"),
    ],
)
def test_what_cannot_fit_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=said) as caught:
        planned(*overrides)
    assert "\n" not in str(caught.value)


def test_continuations_are_generated_as_well():
    """Nine of each of ten states, half a completion long: 45 completions more for each."""
    alone, more = planned("method=grpo").methods["grpo"], planned("method=vineppo").methods["vineppo"]
    assert more["generation"] == pytest.approx(46 * alone["generation"])
    assert (
        planned("method=vineppo", "assume.continued_states=0").methods["vineppo"]["generation"] == alone["generation"]
    )
