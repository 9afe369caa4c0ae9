"""How a confusion matrix changed, from few new predictions: Chen et al. (2021), "Did the model change?" (MASA)."""
