"""A metric of a user's own for TFMA: the largest distance of a score from its label, and the mean."""

import apache_beam as beam
from tensorflow_model_analysis.metrics import metric_types, metric_util


class MeanGap(metric_types.Metric):
    def __init__(self, power=1.0, name="mean_gap"):
        super().__init__(_computations, power=power, name=name)


class _Gap(beam.CombineFn):
    def __init__(self, key, config, power):
        self.key, self.config, self.power = key, config, power

    def create_accumulator(self):
        return 0.0, 0

    def add_input(self, accumulator, element):
        total, number = accumulator
        found = metric_util.to_label_prediction_example_weight(
            element, eval_config=self.config, model_name=self.key.model_name
        )
        for label, prediction, _ in found:
            total += abs(float(label.item()) - float(prediction.item())) ** self.power
            number += 1
        return total, number

    def merge_accumulators(self, accumulators):
        listed = list(accumulators)
        return sum(one[0] for one in listed), sum(one[1] for one in listed)

    def extract_output(self, accumulator):
        total, number = accumulator
        return {self.key: total / number if number else float("nan")}


def _computations(power, name, eval_config=None, model_names=None):
    found = []
    for model in model_names or [""]:
        key = metric_types.MetricKey(name, model_name=model)
        combiner = _Gap(key, eval_config, power)
        one = metric_types.MetricComputation(keys=[key], preprocessors=None, combiner=combiner)
        found.append(one)
    return found
