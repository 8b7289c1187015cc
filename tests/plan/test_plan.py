"""The arithmetic of a plan: against torch and transformers, against what the code does, against hand-computed numbers."""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from experiments.shared.peak_memory import peak_memory
from oar.common.errors import ConfigError
from oar.config import TrainConfig, build, validated
from oar.learner.sharding import recomputed_layers
from oar.method.forward.logprobs import run_forward
from oar.method.forward.packing import Packing
from oar.method.importance import (
    EntropyImportance,
    GradientImportance,
    GradientNormImportance,
    InvertedImportance,
    PerturbationImportance,
    ShuffledImportance,
    UniformImportance,
)
from oar.method.importance import gradient as gradient_module
from oar.method.importance import perturbation as perturbation_module
from oar.method.probes import AnswerMeanProbe
from oar.plan import Architecture, Assumptions, Work, importance_work, memory_of, plan_run
from oar.plan.memory import GIB
from oar.plan.work import Lengths, forward, is_known, recomputed, to_inputs, update_work
from tests.models import credit_inputs, random_batch, tiny_model

ROOT = Path(__file__).parents[2]
PLAN_KEYS = ("json", "methods", "architectures", "problems", "assume")
GRPO = UniformImportance()
LENGTHS = Lengths(5, 10, 2, 3)  # a tail of 4 positions, 19 are shown
SMALL = Architecture(2, 64, 4, 2, 160, 96, tied=False, context=256)


def random_model(sizes):
    return Qwen2ForCausalLM(Qwen2Config(**sizes.config())).eval()


def composed(*overrides):
    """What conf/plan composes: a run's settings, the assumptions, all of it."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = compose("plan", list(overrides))
        OmegaConf.resolve(config)
        run = OmegaConf.masked_copy(config, [key for key in config if key not in PLAN_KEYS])
        run.model.path = "folder"
        return validated(run, TrainConfig), Assumptions(**config.assume), config


def planned(*overrides):
    """The plan of the paper's profile, of its own method alone."""
    cfg, assume, config = composed("profile=paper", *overrides)
    model = Architecture(**config.architectures[config.model.name])
    estimators = {cfg.method.name: build("it", cfg.method.estimator)}
    return plan_run(cfg, model, assume, estimators, config.problems)


# --- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen2_5_7b", 7.62), ("qwen2_5_math_7b", 7.62), ("qwen2_5_1_5b", 1.54)]
)
def test_parameters_are_those_of_the_real_architecture(name, billions):
    """transformers builds the model without memory for it; the published counts are those of the model cards."""
    sizes = Architecture(**composed()[2].architectures[name])
    with torch.device("meta"):
        model = random_model(sizes)
    assert Architecture.from_config(model.config.to_dict(), "config.json") == sizes
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert round(sizes.parameters / 1e9, 2) == billions


def test_bytes_of_a_token_are_those_of_a_real_cache():
    model = random_model(SMALL)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(3, 20, dtype=torch.long), past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert SMALL.kv_bytes(4) == held / (3 * 20)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("intermediate", [64, 160])
def test_activations_are_what_autograd_saves(dtype, size, intermediate):
    """Of one block: two models of one block more and less, and every storage saved by the learner's own forward, once."""
    sizes = replace(SMALL, intermediate=intermediate)

    def saved(layers):
        model = random_model(replace(sizes, layers=layers)).to(dtype)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage
            return tensor

        embeddings = model.get_input_embeddings()(torch.zeros(96, dtype=torch.long))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found = run_forward(model, embeddings, Packing.of([96], embeddings.device))
        return sum(storage.nbytes() for storage in storages.values()), found.layers[0]

    (three, layer), (two, _) = saved(3), saved(2)
    assert (three - two) / 96 == sizes.layer_activation_bytes(size)
    assert sizes.recorded_bytes(size) == (layer.query.nbytes + layer.key.nbytes + layer.value.nbytes) / 96


def test_operations_are_those_that_torch_counts():
    """Unfused attention computes all pairs, the upper half included, so that torch's counter sees every product."""
    model, length = random_model(SMALL), 32
    model.set_attn_implementation("eager")
    ids = torch.zeros(1, length, dtype=torch.long)
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    forward_only = Work(length, length**2, length)

    def counted(run):
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    def forward_and_backward():
        model(inputs_embeds=embeddings).logits.sum().backward()

    model.requires_grad_(False)
    assert counted(lambda: model(input_ids=ids)) == forward_only.flops(SMALL)
    assert counted(forward_and_backward) == (forward_only + to_inputs(forward_only)).flops(SMALL)  # no weight asks
    model.requires_grad_(True)
    assert counted(forward_and_backward) == (forward_only * 3).flops(SMALL)


def test_operations_of_an_update_by_hand():
    cfg, assume, _ = composed("learner.batch_size=16", "learner.num_generations=2")
    assume.prompt_tokens, assume.completion_tokens, assume.contributing_share = 4, 6, 0.5
    once = forward(10, 6)
    assert once == Work(10, 55, 6)  # 10 tokens: 1 + 2 + ... + 10 pairs
    once_more = Work(read=6)  # the backward computes the logits again
    assert update_work(cfg, assume) == (once * 3 + once_more) * 8 + once * 8
    cfg.learner.updates_per_rollout = 2  # all are scored first
    assert update_work(cfg, assume) == (once * 3 + once_more) * 8 + once * 16
    cfg.learner.kl_coef = 0.1  # all have a gradient, and the reference runs
    assert update_work(cfg, assume) == (once * 3 + once_more) * 16 + once * 32
    cfg.learner.activation_checkpointing = True  # blocks once more as well
    assert update_work(cfg, assume) == (once * 4) * 16 + once * 32


