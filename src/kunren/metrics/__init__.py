"""What an evaluation computes besides the loss; one way of computing it in each file."""

from kunren.metrics.collected import Collected, padding_for
from kunren.metrics.metric_object import is_metric_object
from kunren.metrics.metric_set import MetricSet
from kunren.metrics.names import check_names
from kunren.metrics.outputs import BatchOutputs, WholeSet

__all__ = ["BatchOutputs", "Collected", "MetricSet", "WholeSet", "check_names", "is_metric_object", "padding_for"]
