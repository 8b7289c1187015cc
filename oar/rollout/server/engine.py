"""A vLLM server in a process of its own: start, wait until it is healthy, stop without leaving anything behind."""

import math
import os
import re
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import torch
from transformers import AutoConfig

from oar.common.errors import ConfigError, DataError, EngineError
from oar.common.processes import ChildProcess
from oar.common.provenance import versions
from oar.model.load import weights_size
from oar.rollout.access import TOKEN_VARIABLE, is_loopback, new_token
from oar.rollout.client.http import BUSY_S, HttpServer
from oar.rollout.client.vllm import EngineClient
from oar.rollout.release import refuse_other_release
from oar.rollout.sync import SERVER_ARGUMENTS

_POLL_S = 0.25
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
_EXCEPTION = re.compile(r"(?:^|\s)([\w.]*(?:Error|Exception): .*)$")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the server is started; the keys of conf/rollout of the same names, and `model_path` and `dtype` of the model."""

    model_path: Path
    log_path: Path
    dtype: str = "float32"
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    max_model_len: int = 1024  # tokens, prompt and completion together
    max_num_seqs: int = 256
    kv_cache_gib: float = 1.0  # on CPU vLLM takes whole GiB, so this is rounded up; of each GPU
    tensor_parallel: int = 1  # GPUs that the model is spread over
    gpus: tuple[str, ...] = ()  # which ones, as in CUDA_VISIBLE_DEVICES; (): as it is set for this process
    sync: str = "checkpoint"  # how weights will reach it (conf/sync)
    threads: int = 1  # OpenMP threads, bound to no core; more than one gives up bit-equal repetition (see EngineClient)
    startup_timeout_s: float = 300.0
    token: str | None = field(
        default=None, repr=False
    )  # asked of every request (see Guard); None, on loopback: a random one

    def command(self, port: int) -> list[str]:
        """The server's command line."""
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model_path), "--served-model-name", "policy"),
            *("--host", self.host, "--port", str(port)),
            *("--dtype", self.dtype, "--max-model-len", str(self.max_model_len)),
            # The sampled distribution's own logprobs; and no defaults from the model's generation_config.json (top_k, ...).
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            *("--max-num-seqs", str(self.max_num_seqs), "--uvicorn-log-level", "warning"),
            *("--load-format", "safetensors", "--middleware", "oar.rollout.server.guard.Guard"),
            "--enable-scale-out",  # the route of token ids
            *SERVER_ARGUMENTS[self.sync],
            *(self._gpu_arguments() if torch.cuda.is_available() else self._cpu_arguments()),
        ]

    def _gpu_arguments(self) -> list[str]:
        # The cache has the size it is told. The share of the GPU's memory is then no more than what must be free at the start,
        # and a learner that shares the GPU may hold the rest.
        cache = ["--kv-cache-memory-bytes", str(int(self.kv_cache_gib * 2**30)), "--gpu-memory-utilization", "0.05"]
        return [*cache, "--tensor-parallel-size", str(self.tensor_parallel)]

    def _cpu_arguments(self) -> list[str]:
        # vLLM 0.32 on CPU dies of a request with a seed when a prompt is prefilled in parts; so it never is. And nothing is
        # compiled: that costs 20 s at the first request and needs a compiler. One process computes and schedules ("uni"): a
        # worker of its own waits by spinning, in every token and for a second after the last, and so does its scheduler.
        # Measured for 128 completions on two cores: 0.9 s of CPU time against 2.5, the same tokens.
        batched = str(max(65536, self.max_model_len))
        arguments = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", batched, "--enforce-eager"]
        # Completions of one prompt share its whole blocks, of which the default of 128 tokens leaves hardly any.
        return [*arguments, "--block-size", "32", "--distributed-executor-backend", "uni"]

    def environment(self, token: str) -> dict[str, str | None]:
        """How the server's environment differs from this process's: the engine needs no secret but the `token` it asks for."""
        environment: dict[str, str | None] = {name: None for name in os.environ if _SECRET.search(name)}
        environment |= {
            TOKEN_VARIABLE: token,
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that sync weights; this is why others may not come in
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",  # nothing that comes over a socket is unpickled
            "VLLM_CPU_KVCACHE_SPACE": str(math.ceil(self.kv_cache_gib)),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self.threads),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if self.sync == "nccl" and is_loopback(self.host):
            environment["NCCL_SOCKET_IFNAME"] = os.environ.get(
                "NCCL_SOCKET_IFNAME", "lo"
            )  # no port for others here either
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        if not torch.cuda.is_available():
            environment["TORCHDYNAMO_DISABLE"] = "1"
            # Or vLLM puts a worker process in place of "uni" on CPU, to set OpenMP's variables there; here they are set above.
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        return environment


