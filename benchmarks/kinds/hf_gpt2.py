"""GPT-2 of transformers with gradient accumulation, as its Trainer loops; `--checkpoint`: gradient checkpointing."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=96, n_layer=4, n_head=4))
model.train()
if "--checkpoint" in sys.argv:
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 8)
data = torch.randint(500, (64, 64))
for step in range(8):
    for half in range(2):
        x = data[(step * 8 + 4 * half) % 64 :][:4]
        loss = model(input_ids=x, attention_mask=torch.ones_like(x), labels=x).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    model.zero_grad()
