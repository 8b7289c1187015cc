"""What is known of a reward model's folder beyond its weights."""

import json
from pathlib import Path
from typing import Any

RECORD = "taught.json"  # of one that `make reward-model` taught: how it was made, and how good it is


def how_good(folder: str) -> dict[str, Any]:
    """What was told of it on held-out problems when it was taught, empty where it was not taught here."""
    file = Path(folder) / RECORD
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return {name: value for name, value in found.items() if name != "provenance"}
