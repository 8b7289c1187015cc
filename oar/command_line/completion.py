"""What TAB offers, for experiments/completion.bash: `COMP_LINE='python x.py method=oa' python -m
oar.command_line.completion train`.

Hydra's own script of bash completes `python FILE` only, and would import the whole program for each key.
"""

import sys

from hydra import initialize_config_dir
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.global_hydra import GlobalHydra

from oar.command_line.overrides import CONF

if __name__ == "__main__":
    with initialize_config_dir(str(CONF), version_base=None):
        BashCompletion(GlobalHydra.instance().config_loader()).query(sys.argv[1])