class VllmEngine:
    """A running server: `with VllmEngine(options) as engine: EngineClient(engine.url, timeout_s, engine.token)`.

    Entering (or `start`) raises ConfigError or DataError for what can be seen beforehand: another vLLM, a port in use, a host
    that others can reach without a token, a model that is not there, is not in safetensors or cannot be synced; and EngineError
    when the server dies or is not healthy in time.
    """

    def __init__(self, options: EngineOptions, token: str | None = None) -> None:
        self._options = options
        self.token = token or options.token or new_token()  # what whoever speaks to the server has to show
        self._process: ChildProcess | None = None
        self._port = options.port

    @property
    def url(self) -> str:
        """Where the server listens, once it has been started."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._options.host, self._options.host)
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    def start(self) -> None:
        """Start the server and return when it is healthy."""
        self.launch()
        healthy = False
        try:
            self.wait_until_healthy()
            healthy = True
        finally:
            if not healthy:
                self.stop()

    def launch(self) -> None:
        """Create the server's process; after a stop on the same port again. The log of one before is kept beside."""
        refuse_other_release(versions()["vllm"], "in this environment (`make setup` installs it)")
        _check_host(self._options.host, self._options.token)
        _check_model(self._options.model_path, self._options.max_model_len)
        self._port = _reserve_port(self._options.host, self._port)
        log = self._options.log_path
        if log.exists():
            log.rename(
                log.with_name(f"{log.stem}.{len(list(log.parent.glob(f'{log.stem}.*{log.suffix}'))) + 1}{log.suffix}")
            )
        self._process = ChildProcess(
            self._options.command(self._port), env=self._options.environment(self.token), log_path=log
        )

    def wait_until_healthy(self) -> None:
        """Return when the launched server answers. Raises EngineError when it dies or takes too long."""
        process = self._process
        assert process is not None
        client = EngineClient(self.url, timeout_s=5.0, token=self.token)
        deadline = time.monotonic() + self._options.startup_timeout_s
        while (code := process.poll()) is None:
            if client.health():
                return
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the vLLM server was not healthy after {self._options.startup_timeout_s:g} s"
                    f" (rollout.startup_timeout_s); its log is {self._options.log_path}."
                )
            time.sleep(_POLL_S)
        raise EngineError(
            f"the vLLM server ended with exit code {code} while starting; {self._options.log_path} says:"
            f" {telling_lines(process.tail(400))}"
        )

    def poll(self) -> int | None:
        """The server's exit code, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def is_sick(self) -> bool:
        """Whether the server's process lives, but its core is dead or nobody listens any more.

        vLLM's server outlives its core for as long as a request is open, and never answers a /collective_rpc.
        """
        return self.poll() is None and HttpServer(self.url, BUSY_S, self.token).refuses("/health")

    def tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        return "" if self._process is None else self._process.tail(lines)

    def stop(self) -> None:
        """End the server and all that it started. Idempotent."""
        if self._process is not None:
            self._process.stop()

    def __enter__(self) -> "VllmEngine":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def telling_lines(log: str, count: int = 3) -> str:
    """What a log most likely has to say: its first exceptions, each with the indented line after it, or else its last lines."""
    lines = [line for line in log.splitlines() if line.strip()]
    found = []
    for at, line in enumerate(lines):
        if match := _EXCEPTION.search(line):
            more = [after.strip() for after in lines[at + 1 : at + 2] if after.startswith(" ")]
            found.append(" ".join([match.group(1), *more]))
    told = list(dict.fromkeys(found))[:count] or [line.strip() for line in lines[-count:]]
    return " | ".join(told)[:1000]


def _check_host(host: str, token: str | None) -> None:
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"rollout.host must be a loopback address, but is {host!r}: whoever reaches the engine owns it; set a token in"
            f" {TOKEN_VARIABLE} or rollout.token_file to let others reach it."
        )


def _check_model(path: Path, max_model_len: int) -> None:
    """What the server would only say after a minute."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"model.path must be a folder with a Hugging Face model, but {path} has no config.json.")
    weights_size(path, "float32")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} (model.path) must hold a model, but: {str(error).splitlines()[0]}") from error
    context = getattr(config, "max_position_embeddings", max_model_len)
    rope = getattr(config, "rope_parameters", None) or {}
    if max_model_len > context and rope.get("rope_type", "default") == "default":  # other types stretch it
        raise ConfigError(
            f"rollout.max_model_len must be at most {context}, the context of the model in {path}, but is {max_model_len}."
        )
    if config.tie_word_embeddings and not torch.cuda.is_available():
        # vLLM's CPU logits layer keeps its packed copy of tied embeddings over a reload, without a word.
        raise ConfigError(
            f"the model in {path} (model.path) ties its embeddings, and vLLM on CPU does not refresh those at a weight sync;"
            " use a model with tie_word_embeddings=false, or a GPU."
        )


def _reserve_port(host: str, port: int) -> int:
    """The port itself if it is free, or a free one for 0."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} is not free ({error.strerror}); choose another rollout.port, or 0 for any free one."
            ) from error
        return int(probe.getsockname()[1])
