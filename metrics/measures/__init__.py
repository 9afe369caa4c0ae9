"""Metrics: functions of summed statistics, by family, with their direction, range and tests."""
