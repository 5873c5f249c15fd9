"""The table of bench/results/allreduce.json, which `python -m bench speed` follows."""

from typing import Any

from bench.units import duration, size_name


def markdown(report: dict[str, Any]) -> str:
    rows = [
        f"| {cell['ranks']} | {size_name(cell['bytes'])} | {cell['algorithm']} | {duration(cell['gloo_seconds'])} "
        f"| {duration(cell['ringwide_seconds'])} | **{cell['ratio']:.2f}x** "
        f"| {cell['ratio_quartiles'][0]:.2f} - {cell['ratio_quartiles'][1]:.2f} |"
        for cell in report["cells"]
    ]
    heading = "| ranks | size | algorithm | gloo | ringwide | gloo / ringwide | quartiles |"
    return "\n".join([heading, "| --: | --: | --- | --: | --: | --: | --- |", *rows])
