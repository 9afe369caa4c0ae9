"""What is read from, run by and written for TensorFlow Model Analysis."""
