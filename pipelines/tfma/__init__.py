"""TensorFlow Model Analysis's configuration, in slicebeam's own words; nothing runs."""
