"""Outline of an experiment, printed by `run --dry-run`: the whole configuration with its defaults, and the plan.

The plan is written as comments, so that the whole text is again an experiment file.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ByteSize, ValidationError

from ringwide.config.yaml_text import as_yaml, written_size
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.sweep import Variant
from ringwide.training.progress import TrainingPlan

Facts = dict[str, str]


def outline(variants: Sequence[Variant]) -> str:
    with _importable(variants[0].source):
        facts = _all_facts(variants)
    lines = ["plan", *_columns(_shared(facts) | _in_all(variants))]
    if len(variants) > 1:
        lines += ["", "variants, one after the other"]
        lines += _columns({variant.slug: _differing(facts, index) for index, variant in enumerate(variants)})
    comments = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"{as_yaml(resolved(variants))}\n{comments}"


@contextmanager
def _importable(experiment: Path) -> Iterator[None]:
    """Put the experiment's and the working directory on sys.path, as nodes do, to import the user's model and data."""
    before = sys.path[:]
    sys.path[:0] = [str(experiment.resolve().parent), str(Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before


def resolved(variants: Sequence[Variant]) -> dict[str, Any]:
    """Settings that all variants share, and the sweep they come from."""
    common, *others = [_written_out(variant.config) for variant in variants]
    for other in others:
        common = _in_both(common, other)
    sweep = {key: _values(key, variants) for key in variants[0].changes}
    return {key: value for key, value in common.items() if key != "sweep"} | ({"sweep": sweep} if sweep else {})


def _written_out(block: BaseModel) -> dict[str, Any]:
    """Settings with their defaults, except defaults that would be refused, such as keys of other models."""
    shown = {name: _plain(getattr(block, name)) for name in block.model_fields_set}
    for name in type(block).model_fields:
        with_default = shown | {name: _plain(getattr(block, name))}
        if name not in shown and _is_valid(type(block), with_default):
            shown = with_default
    return {name: shown[name] for name in type(block).model_fields if name in shown}


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return _written_out(value)
        case ByteSize():
            return written_size(value)
        case tuple():
            return [_plain(item) for item in value]
    return value


def _is_valid(model: type[BaseModel], data: dict[str, Any]) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def _in_both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both: dict[str, Any] = {}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            both[key] = _in_both(one[key], other[key])
        elif one[key] == other[key]:
            both[key] = one[key]
    return {key: both[key] for key in one if key in both}


def _values(key: str, variants: Sequence[Variant]) -> list[Any]:
    return list({repr(variant.changes[key]): variant.changes[key] for variant in variants}.values())


def plan_of(config: ExperimentConfig) -> TrainingPlan:
    """Plan that the nodes will report, made without starting them."""
    from ringwide.training.data_sources import load_data
    from ringwide.training.models import build_model
    from ringwide.training.optimizers import flatten
    from ringwide.training.samples import Course

    data = load_data(config.training)
    buckets = flatten(build_model(config.training, data), config.training.bucket_bytes)
    course = Course(config.training, samples=len(data.train), rank=0, size=config.nodes)
    return TrainingPlan(
        parameters=sum(bucket.parameters.numel() for bucket in buckets),
        gradient_bytes=sum(bucket.nbytes for bucket in buckets),
        buckets=len(buckets),
        overlapped=len(buckets) > 1 if config.training.overlap == "auto" else config.training.overlap,
        samples=len(data.train),
        test_samples=len(data.test),
        steps_per_epoch=course.steps_per_epoch,
        first_step=1,
        last_step=course.last_step,
        seconds=config.training.seconds,
    )


def _all_facts(variants: Sequence[Variant]) -> list[Facts]:
    plans: dict[str, TrainingPlan] = {}  # variants that differ only in their ring share a plan, which is slow to make
    facts = []
    for config in [variant.config for variant in variants]:
        key = f"{config.nodes} {config.training.model_dump_json()}"
        plans[key] = plans.get(key) or plan_of(config)
        facts.append(_facts(config, plans[key]))
    return facts


def _facts(config: ExperimentConfig, plan: TrainingPlan) -> Facts:
    each = config.training.batch_size * config.training.accumulate_batches
    return {
        "nodes": f"{config.nodes}",
        "parameters": f"{plan.parameters:,}, {plan.gradient_bytes:,} bytes of gradients",
        "buckets": f"{plan.buckets:,}, {'overlapped with' if plan.overlapped else 'sent after'} the backward pass",
        "samples": f"{plan.samples:,} to train on, {plan.test_samples:,} held out",
        "samples a step": f"{min(each * config.nodes, plan.samples):,}, {each:,} for each node",
        "steps an epoch": f"{plan.steps_per_epoch:,}",
        "steps": "as many as there is time for" if plan.last_step is None else f"{plan.last_step:,}",
        "seconds": "as many as it takes" if plan.seconds is None else f"at most {plan.seconds:g} of training",
    }


def _in_all(variants: Sequence[Variant]) -> Facts:
    config = variants[0].config
    directory = f"{config.report.directory}/{config.name}-DATE-TIME"
    facts = {"written to": directory}
    seconds = [variant.config.training.seconds for variant in variants]
    if len(variants) > 1:
        facts["variants"] = f"{len(variants):,}"
        if None not in seconds:
            facts["seconds in all"] = f"at most {sum(filter(None, seconds)):g} of training"
    return facts


def _shared(facts: Sequence[Facts]) -> Facts:
    return {name: fact for name, fact in facts[0].items() if all(other[name] == fact for other in facts)}


def _differing(facts: Sequence[Facts], index: int) -> str:
    shared = _shared(facts)
    return "; ".join(f"{name}: {fact}" for name, fact in facts[index].items() if name not in shared)


def _columns(rows: Facts) -> list[str]:
    width = max(map(len, rows))
    return [f"  {name:{width}}  {fact}".rstrip() for name, fact in rows.items()]
