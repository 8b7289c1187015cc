"""The arithmetic of a plan: against torch and transformers, against what the code does, against hand-computed numbers."""

import csv
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
)
from oar.method.importance import gradient as gradient_module
from oar.method.importance import perturbation as perturbation_module
from oar.method.probes import AnswerMeanProbe
from oar.plan import Architecture, Assumptions, importance_work, memory_of, plan_run
from oar.plan.importance import Lengths, Work, forward, is_known, recomputed, to_inputs
from oar.plan.memory import GIB
from oar.plan.run import update_work
from tests.models import credit_inputs, random_batch, tiny_model

ROOT = Path(__file__).parents[2]
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 96,
    "tie_word_embeddings": False,
    "max_position_embeddings": 256,
}
PLAN_KEYS = ("json", "methods", "architectures", "problems", "assume")
GRPO = {"grpo": build("it", {"_target_": "oar.method.importance.UniformImportance"})}


def small(**changes):
    """A random Qwen2, and its sizes as a plan has them."""
    config = Qwen2Config(**{**SMALL, **changes})
    return Qwen2ForCausalLM(config).eval(), Architecture.from_config(config.to_dict(), "config.json")


def composed(*overrides):
    """What conf/plan composes: a run's settings, the assumptions, all of it."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = compose("plan", list(overrides))
        OmegaConf.resolve(config)
        run = OmegaConf.masked_copy(config, [key for key in config if key not in PLAN_KEYS])
        run.model.path = "folder"
        return validated(run, TrainConfig), Assumptions(**config.assume), config


def planned(*overrides, estimators=GRPO):
    cfg, assume, config = composed(*overrides)
    model = Architecture(**config.architectures[config.model.name])
    return plan_run(cfg, model, assume, estimators, config.problems)


# --- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen2_5_7b", 7.62), ("qwen2_5_math_7b", 7.62), ("qwen2_5_1_5b", 1.54)]
)
def test_parameters_are_those_of_the_real_architecture(name, billions):
    """transformers builds the model without memory for it; the published counts are those of the model cards."""
    sizes = Architecture(**composed()[2].architectures[name])
    config = Qwen2Config(
        num_hidden_layers=sizes.layers,
        hidden_size=sizes.hidden,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        intermediate_size=sizes.intermediate,
        vocab_size=sizes.vocabulary,
        tie_word_embeddings=sizes.tied,
        max_position_embeddings=sizes.context,
    )
    assert Architecture.from_config(config.to_dict(), "config.json") == sizes
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert round(sizes.parameters / 1e9, 2) == billions


def test_bytes_of_a_token_are_those_of_a_real_cache():
    model, sizes = small()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(3, 20, dtype=torch.long), past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert sizes.kv_bytes(4) == held / (3 * 20)


def test_key_value_cache_of_the_paper_profile_by_hand():
    """28 layers x 4 heads x 128 x 2 (keys, values) x 2 bytes = 57,344 bytes; 4,096 of them are 0.21875 GiB."""
    memory = planned("profile=paper", "rollout.kv_cache_gib=7").memory
    assert memory.kv_token == 57_344
    assert memory.kv_sequences_full == 32  # 7 / 0.21875
    assert memory.kv_sequences_mean == 161  # 7 GiB / (57,344 x 810)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("intermediate", [64, 160])
def test_activations_are_what_autograd_saves(dtype, size, intermediate):
    """Of one block: two models of one block more and less, and every storage saved by the learner's own forward, once."""

    def saved(layers):
        model, _ = small(num_hidden_layers=layers, intermediate_size=intermediate)
        model = model.to(dtype)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage
            return tensor

        embeddings = model.get_input_embeddings()(torch.zeros(96, dtype=torch.long))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            saved.forward = run_forward(model, embeddings, Packing.of([96], embeddings.device))
        return sum(storage.nbytes() for storage in storages.values())

    sizes = small(intermediate_size=intermediate)[1]
    assert (saved(3) - saved(2)) / 96 == sizes.layer_activation_bytes(size)
    layer = saved.forward.layers[0]
    assert sizes.recorded_bytes(size) == (layer.query.nbytes + layer.key.nbytes + layer.value.nbytes) / 96


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_operations_are_those_that_torch_counts():
    """Unfused attention computes all pairs, the upper half included, so that torch's counter sees every product."""
    model, sizes = small()
    model.set_attn_implementation("eager")
    ids, length = torch.zeros(1, 32, dtype=torch.long), 32
    forward_only = Work(length, length**2, length)
    model.requires_grad_(False)
    assert counted(lambda: model(input_ids=ids)) == forward_only.flops(sizes)

    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    back, whole = forward_only + to_inputs(forward_only), forward_only * 3

    def forward_and_backward():
        model(inputs_embeds=embeddings).logits.sum().backward()

    assert counted(forward_and_backward) == back.flops(sizes)  # no weight asks for a gradient
    model.requires_grad_(True)
    assert counted(forward_and_backward) == whole.flops(sizes)


