"""The first article's code: its argument groups, its `training_step`, its callback that steers the run by `control`."""

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers import Trainer, TrainerCallback, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("./tiny-bert")
model = AutoModelForSequenceClassification.from_pretrained("./tiny-bert", num_labels=2)
sentences = ["what a good day", "what a bad day", "a very good film", "a very bad film"] * 8
dataset = Dataset.from_dict({"text": sentences, "labels": [1, 0, 1, 0] * 8})
dataset = dataset.map(lambda row: tokenizer(row["text"]), batched=True)

# The table of argument groups, a row each.
training_args = TrainingArguments(
    output_dir="./results", num_train_epochs=3, per_device_train_batch_size=4,
    learning_rate=1e-3, weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.999, lr_scheduler_type="cosine",
    fp16=False, bf16=False, fp16_opt_level="O1",
    local_rank=-1, deepspeed=None, fsdp="", fsdp_config=None,
    save_strategy="steps", save_steps=500, save_total_limit=2,
    logging_steps=1, report_to="none", run_name="article",
    gradient_accumulation_steps=2, gradient_checkpointing=False, max_grad_norm=0.5,
    optim="adamw_torch_fused", eval_strategy="steps", eval_steps=2,
)  # fmt: skip

events = []
kwargs = {}  # the article's step hands its surroundings' `kwargs` on to accelerate


class ArticleTrainer(Trainer):
    steps_taken = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.steps_taken += 1
        model.train()
        inputs = self._prepare_inputs(inputs)

        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)

        # Handle multi-GPU loss averaging
        if self.args.n_gpu > 1:
            loss = loss.mean()

        # Backward pass (Accelerate handles mixed precision)
        self.accelerator.backward(loss, **kwargs)

        return loss.detach()


class WeightedLossTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 2.0]))
        return (loss, outputs) if return_outputs else loss


class SteeringCallback(TrainerCallback):
    """Asks for a checkpoint at step 3 and for the end at step 5; notes every event of the article's table."""

    def on_step_end(self, args, state, control, **kwargs):
        events.append("on_step_end")
        control.should_save = state.global_step == 3
        control.should_training_stop = state.global_step == 5
        return control


def note(event):
    return lambda self, args, state, control, **kwargs: events.append(event)


for name in ["init_end", "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "substep_end"]:
    setattr(SteeringCallback, f"on_{name}", note(f"on_{name}"))
for name in ["log", "evaluate", "save", "prediction_step"]:
    setattr(SteeringCallback, f"on_{name}", note(f"on_{name}"))

trainer = ArticleTrainer(
    model=model,
    args=training_args,
    train_dataset=dataset,
    eval_dataset=dataset.select(range(8)),
    processing_class=tokenizer,
    callbacks=[SteeringCallback],
)
trainer.train()

weighted = WeightedLossTrainer(
    model=model, args=training_args, train_dataset=dataset, eval_dataset=dataset, processing_class=tokenizer
)
weighted_output = weighted.train()
