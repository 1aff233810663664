"""A tiny language model with Hugging Face's Trainer: a callback, and where to resume from."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from shoal.trainer.integrations.huggingface import ShoalCallback  # shoal

torch.manual_seed(0)
dataset = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 50, (64, 8))]
sizes = {"vocab_size": 50, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir=os.environ.get("OUTPUT", "output"),
    max_steps=int(os.environ.get("STEPS", "12")),
    per_device_train_batch_size=8,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
shoal = ShoalCallback()  # shoal
trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[shoal])  # shoal: was without callbacks
trainer.train(resume_from_checkpoint=shoal.newest(arguments.output_dir))  # shoal: was train()
print(f"step {trainer.state.global_step}: done", flush=True)
