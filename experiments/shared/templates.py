"""Pages from jinja templates, with everything escaped that is not marked safe."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def rendered(template: Path, **values: object) -> str:
    """The template filled with `values`; a name that none of them has is an error."""
    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template.name).render(**values)
