"""Stands in for a training run where drills are tested: `python toy_run.py flaw=FLAW [resume=auto] output_dir='FOLDER'`.

Ten steps, a checkpoint every four. After step 6 it waits for the file `break`, tells so and ends, with whatever flaw it was
given; the run that is called `undisturbed` goes on.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

STEPS = 10
NOTICES_S = 0.05


def main() -> None:
    """Run to the end, or to the break."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    flaw, folder, resumed = given["flaw"], Path(given["output_dir"].strip("'")), given.get("resume") == "auto"
    metrics, checkpoints = folder / "metrics.jsonl", folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    start = max((int(path.name[5:]) for path in checkpoints.glob("step_*")), default=0) if resumed else 0
    start = 0 if flaw == "forgets" else start
    lines = metrics.read_text().splitlines(keepends=True)[: start + 1] if resumed else ['{"step": 0}\n']
    metrics.write_text("".join(lines))
    for step in range(start + 1, STEPS + 1):
        time.sleep(0.02)
        value = -1 if flaw == "differs" and resumed else step
        if flaw == "fails" and resumed:
            sys.exit(3)
        with metrics.open("a") as file:
            file.write(json.dumps({"step": value}) + "\n")
        print(f"step {step:>4}/{STEPS}", flush=True)
        if step % 4 == 0:
            (checkpoints / f"step_{step:06d}").mkdir(exist_ok=True)
            (checkpoints / f"step_{step:06d}" / "state.json").write_text(json.dumps({"files": {}}))
        if step == 6 and not resumed and folder.name != "undisturbed":
            while not (folder / "break").exists():
                time.sleep(0.01)
            break_down(flaw, folder)
    (folder / "evaluation.csv").write_text("a\n")


def break_down(flaw: str, folder: Path) -> None:
    """End with exit code 2 and a sentence."""
    if flaw == "orphan":
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if flaw == "hidden_orphan":  # without the mark, but in the run's session
        subprocess.Popen(["sleep", "600"], env={}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if flaw == "loses":
        shutil.rmtree(folder / "checkpoints" / "step_000004")
    if flaw == "damages":
        (folder / "checkpoints" / "step_000004" / "state.json").write_text("{")
    if flaw == "invents":
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"reward": 0}\n')
    time.sleep(NOTICES_S)
    if flaw != "silent":
        print("error: it broke.", file=sys.stderr, flush=True)
    sys.exit(1 if flaw == "crashes" else 2)


if __name__ == "__main__":
    main()
