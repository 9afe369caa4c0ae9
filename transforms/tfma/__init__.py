"""TensorFlow Model Analysis inside Beam: its metrics on slices, and slices as its slice keys."""

from slicebeam.transforms.tfma.extractor import AutoSliceKeyExtractor as AutoSliceKeyExtractor
