"""Which metrics are better when greater, by name."""

from __future__ import annotations

import pytest

from kunren.arguments.metric_direction import greater_is_better

MORE = """
accuracy eval_accuracy f1 eval_f1_macro precision recall bleu sacrebleu bleu4 rouge1 rougeL eval_rougeLsum mcc auc
matthews_correlation roc_auc exact_match pearson eval_sts-dev_spearman_cosine recall@10 ndcg@10 mrr r2 mean_iou
eval_test_top5 rewards/margins
"""
LESS = """
loss eval_loss dataset1_loss eval_focalloss perplexity wer cer eval_cer rmse mse mae error error_rate nll
"""


@pytest.mark.parametrize("name", MORE.split())
def test_more_is_better(name: str) -> None:
    assert greater_is_better(name) is True


@pytest.mark.parametrize("name", LESS.split())
def test_less_is_better(name: str) -> None:
    assert greater_is_better(name) is False


@pytest.mark.parametrize("name", ["quality", "eval_score", "top1_error", "my_metric", ""])
def test_unknown_names_are_left_to_the_user(name: str) -> None:
    assert greater_is_better(name) is None