# --- credit signals ----------------------------------------------------------------------------------------------


@cache
def default_learner():
    return composed()[0].learner


def work(estimator, lengths=LENGTHS, *, checkpointing=False, dtype="float32"):
    learner = replace(default_learner(), activation_checkpointing=checkpointing, compute_dtype=dtype)
    return importance_work(estimator, lengths, learner)


@pytest.mark.parametrize(
    "estimator",
    [
        PerturbationImportance(),
        PerturbationImportance(window=0),
        PerturbationImportance(window=3),
        PerturbationImportance(window=0, routes=2),
        PerturbationImportance(window=2, routes=50),
        GradientImportance(noise_draws=3),
    ],
    ids=str,
)
def test_tokens_run_again_are_those_the_estimator_runs(estimator, monkeypatch):
    """Completions one by one, and every position that is really recomputed is counted."""
    ran = []
    for module in (perturbation_module, gradient_module):
        real = module.recompute

        def counting(model, keys, job, real=real):
            ran.append(int(job.valid.sum()))
            return real(model, keys, job)

        monkeypatch.setattr(module, "recompute", counting)
    batch = random_batch(3, rows=5)
    # Beside the counted forwards OAR-G's backward counts as one; in half precision there are two forwards and it.
    passes = {"float32": 2, "bfloat16": 1.5} if isinstance(estimator, GradientImportance) else {"float32": 1}
    for dtype, factor in passes.items():
        inputs = credit_inputs(batch, AnswerMeanProbe(), model=tiny_model().to(getattr(torch, dtype)))
        for row in range(len(batch)):
            ran.clear()
            estimator(inputs.rows(torch.tensor([row])))
            masks = batch.reasoning_mask, batch.marker_mask, batch.answer_mask
            lengths = Lengths(int(batch.prompt_lengths[row]), *(int(mask[row].sum()) for mask in masks))
            assert work(estimator, lengths, dtype=dtype).tokens == pytest.approx(factor * sum(ran))


PAIRS = 14 * 19  # OAR-G's: reasoning and tail meet all that is shown


@pytest.mark.parametrize(
    ("estimator", "settings", "expected"),
    [
        (EntropyImportance(), {}, Work()),
        (PerturbationImportance(), {}, Work(55 + 40, 95 * 19, 30)),
        (InvertedImportance(PerturbationImportance()), {}, Work(95, 95 * 19, 30)),
        # Two positions for nine of the tokens, one for the last: 19, and a tail each; half of 190 + 190 pairs for the routes.
        (PerturbationImportance(window=0, routes=1), {}, Work(59, 59 * 19 + 190, 30)),
        (PerturbationImportance(budget=4), {}, Work(19 + 38, 380 + 38 * 19, 3 + 12)),
        (GradientNormImportance(), {}, Work(19, 2 * 190, 3)),
        (GradientNormImportance(), {"checkpointing": True}, Work(38, 3 * 190, 3)),
        (GradientImportance(), {}, Work(28, 3 * PAIRS, 6)),
        (GradientImportance(), {"checkpointing": True}, Work(42, 4 * PAIRS, 6)),
        # Beside the clean one, once more: whose logits and blocks have no backward, but whose attention is in that of both.
        (GradientImportance(), {"dtype": "bfloat16"}, Work(42, 6 * PAIRS, 9)),
        (GradientImportance(), {"dtype": "bfloat16", "checkpointing": True}, Work(70, 8 * PAIRS, 9)),
    ],
)
def test_work_of_signals_by_hand(estimator, settings, expected):
    assert work(estimator, **settings) == expected


def test_a_window_beyond_the_reasoning_is_no_window():
    assert (
        recomputed(PerturbationImportance(window=99), LENGTHS) == recomputed(PerturbationImportance(), LENGTHS) == 9.5
    )


def test_an_estimator_of_somebody_else_says_what_it_costs_or_counts_as_nothing():
    class Mine:
        def __call__(self, inputs):
            return inputs.batch.reasoning_mask.float()

    class Costly(Mine):
        def work(self, lengths):
            return Work(tokens=2 * lengths.shown)

    assert work(Mine()) == Work()
    assert work(Costly()) == work(ShuffledImportance(Costly())) == Work(tokens=38)
    assert [is_known(one) for one in (Mine(), Costly(), ShuffledImportance(Mine()))] == [False, True, False]


def test_steps_cost_what_was_measured():
    """The embedded assumptions come from GRPO's seconds alone; what other methods cost beside it is foretold by the plan."""
    with (ROOT / "results" / "importance-cost" / "bench.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "steps" and row["metric"] == "step_ratio"]
    measured = {row["method"]: float(row["value"]) for row in rows}
    in_bench = {"oar_p_window": "window8", "oar_p_routes": "routes4"}
    names = ("oar_g", "oar_gn", "oar_p", *in_bench)
    estimators = {name: build("it", composed(f"method={name}")[0].method.estimator) for name in names}
    cfg, assume, _ = composed()
    sizes = Architecture(3, 128, 4, 2, 256, 113, False, 1024)
    methods = plan_run(cfg, sizes, assume, {**estimators, "grpo": GRPO}, {}).methods
    for name in names:
        assert methods[name]["step_of_grpo"] == pytest.approx(measured[in_bench.get(name, name)], rel=0.25)


# --- memory ------------------------------------------------------------------------------------------------------


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


# --- the run -----------------------------------------------------------------------------------------------------


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
