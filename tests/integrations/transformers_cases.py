"""Cases of the Trainer of transformers, with a small Llama that is made from its configuration."""

from typing import Any

import pytest
import torch
import transformers
from tests.integrations.library_cases import Case, Outcome, Run, flat
from torch.nn.functional import pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

MAKES_NO_GROUP = True

transformers.logging.set_verbosity_error()


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random words, 4 to 12 in a sentence if `ragged`."""

    def __init__(self, count: int, *, seed: int = 1, ragged: bool = False) -> None:
        words = torch.randint(0, 64, (count, 12), generator=torch.Generator().manual_seed(seed))
        self._rows = [row[: 4 + index % 9] if ragged else row for index, row in enumerate(words)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def padded(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(len(sample["labels"]) for sample in samples)
    return {
        name: torch.stack([pad(sample[name], (0, longest - len(sample[name])), value=filler) for sample in samples])
        for name, filler in (("input_ids", 0), ("labels", -100))
    }


def llama(width: int = 32) -> LlamaForCausalLM:
    set_seed(1)
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **shape))


def arguments(run: Run, **settings: Any) -> TrainingArguments:
    """Arguments for CPUs without `ddp_backend`: the group exists."""
    usual: dict[str, Any] = {
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 6,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "error",
    }
    return TrainingArguments(str(run.files), **{**usual, **settings})


def fit(trainer: Trainer, **settings: Any) -> Outcome:
    trainer.train(**settings)
    assert isinstance(trainer.model_wrapped, DistributedDataParallel)
    logged = ("loss", "grad_norm", "eval_loss", "eval_right")
    return Outcome(trainer.model, [line[name] for line in trainer.state.log_history for name in logged if name in line])


def gradient_accumulation(run: Run) -> Outcome:
    """Sentences of different lengths: ranks tell each other how many words each has (`num_items_in_batch`)."""
    settings = arguments(run, gradient_accumulation_steps=3)
    return fit(Trainer(llama(), settings, train_dataset=Sentences(100, ragged=True), data_collator=padded))


def mixed_precision(run: Run) -> Outcome:
    return fit(Trainer(llama(), arguments(run, bf16=True), train_dataset=Sentences(100)))


def large_gradients(run: Run) -> Outcome:
    """5 MB of gradients in several buckets."""
    settings = arguments(run, ddp_bucket_cap_mb=1, max_steps=3)
    return fit(Trainer(llama(width=256), settings, train_dataset=Sentences(100)))


def right_words(prediction: Any) -> dict[str, float]:
    guessed = prediction.predictions.argmax(-1)
    return {"right": float((guessed[:, :-1] == prediction.label_ids[:, 1:]).mean()), "count": len(guessed)}


def evaluation_of_uneven_data(run: Run) -> Outcome:
    """Evaluation and checkpoints between steps, the best one loaded in the end, then a prediction."""
    every_three = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    trainer = Trainer(
        llama(),
        arguments(run, max_steps=9, load_best_model_at_end=True, save_total_limit=2, **every_three),
        train_dataset=Sentences(37),
        eval_dataset=Sentences(23, seed=2),
        compute_metrics=right_words,
    )
    outcome = fit(trainer)
    assert trainer.evaluate()["eval_count"] == 23
    predicted = trainer.predict(Sentences(13, seed=3)).predictions
    assert predicted.shape == (13, 12, 64)
    return Outcome(outcome.model, [*outcome.numbers, float(predicted.sum())])


def resumption(run: Run) -> Outcome:
    """From a checkpoint training comes to the same parameters as without a break."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    first = fit(Trainer(llama(), arguments(run, **saving), train_dataset=Sentences(100)))
    checkpoint = str(run.files / "checkpoint-3")
    second = fit(
        Trainer(llama(), arguments(run, **saving), train_dataset=Sentences(100)), resume_from_checkpoint=checkpoint
    )
    assert torch.equal(flat(first.model), flat(second.model))
    return second


def the_name_of_the_backend(run: Run) -> Outcome:
    """Why docs/integrations.md makes the group first: see the case of the same name for Accelerate, which decides."""
    if run.backend == "gloo":
        assert arguments(run, ddp_backend=run.backend).world_size == 2
    else:
        with pytest.raises(ValueError, match="backend ringwide is not available, please use gloo"):
            _ = arguments(run, ddp_backend=run.backend).world_size
    parallel = arguments(run, ddp_backend=run.backend, use_cpu=False).parallel_mode
    assert parallel == transformers.training_args.ParallelMode.NOT_PARALLEL
    return Outcome(torch.nn.Linear(1, 1), [])


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        gradient_accumulation,
        mixed_precision,
        large_gradients,
        evaluation_of_uneven_data,
        resumption,
        the_name_of_the_backend,
    )
}
