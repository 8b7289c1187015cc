"""Everything that was measured, on one page of links: `python -m experiments.report` writes results/report.html."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from experiments.report.page import Section, report_html
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.files import write_text_atomic
from oar.common.provenance import ROOT, command, git_state
from oar.config import validated


@dataclass
class ReportConfig:
    """See conf/report.yaml."""

    results: str
    output: str
    sections: list[Section]

    def __post_init__(self) -> None:
        names = [name for section in self.sections for name in section.experiments]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"sections must name every folder once, but name {', '.join(twice)} more often.")


@entry
def main(config: DictConfig) -> None:
    """Read the results, write the page, say what is missing."""
    cfg = validated(config, ReportConfig)
    results, output = Path(cfg.results), Path(cfg.output)
    commit = git_state(ROOT)["git_commit"]
    made = f"Made by {command()} at commit {str(commit)[:9]}." if commit else f"Made by {command()}."
    report = report_html(results, output, cfg.sections, made)
    write_text_atomic(output, report.text)
    print("\n".join(report.notes))
    print(f"written to {output}: {len(report.text.encode()) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
