"""Whether more of a metric is better, read from its name."""

from __future__ import annotations

import re

# One word of a name decides: "eval_f1_macro", "sts-dev_spearman_cosine" and "accuracy@1" are known by one word each.
_MORE_IS_BETTER = (
    r"acc(uracy)?|auc|auroc|auprc|ap|map|f\d|fbeta|precision|recall|specificity|sensitivity|mcc|matthews|kappa|jaccard"
    r"|m?iou|dice|mrr|ndcg|hits?|top\d*|(sacre)?bleu\d*|gleu|rouge(\d|l|lsum)?|meteor|chrf|bertscore|bleurt|comet|exact"
    r"|em|match|pearsonr?|spearmanr?|kendall|r2|psnr|ssim|rewards?|win|likelihood|logprob|throughput|explained"
)
_LESS_IS_BETTER = (
    r"loss|losses|perplexity|ppl|wer|cer|ter|mer|err|errors?|eer|r?mse|mae|s?mape|r?msle|nll|crossentropy|brier|fid|kl"
    r"|divergence|hamming|distance|bp[bct]|runtime|latency|toxicity"
)


def greater_is_better(metric: str) -> bool | None:
    """True or False where the name says so, None where it does not (unknown, or words of both kinds)."""
    if metric.lower().endswith("loss"):
        return False
    words = re.findall(r"[a-z0-9]+", metric.lower())
    more = any(re.fullmatch(_MORE_IS_BETTER, word) for word in words)
    less = any(re.fullmatch(_LESS_IS_BETTER, word) for word in words)
    return more if more != less else None
