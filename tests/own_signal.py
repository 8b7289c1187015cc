"""The worked example of docs/OWN_SIGNAL.md, as files."""

import re
from pathlib import Path

import yaml

PAGE = Path(__file__).parents[1] / "docs" / "OWN_SIGNAL.md"


def write_own_signal(folder: Path) -> Path:
    """Writes my_signal.py and my_conf/method/NAME.yaml into `folder`; returns my_conf."""
    python, method = (
        re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0] for kind in ("python", "yaml")
    )
    (folder / "my_signal.py").write_text(python)
    file = folder / "my_conf" / "method" / f"{yaml.safe_load(method)['name']}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(method)
    return folder / "my_conf"
