"""The page: one HTML file that needs nothing but itself."""

from collections.abc import Sequence

from ringwide.experiment.report.contents import Contents
from ringwide.experiment.report.drawing import Plot

TEMPLATE = "page.html.j2"


def html(contents: Contents, plots: Sequence[Plot]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("ringwide.experiment.report", "templates")
    environment = Environment(
        autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(TEMPLATE).render(contents=contents, plots=plots)
