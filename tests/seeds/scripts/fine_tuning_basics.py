"""The second article's script in its own order: data, model, arguments, Trainer, train, evaluate, save, resume."""

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

# 1. the data
sentences = ["what a good day", "what a bad day", "a very good film", "a very bad film"] * 16
dataset = Dataset.from_dict({"text": sentences, "label": [1, 0, 1, 0] * 16})

# 2. model and tokenizer
tokenizer = AutoTokenizer.from_pretrained("./tiny-bert")
model = AutoModelForSequenceClassification.from_pretrained("./tiny-bert", num_labels=2)
dataset = dataset.map(lambda row: tokenizer(row["text"]), batched=True)
parts = dataset.train_test_split(test_size=16, seed=0)
train_dataset, eval_dataset = parts["train"], parts["test"]
data_collator = DataCollatorWithPadding(tokenizer)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


# 3. the arguments, each that the article names
training_args = TrainingArguments(
    output_dir="./results",
    learning_rate=5e-3,
    num_train_epochs=5,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    evaluation_strategy="steps",
    eval_steps=10,
    save_steps=10,
    save_total_limit=2,
    load_best_model_at_end=True,
    logging_dir="./logs",
    logging_steps=10,
    report_to="none",
)

# 4. the Trainer
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    eval_dataset=eval_dataset,
    tokenizer=tokenizer,
    data_collator=data_collator,
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=6)],
)

# 5. to 7. train, evaluate, save, and take up again from what was saved on the way
train_output = trainer.train()
eval_results = trainer.evaluate()
trainer.save_model("./fine-tuned-model")
resumed_output = trainer.train(resume_from_checkpoint=True)
