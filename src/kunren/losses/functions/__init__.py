"""Losses of tasks, one in each file, and which class of model gets which."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kunren.losses.functions.label_smoothing import LabelSmoother

_HERE = "kunren.losses.functions"
_DETR, _DEFORMABLE, _RT_DETR = f"{_HERE}.detr", f"{_HERE}.deformable_detr", f"{_HERE}.rt_detr"
_CAUSAL = f"{_HERE}.causal_language_modelling:ForCausalLMLoss"
_CLASSIFICATION = f"{_HERE}.sequence_classification:ForSequenceClassificationLoss"
_TRANSFORMERS = "kunren.model.transformers_losses"  # those that kunren does not compute itself

# What the class name of a model holds -> its loss, a function or "module:function". Yours to add to:
# `LOSS_MAPPING["ForRanking"] = my_loss`, with `my_loss(logits, labels, **kwargs)`, serves `class MyNetForRanking`.
LOSS_MAPPING: dict[str, str | Callable[..., Any]] = {
    "ForCausalLM": _CAUSAL,
    "ForConditionalGeneration": _CAUSAL,
    "CsmForConditionalGeneration": _CAUSAL,
    "ForMaskedLM": f"{_HERE}.masked_language_modelling:ForMaskedLMLoss",
    "ForSequenceClassification": _CLASSIFICATION,
    "ForImageClassification": _CLASSIFICATION,
    "ForVideoClassification": _CLASSIFICATION,
    "ForAudioClassification": _CLASSIFICATION,
    "ForTokenClassification": f"{_HERE}.token_classification:ForTokenClassification",
    "ForQuestionAnswering": f"{_HERE}.question_answering:ForQuestionAnsweringLoss",
    "ForSemanticSegmentation": f"{_HERE}.semantic_segmentation:ForSemanticSegmentationLoss",
    "ForCTC": f"{_HERE}.ctc:ForCTCLoss",
    "ForObjectDetection": f"{_DETR}:ForObjectDetectionLoss",
    "ForSegmentation": f"{_DETR}:ForSegmentationLoss",
    "DeformableDetrForObjectDetection": f"{_DEFORMABLE}:DeformableDetrForObjectDetectionLoss",
    "ConditionalDetrForObjectDetection": f"{_DEFORMABLE}:DeformableDetrForObjectDetectionLoss",
    "DabDetrForObjectDetection": f"{_DEFORMABLE}:DeformableDetrForObjectDetectionLoss",
    "ConditionalDetrForSegmentation": f"{_DEFORMABLE}:DeformableDetrForSegmentationLoss",
    "RTDetrForObjectDetection": f"{_RT_DETR}:RTDetrForObjectDetectionLoss",
    "RTDetrV2ForObjectDetection": f"{_RT_DETR}:RTDetrForObjectDetectionLoss",
    "GroundingDinoForObjectDetection": f"{_TRANSFORMERS}:GroundingDinoForObjectDetectionLoss",
    "MMGroundingDinoForObjectDetection": f"{_TRANSFORMERS}:GroundingDinoForObjectDetectionLoss",
    "DFineForObjectDetection": f"{_TRANSFORMERS}:DFineForObjectDetectionLoss",
    "Deimv2ForObjectDetection": f"{_TRANSFORMERS}:Deimv2ForObjectDetectionLoss",
    "LwDetrForObjectDetection": f"{_TRANSFORMERS}:LwDetrForObjectDetectionLoss",
    "RfDetrForObjectDetection": f"{_TRANSFORMERS}:LwDetrForObjectDetectionLoss",
    "RfDetrForInstanceSegmentation": f"{_TRANSFORMERS}:RfDetrForSegmentationLoss",
    "PocketTTSForConditionalGeneration": f"{_TRANSFORMERS}:PocketTTSForConditionalGenerationLoss",
    "GradiumPhononTTSForConditionalGeneration": f"{_TRANSFORMERS}:PocketTTSForConditionalGenerationLoss",
    "ParakeetForRNNT": f"{_TRANSFORMERS}:ParakeetForRNNTLoss",
    "ParakeetForTDT": f"{_TRANSFORMERS}:ParakeetForTDTLoss",
}


def smoother_for(args: Any) -> LabelSmoother | None:
    """What computes the loss in place of the model where the arguments ask for smoothed labels."""
    if args.label_smoothing_factor <= 0:
        return None

    from kunren.losses.functions.label_smoothing import LabelSmoother

    return LabelSmoother(args.label_smoothing_factor)