def test_operations_of_an_update_by_hand():
    cfg, assume, _ = composed("learner.batch_size=16", "learner.num_generations=2")
    assume.prompt_tokens, assume.completion_tokens, assume.contributing_share = 4, 6, 0.5
    once = Work(10, 55, 6)  # 10 tokens: 1 + 2 + ... + 10 pairs
    once_more = Work(read=6)  # the backward computes the logits again
    assert update_work(cfg, assume) == (once * 3 + once_more) * 8 + once * 8
    cfg.learner.updates_per_rollout = 2  # all are scored first
    assert update_work(cfg, assume) == (once * 3 + once_more) * 8 + once * 16
    cfg.learner.kl_coef = 0.1  # all have a gradient, and the reference runs
    assert update_work(cfg, assume) == (once * 3 + once_more) * 16 + once * 32
    cfg.learner.activation_checkpointing = True  # blocks once more as well
    assert update_work(cfg, assume) == (once * 4) * 16 + once * 32


# --- credit signals ----------------------------------------------------------------------------------------------

ESTIMATORS = [
    PerturbationImportance(),
    PerturbationImportance(window=0),
    PerturbationImportance(window=3),
    PerturbationImportance(window=0, routes=2),
    PerturbationImportance(window=2, routes=50),
    GradientImportance(noise_draws=3),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
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
    inputs = credit_inputs(batch, AnswerMeanProbe())
    for row in range(len(batch)):
        ran.clear()
        estimator(inputs.rows(torch.tensor([row])))
        lengths = Lengths(
            int(batch.prompt_lengths[row]),
            int(batch.reasoning_mask[row].sum()),
            int(batch.marker_mask[row].sum()),
            int(batch.answer_mask[row].sum()),
        )
        forwards = 2 if isinstance(estimator, GradientImportance) else 1  # and its backward, which counts as one
        work = importance_work(estimator, lengths, checkpointing=False, half_precision=False)
        assert work.tokens == pytest.approx(forwards * sum(ran))
        if isinstance(estimator, GradientImportance):
            ran.clear()
            estimator(credit_inputs(batch, AnswerMeanProbe(), model=tiny_model().bfloat16()).rows(torch.tensor([row])))
            half = importance_work(estimator, lengths, checkpointing=False, half_precision=True)
            assert half.tokens == 1.5 * sum(ran)  # two forwards, and the backward of one


def test_work_of_signals_by_hand():
    """Prompt 5, reasoning 10, marker 2, answer 3: the tail is 4 positions, 19 are shown."""
    lengths = Lengths(5, 10, 2, 3)

    def work(estimator, checkpointing=False, half_precision=False):
        return importance_work(estimator, lengths, checkpointing=checkpointing, half_precision=half_precision)

    assert work(EntropyImportance()) == Work()
    assert work(PerturbationImportance()) == Work(55 + 40, 95 * 19, 30)
    assert work(InvertedImportance(PerturbationImportance())) == work(PerturbationImportance())
    # Two positions for nine of the tokens, one for the last: 19, and a tail each; half of 190 + 190 pairs for the routes.
    assert work(PerturbationImportance(window=0, routes=1)) == Work(59, 59 * 19 + 190, 30)
    assert work(GradientNormImportance()) == Work(19, 2 * 190, 3)
    assert work(GradientNormImportance(), checkpointing=True) == Work(38, 3 * 190, 3)
    assert work(GradientImportance()) == Work(28, 3 * 14 * 19, 6)
    assert work(GradientImportance(), checkpointing=True) == Work(42, 4 * 14 * 19, 6)
    # Beside the clean one, once more: whose logits and blocks have no backward, but whose attention is in that of both.
    assert work(GradientImportance(), half_precision=True) == Work(42, 6 * 14 * 19, 9)
    assert work(GradientImportance(), checkpointing=True, half_precision=True) == Work(70, 8 * 14 * 19, 9)
    assert work(PerturbationImportance(budget=4)) == Work(19 + 38, 380 + 38 * 19, 3 + 12)
    assert (
        recomputed(PerturbationImportance(window=99), lengths) == recomputed(PerturbationImportance(), lengths) == 9.5
    )


def test_an_estimator_of_somebody_else_says_what_it_costs_or_counts_as_nothing():
    class Mine:
        def __call__(self, inputs):
            return inputs.batch.reasoning_mask.float()

    class Costly(Mine):
        def work(self, lengths):
            return Work(tokens=2 * lengths.shown)

    lengths, how = Lengths(5, 10, 2, 3), {"checkpointing": False, "half_precision": False}
    assert importance_work(Mine(), lengths, **how) == Work()
    assert importance_work(Costly(), lengths, **how) == Work(tokens=38)
    assert importance_work(ShuffledImportance(Costly()), lengths, **how) == Work(tokens=38)
    assert [is_known(one) for one in (Mine(), Costly(), ShuffledImportance(Mine()))] == [False, True, False]


def test_steps_cost_what_was_measured():
    """The embedded assumptions come from GRPO's seconds alone; what other methods cost beside it is foretold by the plan."""
    with (ROOT / "results" / "bench_importance" / "bench_importance.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "steps"]
    measured = {row["method"]: float(row["value"]) for row in rows if row["metric"] == "step_ratio"}
    names = {
        "oar_g": "oar_g",
        "oar_gn": "oar_gn",
        "oar_p": "oar_p",
        "oar_p_window": "window8",
        "oar_p_routes": "routes4",
    }
    estimators = {name: build("it", composed(f"method={name}")[0].method.estimator) for name in names} | GRPO
    cfg, assume, _ = composed()
    sizes = Architecture(3, 128, 4, 2, 256, 113, False, 1024)
    methods = plan_run(cfg, sizes, assume, estimators, {}).methods
    for name, in_bench in names.items():
        assert methods[name].step / methods["grpo"].step == pytest.approx(measured[in_bench], rel=0.25)


# --- the run -----------------------------------------------------------------------------------------------------


def test_batches_and_storage_of_the_paper_profile_by_hand():
    plan = planned("profile=paper", "learner.ranks=4", "learner.updates_per_rollout=2", "learner.steps=10")
    cut = plan.batches
    assert (cut.prompts, cut.completions, cut.updates, cut.completions_of_run) == (128, 1024, 20, 10_240)
    assert cut.micro_batches == 26  # 512 completions an update, five of 810 tokens at a time, on four ranks
    assert cut.epochs == 1280 / 5584
    assert plan.tokens["completions"] == 716_800
    assert plan.tokens["completions_at_most"] == 3_072_000
    assert plan.storage["sync"] == 2 * 7_615_616_512  # in model.dtype, bfloat16
    assert plan.storage["syncs"] == 11 * plan.storage["sync"]
    assert plan.storage["checkpoints"] == 3 * 3 * 4 * 7_615_616_512  # the last two and the best, float32
    assert (
        planned("profile=paper", "model.dtype=float32", "rollout.kv_cache_gib=32").storage["sync"]
        == 2 * plan.storage["sync"]
    )
    # Two points (before step 1 and step 10) of 30 problems a set; k is 4, 4, 32, 32, 32, and a greedy one each.
    seen = plan.evaluations
    assert (seen["points"], seen["samples_of_point"]) == (2, 150)
    assert seen["samples_at_end"] == 5 * (1319 + 500) + 33 * (30 + 30 + 40)
    assert seen["tokens"] == 700 * (300 + seen["samples_at_end"])


def test_memory_by_hand():
    """16 bytes a parameter on one rank in float32; on four a quarter of it, and all weights in bfloat16."""
    cfg, assume, _ = composed()
    sizes = Architecture(2, 64, 4, 2, 160, 96, False, 256)
    alone = memory_of(cfg, sizes, assume, GRPO["grpo"]).learner
    assert alone["weights"] + alone["gradients"] + alone["optimizer"] == 16 * sizes.parameters
    assert "gathered_weights" not in alone
    tokens = 2048  # more than the longest prompt and completion have
    assert alone["activations"] == tokens * 2 * sizes.layer_activation_bytes(4)
    assert alone["logits"] == (12 + 4) * 2048 * 96  # 96 words: one block, and kept as a whole
    cfg.learner.micro_batch_tokens = 1  # one completion at least
    assert memory_of(cfg, sizes, assume, GRPO["grpo"]).learner["logits"] == (12 + 4) * (assume.longest_prompt + 96) * 96
    cfg.learner.micro_batch_tokens = 2048

    assume.devices = cfg.learner.ranks = 4
    cfg.learner.compute_dtype, cfg.learner.activation_checkpointing = "bfloat16", True
    sharded = memory_of(cfg, sizes, assume, GRPO["grpo"])
    assert sharded.shared  # four ranks and an engine on four devices
    assert sharded.device == sum(sharded.learner.values()) + sum(sharded.engine.values())
    assert sharded.learner["weights"] == sizes.parameters
    assert sharded.learner["gathered_weights"] == 2 * sizes.parameters
    assert sharded.learner["summed_gradients"] == 6 * 2 * 96 * 64
    block, inputs, recorded = sizes.layer_activation_bytes(2), 2 * 64, 2 * (64 + 2 * 32)
    assert sharded.learner["activations"] == tokens * (block + 2 * (inputs + recorded))
    assert sharded.learner["logits"] == (10 + 4) * 2048 * 96
    wide = Architecture(2, 64, 4, 2, 160, 2**20, False, 256)
    logits = memory_of(cfg, wide, assume, GRPO["grpo"]).learner["logits"]
    assert logits == 10 * 2**26 + 4 * 2**25  # one block and what is kept, however many tokens
    assert "reference" not in sharded.learner
    cfg.learner.kl_coef = 0.1
    assert memory_of(cfg, sizes, assume, GRPO["grpo"]).learner["reference"] == 2 * sizes.parameters
    assume.devices = 5
    apart = memory_of(cfg, sizes, assume, GRPO["grpo"])
    assert apart.device == max(sum(apart.learner.values()), sum(apart.engine.values()))


def test_memory_of_signals_by_hand():
    cfg, assume, _ = composed("learner.micro_batch_tokens=400", "rollout.max_new_tokens=52")
    sizes = Architecture(2, 64, 4, 2, 160, 96, False, 256)
    longest = assume.longest_prompt + 52

    def held(estimator):
        return memory_of(cfg, sizes, assume, estimator).learner["credit_signal"]

    assert held(GRPO["grpo"]) == held(GradientNormImportance()) == 0
    # Keys once more, copied block by block, and what autograd keeps of the completions: all that a micro-batch has.
    assert held(GradientImportance()) == 400 * (2 * sizes.kv_bytes(4) + 2 * sizes.layer_activation_bytes(4))
    # At most 100 tokens, but for a completion that has more.
    few = GradientImportance(max_tokens_per_forward=100)
    assert held(few) == longest * 2 * sizes.kv_bytes(4) + 100 * 2 * sizes.layer_activation_bytes(4)
    one = GradientImportance(max_tokens_per_forward=1)
    assert held(one) == longest * 2 * sizes.kv_bytes(4) + 52 * 2 * sizes.layer_activation_bytes(4)
    cfg.learner.activation_checkpointing = True  # one block, and the inputs of all
    block = longest * sizes.kv_bytes(4) / 2 + 52 * sizes.layer_activation_bytes(4)
    assert held(one) == longest * sizes.kv_bytes(4) + block + 52 * 2 * 64 * 4
    cfg.learner.compute_dtype = "bfloat16"  # two side by side in float32
    assert held(one) == longest * sizes.kv_bytes(4) + 2 * (block + 52 * 2 * 64 * 4)
    cfg.learner.compute_dtype, cfg.learner.activation_checkpointing = "float32", False
    # The token and a tail of 2: 25 counterfactuals in a forward of 75 tokens; the logits of two answer positions twice, and
    # four numbers more for each of 96 words, all float32.
    window = PerturbationImportance(window=0, max_tokens_per_forward=75)
    assert held(window) == longest * sizes.kv_bytes(4) + 25 * 96 * (2 * 8 + 16)
    assert held(InvertedImportance(window)) == held(window)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_oar_g_holds_what_the_plan_says(dtype, checkpointing):
    """Roughly: attention's bias, the noise and a backward's own tensors come on top, and not all that is planned runs again."""
    cfg, assume, _ = composed(f"learner.compute_dtype={dtype}", f"learner.activation_checkpointing={checkpointing}")
    batch = random_batch(0, rows=2, longest=150).rows(torch.zeros(4, dtype=torch.long))
    assume.longest_prompt, cfg.rollout.max_new_tokens = int(batch.prompt_lengths[0]), int(batch.completion_lengths[0])
    cfg.learner.micro_batch_tokens = 4 * int((batch.prompt_lengths + batch.completion_lengths)[0])
    for estimator in (GradientImportance(max_tokens_per_forward=1), GradientImportance()):
        with peak_memory("cpu") as mark:
            model, sizes = small(num_hidden_layers=6, hidden_size=256, intermediate_size=640)
            inputs = credit_inputs(batch, AnswerMeanProbe(), model=model.to(getattr(torch, dtype)), keep_graph=True)
            before, _ = mark()
            with recomputed_layers(model, checkpointing):
                estimator(inputs)
            measured = mark()[1] - before
        foretold = memory_of(cfg, sizes, assume, estimator).learner["credit_signal"]
        assert 0.75 * measured < foretold < 1.5 * measured


def test_hours_by_hand():
    plan = planned("profile=paper", "assume.utilisation=0.5", "assume.price_per_device_hour=2", "learner.steps=100")
    time = plan.methods["grpo"]
    assert time.generation == pytest.approx(1024 * 700 / (4 * 3000))
    assert time.sync == pytest.approx(15.231233024 / 2)
    # About 8 operations for a parameter and token (checkpointing) but for the embeddings, and attention's few percent.
    rough = 8 * (7.6156e9 - 0.545e9) * 1024 * 810 / (4 * 989e12 * 0.5)
    assert time.update == pytest.approx(rough, rel=0.1)
    assert time.step == time.generation + time.update + time.sync
    assert time.hours == pytest.approx((100 * time.step) / 3600 + plan.evaluations["hours"])
    assert time.device_hours == 8 * time.hours
    assert time.price == 2 * time.device_hours


@pytest.mark.parametrize("profile", ["paper", "single_gpu"])
@pytest.mark.parametrize("method", ["grpo", "oar_g", "oar_p"])
def test_the_profiles_fit_with_every_method_of_the_paper(profile, method):
    cfg, assume, _ = composed(f"profile={profile}", f"method={method}")
    plan = planned(f"profile={profile}", f"method={method}", estimators={method: build("it", cfg.method.estimator)})
    assert 0.5 < plan.memory.device / (assume.memory_gib * GIB) < 1


def test_the_math_model_fits_the_same_lengths():
    assert planned("profile=paper", "model=qwen2_5_math_7b").memory.kv_sequences_full > 100


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["model=qwen2_5_math_7b", "rollout.max_model_len=8192"],
            "at most the model's context of 4,096 tokens, but is 8,192",
        ),
        (
            ["rollout.max_new_tokens=3100"],
            r"assume.longest_prompt \(1,024\) and rollout.max_new_tokens \(3,100\) make 4,124",
        ),
        (["+evaluation.sets.aime24.max_new_tokens=3500"], r"max_new_tokens for aime24 \(3,500\) make 4,524"),
        (["rollout.max_new_tokens=600"], "assume.completion_tokens, a mean"),
        (["learner.ranks=9"], r"learner.ranks must be at most assume.devices \(8\), but is 9"),
        (["learner.ranks=1025"], "learner.ranks must be 1 or more, and few enough"),
        (["assume.engines=9"], r"assume.engines must be at most assume.devices \(8\), but is 9"),
        (["learner.batch_size=1020"], "learner.batch_size must be a positive multiple"),
        (
            ["learner.micro_batch_tokens=257536"],
            r"must hold [\d.]+ GiB, but has 79.6 .* parts: activations of the learner 164",
        ),
        (
            ["rollout.kv_cache_gib=99"],
            "must hold 117.2 GiB, .* parts: kv cache of the engine 99.0, weights of the engine 14.2, ov",
        ),
        (["rollout.kv_cache_gib=0.2"], r"one sequence of rollout.max_model_len \(4,096 tokens, 0.22 GiB\), but is 0.2"),
        (["learner.compute_dtype=float16"], "learner.compute_dtype must be one of float32, bfloat16"),
        (["~assume.peak_tflops.bfloat16"], "assume.peak_tflops must name bfloat16"),
        (["assume.utilisation=0"], "assume.utilisation must be above 0"),
        (["assume.completion_tokens=8"], "assume.completion_tokens must be 9 or more"),
        (["benchmark=words", "evaluation.final_problems=null"], "words1 is generated and has no end"),
    ],
)
def test_what_cannot_fit_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=said) as caught:
        planned("profile=paper", *overrides)
    assert "\n" not in str(caught.value)


def test_a_benchmark_of_unknown_size_is_refused():
    with pytest.raises(ConfigError, match="how many problems local has"):
        planned("profile=paper", "benchmark=local")


def test_forward_meets_itself_and_what_is_before():
    assert forward(4, 2) == Work(4, 10, 2)
