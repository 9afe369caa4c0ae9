"""The engines that a run can use: their options, their processes, and how a job is sent to them."""
