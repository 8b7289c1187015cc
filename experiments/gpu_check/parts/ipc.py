"""Weight sync `ipc` without an engine: another process reads this one's GPU memory through handles that travel as JSON."""

import json
import subprocess
import sys

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from experiments.gpu_check.device import DEVICE, FULL, GIB
from experiments.gpu_check.findings import ROOT, Findings, NotRunError
from oar.rollout.sync.ipc_handles import handle_from_json, handle_to_json

LARGEST = 152064 * 3584 * 2  # bytes: embeddings of Qwen2.5-7B in bfloat16, the largest weight
CHUNKS = 3
SLACK = 2**26  # bytes that may stay behind: what CUDA itself keeps


def run(findings: Findings) -> None:
    """One buffer, filled three times; the reader compares every byte."""
    if not FULL:
        raise NotRunError("it needs CUDA IPC, and there is no GPU")
    torch.cuda.synchronize()
    buffer = torch.empty(LARGEST, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    free_with_buffer, _ = torch.cuda.mem_get_info()
    reader = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import read; read()"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    try:
        for chunk in range(CHUNKS):
            _fill(buffer, chunk)
            torch.cuda.synchronize()
            _, arguments = reduce_tensor(buffer)
            request = {"chunk": chunk, "handle": handle_to_json(arguments)}
            reader.stdin.write(json.dumps(request) + "\n")
            reader.stdin.flush()
            answer = reader.stdout.readline().strip()
            findings.true(f"chunk {chunk}: every byte arrived", answer == "equal", f"equal, came {answer!r}")
        reader.stdin.close()
        findings.at_most("the reader's exit code", abs(reader.wait(60)), 0)
    finally:
        reader.kill()
    del buffer, arguments
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    freed = torch.cuda.mem_get_info()[0] - free_with_buffer
    findings.note("memory that was freed", freed / GIB, "GiB")
    findings.true(
        "the buffer's memory is free again", freed >= LARGEST - SLACK, f">= {(LARGEST - SLACK) / GIB:.2f} GiB"
    )


def read() -> None:
    """The other process: a line of JSON for each chunk, and a word for it."""
    expected = torch.empty(LARGEST, dtype=torch.uint8, device=DEVICE)
    for line in sys.stdin:
        request = json.loads(line)
        arguments = list(handle_from_json(request["handle"]))
        arguments[6] = torch.cuda.current_device()
        seen = rebuild_cuda_tensor(*arguments)
        _fill(expected, request["chunk"])
        print("equal" if torch.equal(seen, expected) else "different", flush=True)
        del seen
        torch.cuda.ipc_collect()


def _fill(buffer: torch.Tensor, chunk: int) -> None:
    """Bytes that both processes can make."""
    torch.manual_seed(chunk)
    buffer.random_(0, 256)
