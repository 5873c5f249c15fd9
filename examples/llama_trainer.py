"""The Trainer of transformers on ringwide: the group is made first, and the Trainer uses it.

torchrun --nproc-per-node 2 examples/llama_trainer.py
"""

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

dist.init_process_group("ringwide")  # before TrainingArguments
arguments = TrainingArguments("checkpoints", use_cpu=True, max_steps=5, save_steps=5, logging_steps=1, report_to=[])
torch.manual_seed(1)
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape))
data = [{"input_ids": words, "labels": words} for words in torch.randint(0, 64, (100, 12))]
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
if trainer.is_world_process_zero():
    ddp = trainer.model_wrapped
    print(f"{type(ddp).__name__} on {ddp.process_group.name()}")
dist.destroy_process_group()
