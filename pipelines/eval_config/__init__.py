"""TensorFlow Model Analysis's EvalConfig, read as options of our own; nothing runs."""
