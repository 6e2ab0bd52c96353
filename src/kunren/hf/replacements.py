"""Which names of transformers give kunren's, module by module; of the rest of each module, transformers' stays."""

from __future__ import annotations

_COLLATORS = (
    "DataCollatorForLanguageModeling",
    "DataCollatorForMultipleChoice",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "default_data_collator",
)
_SCHEDULES = (
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
)
_TRACKERS = (
    "ClearMLCallback",
    "CodeCarbonCallback",
    "CometCallback",
    "DVCLiveCallback",
    "MLflowCallback",
    "NeptuneCallback",
    "SwanLabCallback",
    "TensorBoardCallback",
    "TrackioCallback",
    "WandbCallback",
)

# Module of transformers -> its name -> where kunren's is.
REPLACEMENTS: dict[str, dict[str, str]] = {
    "transformers.trainer": {"Trainer": "kunren.trainer:Trainer"},
    "transformers.trainer_seq2seq": {"Seq2SeqTrainer": "kunren.seq2seq:Seq2SeqTrainer"},
    "transformers.training_args": {
        "TrainingArguments": "kunren.arguments:TrainingArguments",
        "OptimizerNames": "kunren.arguments.choices:OptimizerNames",
        "ParallelMode": "kunren.arguments.choices:ParallelMode",
    },
    "transformers.training_args_seq2seq": {"Seq2SeqTrainingArguments": "kunren.seq2seq:Seq2SeqTrainingArguments"},
    "transformers.trainer_callback": {
        "TrainerState": "kunren.base.state:TrainerState",
        "TrainerControl": "kunren.base.state:TrainerControl",
        "TrainerCallback": "kunren.callbacks:TrainerCallback",
        "ExportableState": "kunren.callbacks.callback:ExportableState",
        "CallbackHandler": "kunren.callbacks:CallbackHandler",
        "DefaultFlowCallback": "kunren.callbacks:DefaultFlowCallback",
        "EarlyStoppingCallback": "kunren.callbacks:EarlyStoppingCallback",
        "PrinterCallback": "kunren.callbacks:PrinterCallback",
        "ProgressCallback": "kunren.callbacks:ProgressCallback",
    },
    "transformers.trainer_utils": {
        **{name: f"kunren.base.types:{name}" for name in ("EvalPrediction", "EvalLoopOutput", "PredictionOutput")},
        "TrainOutput": "kunren.base.types:TrainOutput",
        **{
            name: f"kunren.arguments.choices:{name}"
            for name in ("IntervalStrategy", "SaveStrategy", "HubStrategy", "SchedulerType")
        },
        "set_seed": "kunren.base.random_state:set_seed",
        "enable_full_determinism": "kunren.base.random_state:enable_full_determinism",
        "get_last_checkpoint": "kunren.checkpoint.layout:get_last_checkpoint",
        **{
            name: f"kunren.search:{name}"
            for name in (
                "BestRun",
                "HPSearchBackend",
                "default_compute_objective",
                "default_hp_space_optuna",
                "default_hp_space_ray",
                "default_hp_space_wandb",
            )
        },
    },
    "transformers.trainer_pt_utils": {"AcceleratorConfig": "kunren.arguments.accelerator_config:AcceleratorConfig"},
    "transformers.data.data_collator": {name: f"kunren.collators:{name}" for name in _COLLATORS},
    "transformers.optimization": {
        **{name: f"kunren:{name}" for name in _SCHEDULES},
        "GreedyLR": "kunren:GreedyLR",
        "Adafactor": "kunren:Adafactor",
    },
    "transformers.integrations.integration_utils": {name: f"kunren:{name}" for name in _TRACKERS},
    "transformers.hf_argparser": {
        name: f"kunren.hf.argument_parser:{name}" for name in ("HfArgumentParser", "HfArg", "string_to_bool")
    },
    "transformers.utils.notebook": {"NotebookProgressCallback": "kunren.callbacks.notebook:NotebookProgressCallback"},
}
